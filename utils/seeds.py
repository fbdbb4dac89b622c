"""Random numbers: one place where the three generators (torch, numpy, random) are seeded, kept and put back.

An example's seed is splitmix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators") of
the run's seed, the pass over the data and the example's position in it, so that what an example's transform draws
depends on nothing else.
"""

import random
from contextlib import contextmanager

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_everything(seed):
    """Seed torch (every device), numpy and random."""
    torch.manual_seed(seed)
    set_host(seed)


def splitmix64(values):
    """The splitmix64 output of each state in `values`, a uint64 array; a bijection, so that distinct stay distinct."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def example_seeds(seed, epoch, count, first=0):
    """(count,) uint64: the seeds of the examples at positions `first`, first + 1, … of a pass."""
    origin = splitmix64(splitmix64(np.array([seed % 2**64], np.uint64)) + np.uint64(epoch))
    return splitmix64(origin + np.arange(first, first + count, dtype=np.uint64) * _GOLDEN)


def set_host(seed):
    """Set the generators that transforms draw from, for one example; torch.manual_seed costs ten times as much."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def reseed(kept, seed):
    """Set a generator that somebody keeps, of torch, numpy or `random`; anything else is left as it is."""
    if isinstance(kept, torch.Generator):
        kept.manual_seed(seed)
    elif isinstance(kept, np.random.Generator):
        kept.bit_generator.state = type(kept.bit_generator)(seed).state
    elif isinstance(kept, (random.Random, np.random.RandomState)):
        kept.seed(seed & 0xFFFFFFFF)


@contextmanager
def untouched():
    """Whatever the block draws on the host, the generators stand afterwards where they stood before."""
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


@contextmanager
def untouched_devices():
    """The same for a block in which a model runs: the accelerators' generators, too."""
    before = state()
    try:
        yield
    finally:
        set_state(before)


def state():
    """Where every generator stands, in tensors and plain values."""
    kind, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    host = {"numpy": [kind, np.asarray(keys).tolist(), *rest], "python": [version, list(internal), gauss]}
    accelerators = [torch.get_device_module().get_rng_state(*which) for which in _accelerators()]
    return {"torch": torch.get_rng_state(), **host, "accelerator": _kind(), "accelerators": accelerators}


def set_state(saved):
    """Put the generators back where `state()` found them; those of another kind of accelerator are left alone."""
    torch.set_rng_state(saved["torch"])
    np.random.set_state(tuple(saved["numpy"]))
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
    for which, kept in zip(_accelerators(), saved["accelerators"]) if saved["accelerator"] == _kind() else ():
        torch.get_device_module().set_rng_state(kept, *which)


def _kind():
    return (torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")).type


def _accelerators():
    """What torch's functions take to name each accelerator: its number, but for MPS, which has one device."""
    return [()] if _kind() == "mps" else [(i,) for i in range(torch.accelerator.device_count())]
