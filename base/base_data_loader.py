"""The loader that a fork's loaders inherit: torch's DataLoader, with batches that depend on nothing but the seed."""

import atexit
import copy
import functools
import inspect
import itertools
import json
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, default_collate, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from logger import get_logger
from utils import processes, seeds, signals
from utils.errors import ArgumentError, shown


class Planned(NamedTuple):
    """A batch that is planned and perhaps not loaded yet: `next(source)` loads it, in the order of planning."""

    here: int  # examples that count on this process; 0: the batch is a stand-in that only keeps step
    everywhere: int  # examples over all processes
    source: Iterator[Any]


class BaseDataLoader(DataLoader):
    """torch's DataLoader, whose batches are a function of (seed, epoch, position).

    They don't depend on num_workers, on what validation or logging drew, or on the number of processes: each process
    gets every N-th row of a batch, without padding. `set_epoch` says which pass the next iteration is; without it,
    passes follow one another. torch, numpy and random are seeded for every example, so transforms may draw from any.

    dataset: map-style, or an IterableDataset, which is read by at most one worker. A set with
    `__getitems__(indices, seeds)`, (B,) int64 and (B,) uint64 arrays, returns the whole batch, draws per example from
    the seeds, and is not collated.
    batch_size: over all processes. validation_split: share (0 ≤ x < 1) or count of the examples that
    `split_validation` gives; the same ones for every seed. Other arguments: those of torch's DataLoader.
    """

    seed = 0  # the run's; the trainer sets it
    limit = None  # batches of a pass
    fixed: Any = None  # the indices of each batch, the same in every pass

    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=False,
        validation_split=0.0,
        num_workers=0,
        collate_fn=default_collate,
        **dataloader_kwargs,
    ):
        for name, value in {"dataset": dataset, "collate_fn": collate_fn, **dataloader_kwargs}.items():
            plain = isinstance(value, (str, int, float)) or (value is None and name == "dataset")
            if isinstance(value, dict) or (plain and name in _OBJECTS):
                raise ArgumentError(f'{name}: {shown(value)} is no object; write {{"type": NAME, "args": {{}}}}.')
        self.shuffle = shuffle
        self.validation_split = validation_split
        self.batch_idx = 0
        self.n_samples = len(dataset) if hasattr(dataset, "__len__") else None
        own = {"dataset": dataset, "batch_size": batch_size, "shuffle": shuffle, "collate_fn": collate_fn}
        self.init_kwargs = {**own, "num_workers": num_workers, **dataloader_kwargs}
        sampler, self.valid_sampler = self._split_sampler(validation_split)
        drawn = {"sampler": sampler, "shuffle": False} if sampler is not None else {}
        super().__init__(**self.init_kwargs | drawn)
        self._epoch = 1
        self._planner = _Planner()
        self._inner = None

    def _split_sampler(self, split):
        """(training sampler, validation sampler) of a share or a count, the same rows whatever the run's seed."""
        if not split:
            return None, None
        own = [self.init_kwargs.get(name) for name in ("sampler", "batch_sampler")]
        if own != [None, None] or self.n_samples is None:
            why = "a stream, or data with a sampler of its own, can't be split; give valid_data_loader instead."
            raise ArgumentError(f"validation_split: {why}")
        full = np.arange(self.n_samples)
        np.random.RandomState(0).shuffle(full)
        is_number = isinstance(split, (int, float)) and not isinstance(split, bool)
        count = split if isinstance(split, int) else int(self.n_samples * split) if is_number else 0
        if not 0 < count < self.n_samples:
            left = f"leaves {count} to validate and {self.n_samples - count} to train on"
            raise ArgumentError(f"validation_split: {shown(split)} of {self.n_samples} examples {left}; give another.")
        self.shuffle = False
        self.n_samples -= count
        return SubsetRandomSampler(full[count:].tolist()), full[:count].tolist()

    def split_validation(self):
        """A loader of the examples that validation_split set apart, in a fixed order; None where there is no split."""
        if self.valid_sampler is None:
            return None
        arguments = self.init_kwargs | {"shuffle": False, "drop_last": False, "sampler": self.valid_sampler}
        loader = BaseDataLoader(**arguments)
        loader.n_samples, loader.seed = len(self.valid_sampler), self.seed
        return loader

    def first_batches(self, count):
        """A loader of the first `count` batches of pass 1, the same examples in every pass.

        A set's transforms still draw anew in each; a stream is read as in pass 1.
        """
        made = copy.copy(self)
        made._planner, made._inner, made.limit = _Planner(), None, count
        if isinstance(self.dataset, IterableDataset):
            made.n_samples = self.n_samples and min(self.n_samples, count * (self.batch_size or 1))
        else:
            made.fixed, made.valid_sampler = self._batches(1)[:count], None
            made.n_samples = sum(map(len, made.fixed))
        return made

    def write_split(self, path):
        """Write the indices of a split that this loader made, {"train": […], "valid": […]}, as JSON."""
        if self.valid_sampler is not None and not path.exists():
            indices = {"train": list(getattr(self.sampler, "indices", self.sampler)), "valid": list(self.valid_sampler)}
            path.write_text(json.dumps(indices, default=int), encoding="utf-8")

    def close(self):
        """End the workers that persist between passes; another pass begins new ones."""
        source, self._inner = getattr(self._inner, "_iterator", None), None
        if source is not None:
            source._shutdown_workers()

    def __len__(self):
        return super().__len__() if self.limit is None else min(super().__len__(), self.limit)

    def set_epoch(self, epoch):
        """The next iteration is pass `epoch`, counted from 1."""
        self._epoch = epoch

    def __iter__(self):
        self._epoch += 1
        return self.batches_of(self._epoch - 1)

    def batches_of(self, epoch, start=0):
        """Yield the batches of a pass from batch `start` on; what lies before it is not loaded."""
        for planned in self.planned(epoch, start):
            signals.check()
            yield next(planned.source)

    def planned(self, epoch, start=0):
        """Yield a Planned for each batch of a pass, from batch `start` on."""
        if isinstance(self.dataset, IterableDataset):
            yield from self._read_stream(epoch, start)
            return
        plan = self._plan(epoch)[start:]
        self._planner.plan = [(indices, example_seeds, epoch) for _, _, indices, example_seeds in plan]
        if self._inner is None:
            rows = _Rows(self.dataset, self.collate_fn, self.batch_sampler is None)
            self._inner = self._loader_of(rows, self._planner)
        source = _opened(self._inner)
        for here, everywhere, _, _ in plan:
            yield Planned(here, everywhere, source)

    def _plan(self, epoch):
        """(here, everywhere, indices, seeds) of each batch of a pass."""
        batches = self._batches(epoch)
        ends = np.cumsum([len(batch) for batch in batches])
        all_seeds = seeds.example_seeds(self.seed, epoch, int(ends[-1]) if batches else 0)
        rank, size, dealt = processes.rank(), processes.size(), 1
        if isinstance(self.sampler, DistributedSampler):  # the user's wish
            rank, size, dealt = 0, 1, size
        plan = []
        for batch, batch_seeds in zip(batches, np.split(all_seeds, ends[:-1])):
            mine = batch[rank::size]
            rows = (mine, batch_seeds[rank::size]) if mine else (batch[:1], batch_seeds[:1])
            plan.append((len(mine), len(batch) * dealt, *rows))
        return plan

    def _batches(self, epoch):
        """The indices of each batch of a pass; the sampler is drawn whole from (seed, epoch)."""
        if self.fixed is not None:
            return self.fixed
        samplers: list[Any] = [self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]
        drawn = int(seeds.example_seeds(self.seed, epoch, 1)[0])
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            if isinstance(getattr(sampler, "generator", None), torch.Generator):
                sampler.generator.manual_seed(drawn)
        with seeds.untouched():
            seeds.set_host(drawn)
            return [[i] for i in self.sampler] if self.batch_sampler is None else list(self.batch_sampler)

    def _read_stream(self, epoch, start):
        if start:
            get_logger("data").info(f"data     reading over the first {start} batches of the stream")
        epoch = epoch if self.limit is None else 1
        rows = _Stream(self.dataset, self.batch_size, self.drop_last, self.collate_fn, self.seed, epoch)
        for here, everywhere, batch in itertools.islice(_opened(self._loader_of(rows, None)), start, self.limit):
            yield Planned(here, everywhere, iter((batch,)))

    def _loader_of(self, rows, planner):
        """torch's DataLoader over whole batches, with this one's workers and a generator of its own."""
        names = ("pin_memory", "timeout", "multiprocessing_context", "prefetch_factor")
        return DataLoader(
            rows,
            batch_size=None,
            sampler=planner,
            num_workers=self.num_workers if planner is not None else min(self.num_workers, 1),
            collate_fn=_as_it_is,
            worker_init_fn=functools.partial(_start_worker, self.worker_init_fn),
            generator=torch.Generator(),
            persistent_workers=self.persistent_workers and planner is not None,
            **{name: getattr(self, name) for name in names},
        )


