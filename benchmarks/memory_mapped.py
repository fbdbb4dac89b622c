"""Read an epoch of a set larger than it should ever take of memory:  python benchmarks/memory_mapped.py [GIB] [WORKERS]

Writes an array of GIB (4) gibibytes to a temporary folder, block by block, reads it once in random order through
MemoryMappedArrays and BaseDataLoader, and prints how fast, and by how much the memory of this process grew: what is its
own (RssAnon), and with it the pages of the file, which the system takes back as it needs them (VmRSS). Linux only.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from base import BaseDataLoader
from data_loader.arrays import MemoryMappedArrays

SHAPE = (3, 64, 64)  # bytes of an example: 12 KiB
BATCH_SIZE = 256
MIB = 2**20


def resident():
    """{RssAnon, VmRSS}: MiB of this process that are in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":") for line in lines if line.startswith(("RssAnon", "VmRSS")))
    return {name: int(value.split()[0]) / 1024 for name, value in found.items()}


def write(folder, count):
    """inputs.npy of random bytes and targets.npy, each target the sum of its input's first row."""
    generator, block = np.random.default_rng(0), 4096
    inputs = np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.uint8, (count, *SHAPE))
    targets = np.lib.format.open_memmap(folder / "targets.npy", "w+", np.int64, (count,))
    for start in range(0, count, block):
        rows = slice(start, min(start + block, count))
        inputs[rows] = generator.integers(0, 256, (rows.stop - rows.start, *SHAPE), np.uint8)
        targets[rows] = inputs[rows, 0, 0].sum(axis=1)
    inputs.flush()


def main(gib=4.0, num_workers=0):
    count = int(gib * 2**30) // int(np.prod(SHAPE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, count)
        dataset = MemoryMappedArrays(folder / "inputs.npy", folder / "targets.npy", scale=1 / 255)
        loader = BaseDataLoader(dataset, BATCH_SIZE, shuffle=True, num_workers=num_workers)
        next(iter(loader))  # what torch loads at its first batch is no part of it
        before, most = resident(), {}
        started, wrong = time.perf_counter(), 0
        for i, (inputs, targets) in enumerate(loader.batches_of(2)):
            wrong += int(((inputs[:, 0, 0] * 255).sum(dim=1).round() != targets).sum())
            if i % 50 == 0 or i == len(loader) - 1:
                most = {name: max(most.get(name, 0.0), value) for name, value in resident().items()}
        seconds = time.perf_counter() - started
        size = count * np.prod(SHAPE) / MIB
    print(f"{size:.0f} MiB, {count} examples, {num_workers} workers: {seconds:.1f} s, {size / seconds:.0f} MiB/s")
    for name, what in (("RssAnon", "its own memory"), ("VmRSS", "with pages of the file")):
        print(f"{what:<24} {before[name]:7.0f} MiB before, at most {most[name] - before[name]:+7.0f} MiB in the epoch")
    if wrong:
        sys.exit(f"{wrong} examples have a target that is not theirs")


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((float, int), sys.argv[1:])))
