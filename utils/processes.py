"""The one place that knows there may be several processes; with one, every function is the identity.

Started by torchrun, `join` makes the group: what is on an accelerator travels by NCCL (or the accelerator's own), what
is on the CPU by gloo, so that a question between processes never waits for a GPU.
"""

import atexit
import os
import time
import uuid
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch.distributed as dist

from utils.errors import Failure

_one_batch = False  # whether all processes work on the same rows


def join(timeout_seconds=1800):
    """Join the group that torchrun describes in the environment, once; nothing where there is none.

    With each call a run begins whose rows are dealt.
    """
    global _one_batch
    _one_batch = False
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        timeout = timedelta(seconds=timeout_seconds)
        store, number, count = next(dist.rendezvous("env://", timeout=timeout))
        fresh = _of_this_attempt(store, number, count)
        dist.init_process_group(store=fresh, rank=number, world_size=count, timeout=timeout)


def _of_this_attempt(store, number, count):
    """A part of the store in which no earlier attempt has written.

    torchrun keeps one store over all attempts, and its count of restarts differs between machines. So the first process
    draws a name, and tells it to whoever asks under a name drawn for this attempt, until all have heard it; Failure
    where they have not come in the store's time.
    """
    drawn = uuid.uuid4().hex
    if number > 0:
        store.set(f"asks/{number}", drawn)
        told = store.get(f"told/{drawn}").decode()
        store.add(f"{told}/heard", 1)
        return dist.PrefixStore(told, store)
    end = time.monotonic() + store.timeout.total_seconds()
    while (heard := store.add(f"{drawn}/heard", 0)) < count - 1:
        if time.monotonic() > end:
            raise Failure(f"{heard + 1} of {count} processes came in {store.timeout}. What the others print says why.")
        for other in range(1, count):
            if store.check([f"asks/{other}"]):
                store.set(f"told/{store.get(f'asks/{other}').decode()}", drawn)
        time.sleep(0.01)
    return dist.PrefixStore(drawn, store)


def set_timeout(seconds):
    """How long from here on a process waits for the others before it gives up."""
    if process_count() > 1:
        # torch < 2.14 has the second alone; drop with the lower bound.
        getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)(timedelta(seconds=seconds))


def leave():
    """End this process after success; where one failed, the others would be waited for in vain.

    Not by way of Python's own end: a thread of gloo's that lets go of a tensor meanwhile would abort it.
    """
    if process_count() > 1:
        dist.destroy_process_group()
        atexit._run_exitfuncs()
        os._exit(0)


def process_count():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_alone():
    return process_count() == 1


def share_rows():
    """In this run every process works on the same rows, as the stages of a pipeline do: there is one share."""
    global _one_batch
    _one_batch = True


def size():
    """Into how many shares the rows of a batch are dealt."""
    return 1 if _one_batch else process_count()


def rank():
    """Which share is this process's."""
    return process_number() if size() > 1 else 0


def process_number():
    """Which of all processes this one is, from 0."""
    return dist.get_rank() if process_count() > 1 else 0


def is_main():
    return process_number() == 0


def sum_over_all(tensor):
    """The sum of every share's `tensor`, in place; the same tensor is returned."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def from_main(make):
    """make() of the main process (any plain object), on every process; the Failure that it raises, all raise."""
    if process_count() == 1:
        return make()
    holder: list[Any] = [None, None]
    if is_main():
        try:
            holder[0] = make()
        except Failure as failure:
            holder[1] = failure
    dist.broadcast_object_list(holder, src=0)
    if holder[1] is not None:
        raise holder[1]
    return holder[0]


def gather(value):
    """[every process's value], by rank, on every process."""
    holder = [value] * process_count()
    if process_count() > 1:
        dist.all_gather_object(holder, value)
    return holder


def wait_for_all():
    if process_count() > 1:
        dist.barrier()


def share_buffers(model):
    """Give every process the main one's buffers, as the statistics of BatchNorm, which each counts for itself."""
    for buffer in model.buffers() if size() > 1 else ():
        dist.broadcast(buffer, src=0)


def whole(tensor):
    """A tensor whose parts lie on several processes, gathered on the main one; any other as it is."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full = tensor.full_tensor()
    return full.cpu() if is_main() else full.new_empty(0)


def laid_out(tensor, like):
    """`tensor`, which every process has whole, as `like` lies: its own part of it, where that is in parts."""
    tensor = tensor.read() if hasattr(tensor, "read") else tensor  # of a checkpoint in parts: now, and one at a time
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def notes():
    """A connection of its own to what the processes of this attempt write to one another, for another thread."""
    return dist.distributed_c10d._get_default_store().clone()


def is_first_to_say(words, ever=False):
    """Whether no process of this attempt (`ever`: of any attempt) has said this; the main one is let go first."""
    try:
        asked = dist.rendezvous("env://", timeout=timedelta(seconds=5))  # not before its `next`
        store = dist.distributed_c10d._get_default_store() if dist.is_initialized() else next(asked)[0]
        while ever and hasattr(store, "underlying_store"):
            store = store.underlying_store
        key, drawn = f"said/{sha256(words.encode()).hexdigest()}", uuid.uuid4().hex
        # Where another has failed first ("by peer"), torchrun ends this one.
        for _ in range(20 if os.environ["RANK"] != "0" or "by peer" in words else 0):
            time.sleep(0 if store.check([key]) else 0.05)
        return store.compare_set(key, "", drawn).decode() == drawn
    except (RuntimeError, ValueError):  # there is nobody left to ask
        return True