def _opened(inner):
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


_OBJECTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator")


class _Planner:
    """The inner loader's sampler: the batches of the pass at hand."""

    plan: list[Any] = []

    def __iter__(self):
        return iter(self.plan)

    def __len__(self):
        return len(self.plan)


class _Rows(torch.utils.data.Dataset):
    """A map-style set, read by the batch: (indices, seeds, epoch) → batch."""

    def __init__(self, dataset, collate_fn, single):
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.single = single  # batch_size=None: an item of the set is the batch
        self.by_batch = _takes_seeds(dataset)

    def __getitem__(self, planned):
        indices, example_seeds, epoch = planned
        _tell_epoch(self.dataset, epoch)
        if self.by_batch:
            return self.dataset.__getitems__(np.asarray(indices), example_seeds)
        if get_worker_info() is not None:
            return self._read(indices, example_seeds.tolist())
        with seeds.untouched():
            return self._read(indices, example_seeds.tolist())

    def _read(self, indices, example_seeds):
        samples = []
        for index, seed in zip(indices, example_seeds):
            seeds.set_host(seed)
            samples.append(self.dataset[index])
        seeds.set_host(example_seeds[0] ^ 1)
        return self.collate_fn(samples[0] if self.single else samples)


class _Stream(IterableDataset):
    """An IterableDataset, by the batch: (examples here, everywhere, batch). Each process reads all, keeps its own."""

    def __init__(self, dataset, batch_size, drop_last, collate_fn, seed, epoch):
        self.dataset = dataset
        self.batch_size = batch_size or 1
        self.drop_last = drop_last
        self.collate_fn = collate_fn
        self.seed = seed
        self.epoch = epoch
        self.rank, self.size = processes.rank(), processes.size()

    def __iter__(self):
        _tell_epoch(self.dataset, self.epoch)
        examples, numbers = iter(self.dataset), self._seeds()
        while True:
            with seeds.untouched():
                samples: list[Any] = []
                for seed in itertools.islice(numbers, self.batch_size):
                    seeds.set_host(seed)
                    example = list(itertools.islice(examples, 1))
                    if not example:
                        break
                    samples += example
                if len(samples) < (self.batch_size if self.drop_last else 1):
                    return
                mine = samples[self.rank :: self.size]
                seeds.set_host(seed ^ 1)
                batch = self.collate_fn(mine or samples[:1])
            yield len(mine), len(samples), batch

    def _seeds(self):
        for first in itertools.count(0, 1024):
            yield from seeds.example_seeds(self.seed, self.epoch, 1024, first).tolist()


def _start_worker(worker_init_fn, worker_id):
    """What a worker does first: leave signals to its parent, which saves and ends it; then the user's own function."""
    signals.ignore()
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _as_it_is(batch):
    return batch


def _takes_seeds(dataset):
    """Whether the set reads a batch at once from (indices, seeds); torch's own protocol has the indices alone."""
    read = getattr(dataset, "__getitems__", None)
    return read is not None and len(inspect.signature(read).parameters) == 2


def _tell_epoch(dataset, epoch):
    """Tell a set that asks for it, once: which epoch it was told stands on it, since two loaders may share it."""
    if hasattr(dataset, "set_epoch") and getattr(dataset, "_told_epoch", None) != epoch:
        dataset._told_epoch = epoch
        dataset.set_epoch(epoch)
