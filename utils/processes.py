"""The one place that knows there may be several processes; with one, every function is the identity.

Nothing else imports torch.distributed. Started by torchrun, `join` makes the group (NCCL on CUDA, else gloo).
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def join(device_type="cpu", timeout_seconds=1800):
    """Join the group that torchrun describes in the environment; nothing where there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))


def leave():
    if size() > 1:
        dist.destroy_process_group()


def size():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank():
    return dist.get_rank() if size() > 1 else 0


def is_main():
    return rank() == 0


def sum_over_all(tensor):
    """The sum of every process's `tensor`, in place; the same tensor is returned."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def any_of_all(flag):
    """Whether the flag is set in at least one process, so that all act alike."""
    if size() == 1:
        return flag
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return bool(sum_over_all(torch.tensor(int(flag), device=device)).item())


def from_main(value):
    """The main process's `value` (any plain object), on every process."""
    holder = [value]
    if size() > 1:
        dist.broadcast_object_list(holder, src=0)
    return holder[0]


def gather(value):
    """[every process's value], by rank, on every process."""
    holder = [value] * size()
    if size() > 1:
        dist.all_gather_object(holder, value)
    return holder


def wait_for_all():
    if size() > 1:
        dist.barrier()


def wrap(model, device):
    """The model in DistributedDataParallel where there are several processes."""
    ids = [device.index] if device.type == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=ids) if size() > 1 else model
