"""How planned batches are read: in this process or in workers, every example under a seed of its own."""

import atexit
import copy
import inspect
import itertools
import signal
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torchs

from utils import processes, seeds, signals


class Planner:
    """The inner loader's sampler: the batches of the pass at hand."""

    plan: list[Any] = []

    def __iter__(self):
        return iter(self.plan)


class Rows(Dataset):
    """A map-style set, read by the batch: (indices, seeds, epoch) → batch."""

    def __init__(self, loader):
        self.dataset, self.transform, self.collate_fn = loader.dataset, loader.transform, loader.collate_fn
        self.single = loader.batch_sampler is None  # batch_size=None: an item of the set is the batch
        # From (indices, seeds); in torch's own protocol, from the indices alone.
        read = getattr(self.dataset, "__getitems__", None)
        self.by_batch = self.transform is None and read is not None and len(inspect.signature(read).parameters) == 2

    def __getitem__(self, planned):
        indices, example_seeds, epoch = planned
        _tell_epoch(self.dataset, epoch)
        if self.by_batch:
            return self.dataset.__getitems__(np.asarray(indices), example_seeds)
        with seeds.untouched():
            samples, example_seeds = [], example_seeds.tolist()
            for index, seed in zip(indices, example_seeds):
                seeds.set_host(seed)
                samples.append(transformed(self.dataset[index], self.transform))
            seeds.set_host(example_seeds[0] ^ 1)
            return self.collate_fn(samples[0] if self.single else samples)


class Stream(IterableDataset):
    """An IterableDataset, by the batch: (examples here, everywhere, batch, where the set stands after it).

    Every process and every worker reads all of it and makes its own of it: a worker every W-th batch, a process every
    N-th row of a batch. So the batches depend on neither number, and what is spread is the transform and the collating.
    The set's iterator, or a set whose `__iter__` is a generator, may say by state_dict where it stands.
    """

    def __init__(self, loader, epoch, start=0, state=None):
        self.dataset, self.transform, self.collate_fn = loader.dataset, loader.transform, loader.collate_fn
        self.batch_size, self.drop_last = loader.batch_size or 1, loader.drop_last
        self.seed, self.epoch = loader.seed, epoch
        self.start, self.state = start, state  # batches that are done, and the set's own state after them
        self.rank, self.size = processes.rank(), processes.size()

    def __iter__(self):
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        torchs._worker_info = None  # a set that deals its rows to workers by itself would do so a second time
        _tell_epoch(self.dataset, self.epoch)
        examples, known = iter(self.dataset), self.start if self.state is not None else 0
        drawn = zip(self._seeds(known * self.batch_size), examples)
        placed: Any = next((one for one in (examples, self.dataset) if hasattr(one, "state_dict")), None)
        if self.state is not None:
            placed.load_state_dict(self.state)
        for i in itertools.count(known):
            with seeds.untouched():
                samples = list(itertools.islice(drawn, self.batch_size))  # (its seed, sample)
                if len(samples) < (self.batch_size if self.drop_last else 1):
                    return
                if i < self.start or (i - self.start) % workers != mine:
                    continue
                # At its end a set may say that it stands at its beginning.
                is_told = placed is not None and len(samples) == self.batch_size
                state = copy.deepcopy(placed.state_dict()) if is_told else None  # it moves on
                batch = self._made(samples[self.rank :: self.size] or samples[:1])
            yield len(samples[self.rank :: self.size]), len(samples), batch, state

    def _made(self, samples):
        """The batch of this process's rows; one that has none takes the first, which only keeps step."""
        read = []
        for seed, sample in samples:
            if self.transform is not None:
                seeds.set_host(seed ^ 2)
            read.append(transformed(sample, self.transform))
        seeds.set_host(samples[0][0] ^ 1)
        return self.collate_fn(read)

    def _seeds(self, first):
        """The seeds of the examples from `first` on; each is set when it is asked for, before its example is."""
        for at in itertools.count(first, 1024):
            for seed in seeds.example_seeds(self.seed, self.epoch, 1024, at).tolist():
                seeds.set_host(seed)
                yield seed


def transformed(sample, transform):
    """The sample with its input, its first item, transformed; one that is no tuple is all input."""
    if transform is None:
        return sample
    if isinstance(sample, (tuple, list)):
        return (transform(sample[0]), *sample[1:])
    return transform(sample)


def opened(inner):
    """An iterator over the inner loader, whose workers can be ended although they leave SIGTERM to their parent."""
    with signals.held():  # a worker is killed by one that comes before it is told to ignore it
        source = iter(inner)
    for worker in getattr(source, "_workers", ()):
        worker._popen.terminate = worker._popen.kill  # torch and Python end a worker by SIGTERM, and wait for that
    if hasattr(signal, "SIGCHLD"):
        atexit.unregister(_expect_their_end)
        atexit.register(_expect_their_end)
    return source


def _expect_their_end():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler calls the end of a worker a mishap


def start_worker(worker_init_fn, worker_id):
    """What a worker does first: leave signals to its parent, which saves and ends it; then the user's own function."""
    signals.ignore()
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def as_it_is(batch):
    return batch


def _tell_epoch(dataset, epoch):
    """Tell a set that asks for it, once: which epoch it was told stands on it, since two loaders may share it."""
    if hasattr(dataset, "set_epoch") and getattr(dataset, "_told_epoch", None) != epoch:
        dataset._told_epoch = epoch
        dataset.set_epoch(epoch)
