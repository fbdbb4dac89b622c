"""Where a run computes: the device, what is set on it once, and what is moved to it."""

import os

import torch

from utils import processes, seeds
from utils.errors import ConfigError, first_line


def start(config):
    """Join the other processes if there are any, seed everything, set torch's switches; return the torch.device."""
    processes.join()
    if not processes.is_alone() and "timeout_seconds" in (config.get("parallel") or ()):
        processes.set_timeout(config["parallel"]["timeout_seconds"])
    local = int(os.environ.get("LOCAL_RANK", "0")) if not processes.is_alone() else None
    there = torch.accelerator.device_count()
    if local is not None and local < there:
        torch.accelerator.set_device_index(local)  # before anything takes memory on the first
    device = pick(config.get("device", "auto"), config.get("n_gpu"), config.place("device"))
    if local is not None and device.type != "cpu":
        if local >= there:
            why = f"{local + 1} processes, and this machine has {there} of {device.type}"
            raise ConfigError(f"{config.place('device')}: {why}. Start at most so many: --nproc-per-node {there}.")
        device = torch.device(device.type, local)
    if config.get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused
    if torch.are_deterministic_algorithms_enabled() != bool(config.get("deterministic")):  # the call imports dynamo
        torch.use_deterministic_algorithms(bool(config.get("deterministic")))
    torch.set_float32_matmul_precision(config.get("matmul_precision", "highest"))
    torch.backends.cudnn.benchmark = bool(config.get("cudnn_benchmark"))
    seeds.seed_everything(config.get("seed", 0))
    return device


def pick(name="auto", n_gpu=None, place="device"):
    """The torch.device of that name; "auto": the accelerator torch finds (CUDA, ROCm, MPS, XPU), else the CPU."""
    if name == "auto":
        found = None if n_gpu == 0 else torch.accelerator.current_accelerator(check_available=True)
        return found or torch.device("cpu")
    try:
        torch.empty(0, device=name).cpu()  # which the meta device refuses
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = f"'{name}' can't be used here: {first_line(error)} Give auto, cpu, or one that torch finds."
        raise ConfigError(f"{place}: {why}") from error


def memory_format(channels_last):
    return torch.channels_last if channels_last else torch.contiguous_format


def move(batch, device, memory_format=torch.contiguous_format):
    """Every tensor of a batch on the device; images (4 dimensions, floating point) in the memory format."""
    if isinstance(batch, torch.Tensor):
        how = {"memory_format": memory_format} if batch.dim() == 4 and batch.is_floating_point() else {}
        return batch.to(device, non_blocking=device.type != "mps", **how)  # MPS may read a batch that is gone by then
    if isinstance(batch, dict):
        return {key: move(value, device, memory_format) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        moved = [move(value, device, memory_format) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch.to(device) if hasattr(batch, "to") else batch  # as a batch class of another library has it
