"""How a model is spread over devices: what `parallel` in a config names.

Each function takes the user's model, still on the CPU, and the torch.device of this process, and returns what the loop
calls. The command says how many processes there are (`torchrun --nproc-per-node N train.py …`), not the config.
"""

import logging
from collections import Counter

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from trainer.stepper import PRECISION
from utils import imports, processes
from utils.errors import ArgumentError, ConfigError
from utils.optim import matching

_log = logging.getLogger("trainer")


def auto(model, device):
    """DistributedDataParallel where torchrun has started several processes, else the device alone."""
    return ddp(model, device) if processes.size() > 1 else none(model, device)


def none(model, device):
    """One process, one device."""
    if processes.size() > 1:
        raise ConfigError(f"parallel: none; {processes.size()} processes would train apart. Give auto, ddp or fsdp.")
    return model.to(device)


def data_parallel(model, device, n_gpu=None):
    """torch's DataParallel: one process, which deals each batch to its GPUs and gathers the outputs on the first.

    n_gpu: how many; default: all.
    """
    if processes.size() > 1:
        return ddp(model, device)  # each has a device of its own
    there = torch.cuda.device_count() if device.type == "cuda" else 0
    count = min(n_gpu or there, there)
    if count < max(n_gpu or 2, 2):
        instead = f"{count} of them" if count > 1 else f"{device} alone"
        _log.warning(f"data_parallel: {n_gpu or 'several'} GPUs wanted, {there} there; training on {instead}.")
    if count < 2:
        return model.to(device)
    if model._compiled_call_impl is not None:
        raise ConfigError("trainer.compile: a compiled model can't be copied to GPUs by DataParallel; use torchrun.")
    why = "DataParallel copies the model in every step, and its first GPU holds and computes more than the others"
    _log.info(f"{why}. Faster, with the same numbers: torchrun --nproc-per-node {count} train.py …")
    return DataParallel(model.to(device), list(range(count)))


def ddp(model, device, sync_batchnorm=False, find_unused_parameters=False, static_graph=False, bucket_cap_mb=None):
    """DistributedDataParallel: each process has the whole model and its share of a batch; gradients are averaged.

    sync_batchnorm: statistics over the whole batch, on GPUs. find_unused_parameters: of a model that does not use every
    parameter in every step. static_graph, bucket_cap_mb (MiB): as torch's DistributedDataParallel has them.
    """
    if sync_batchnorm and device.type == "cpu":
        _log.warning("parallel.args.sync_batchnorm: torch has it for GPUs alone; each process has its own statistics.")
    elif sync_batchnorm:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    how = {"find_unused_parameters": find_unused_parameters, "static_graph": static_graph}
    return model.to(device) if _is_alone("ddp") else _ddp(model.to(device), device, bucket_cap_mb=bucket_cap_mb, **how)


def manual(model, device, find_unused_parameters=False):
    """A model that has put its own parts where they belong; several processes each have a whole one, as in ddp."""
    return _ddp(model, None, find_unused_parameters=find_unused_parameters) if processes.size() > 1 else model


def _ddp(model, device, **how):
    ids = [device.index] if device is not None and device.type != "cpu" else None
    learns = any(parameter.requires_grad for parameter in model.parameters())  # torch refuses one that does not
    return DistributedDataParallel(model, device_ids=ids, **how) if learns else model


def fsdp(model, device, wrap=None, mixed_precision="off", cpu_offload=False, reshard_after_forward=True, sharded=False):
    """FSDP2 (torch's fully_shard): each process keeps a part of the weights, gradients and optimizer state.

    wrap: patterns of the modules that are gathered as one, as in ["encoder.layers.*"]; default: the items of every
    ModuleList, else the model's children. mixed_precision: "bf16" | "fp16", of the gathered weights; gradients are
    reduced in float32. cpu_offload: keep the parts in the host's memory. sharded: write checkpoints in parts, too.
    """
    if mixed_precision != "off" and mixed_precision not in PRECISION:
        raise ArgumentError(f"mixed_precision: '{mixed_precision}'; it can be off, bf16 or fp16.")
    blocks = _blocks(model, wrap)
    if _is_alone("fsdp"):
        return model.to(device)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    dtype = PRECISION.get(mixed_precision)
    inner = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype and torch.float32)
    outer = MixedPrecisionPolicy(dtype, dtype and torch.float32, output_dtype=dtype and torch.float32)
    how = {"mesh": init_device_mesh(device.type, (processes.size(),)), "reshard_after_forward": reshard_after_forward}
    how["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda") if cpu_offload else OffloadPolicy()
    model = model.to(memory_format=torch.contiguous_format)  # what it can cut in parts; activations keep their format
    for block in blocks:
        fully_shard(block, mp_policy=inner, **how)
    made = fully_shard(model, mp_policy=outer, **how)
    for module in () if reshard_after_forward else [*blocks, made]:  # in an evaluation no backward lets them go
        module.register_forward_hook(lambda one, *_: None if torch.is_grad_enabled() else one.reshard())
    made.saves_in_parts = sharded
    return made


def _blocks(model, wrap):
    """The modules that are gathered as one, from the inside out; those that share a weight go with the whole model."""
    modules = {name: module for name, module in model.named_modules() if name}
    if wrap is None:
        lists = [child for m in model.modules() if isinstance(m, torch.nn.ModuleList) for child in m]
        found = lists or list(model.children())
    else:  # * matches what is inside an item, too, which is gathered with it
        each = [matching(modules, pattern, "parallel.args.wrap", "module") for pattern in wrap]
        found = [modules[n] for names in each for n in names if not any(n.startswith(f"{other}.") for other in names)]
    uses = {m: Counter(id(p) for _, p in m.named_parameters(remove_duplicate=False)) for m in [model, *found]}
    own = [module for module in found if uses[module] and uses[module].items() <= uses[model].items()]
    return [module for module in reversed(list(model.modules())) if any(module is one for one in own)]


def pipeline(model, device, split, schedule="1F1B", micro_batches=4):
    """The model in stages, one a process, through which a batch goes in `micro_batches` parts.

    split: the names of the modules that each begin a stage. schedule: "GPipe" | "1F1B".
    """
    stages = imports.optional("extras.pipeline", "parallel=pipeline")
    return stages.Pipelined(model, device, split, schedule, micro_batches)


def _is_alone(name):
    if processes.size() == 1:
        _log.warning(f"{name}: one process; start several with torchrun --nproc-per-node N train.py …")
    return processes.size() == 1
