"""The loader that a fork's loaders inherit: torch's DataLoader, with batches that depend on nothing but the seed."""

import copy
import functools
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SubsetRandomSampler

from base import reading
from logger import get_logger
from utils import imports, processes, seeds, signals
from utils.errors import ArgumentError, shown

OBJECTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator")


class Planned(NamedTuple):
    """A batch that is planned and perhaps not loaded yet: `next(source)` loads it, in the order of planning."""

    here: int  # examples that count on this process; 0: the batch is a stand-in that only keeps step
    everywhere: int  # examples over all processes
    source: Iterator[Any]
    state: Any = None  # where a stream that can say so stands behind it


class BaseDataLoader(DataLoader):
    """torch's DataLoader, whose batches are a function of (seed, epoch, position).

    They don't depend on num_workers, on what validation or logging drew, or on the number of processes: each process
    gets every N-th row of a batch, without padding. `set_epoch` says which pass the next iteration is; without it,
    passes follow one another. torch, numpy and random are seeded for every example, so transforms may draw from any.

    dataset: map-style, or an IterableDataset, which every worker and process reads whole and makes its batches of. A
    set with `__getitems__(indices, seeds)`, (B,) int64 and (B,) uint64 arrays, returns the whole batch, draws per
    example from the seeds, and is not collated. batch_size: over all processes.
    validation_split: share (0 ≤ x < 1) or count of the examples that `split_validation` gives; stratify, group_by,
    folds, fold: see extras.splits; the same ones for every seed. train_transform, eval_transform: of an example's first
    item, in training and elsewhere. sampler: one that has it is told by draw_from(dataset, rows) which rows train.
    Other arguments: those of torch's DataLoader.
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
        collate_fn=None,
        *,
        train_transform=None,
        eval_transform=None,
        stratify=False,
        group_by=None,
        folds=None,
        fold=0,
        **dataloader_kwargs,
    ):
        own = {"dataset": dataset, "batch_size": batch_size, "shuffle": shuffle, "collate_fn": collate_fn}
        own |= {"num_workers": num_workers, **dataloader_kwargs}
        self.init_kwargs = own | {"train_transform": train_transform, "eval_transform": eval_transform}
        for name, value in self.init_kwargs.items():
            plain = isinstance(value, (str, int, float)) or (value is None and name == "dataset")
            if isinstance(value, dict) or (plain and (name in OBJECTS or name.endswith("_transform"))):
                raise ArgumentError(f'{name}: {shown(value)} is no object; write {{"type": NAME, "args": {{}}}}.')
        self.shuffle, self.validation_split, self.batch_idx = shuffle, validation_split, 0
        self.n_samples = len(dataset) if hasattr(dataset, "__len__") else None
        self.transform, self.eval_transform = train_transform, eval_transform
        self._how_to_split = {"stratify": stratify, "group_by": group_by, "folds": folds, "fold": fold}
        self._training_rows = range(self.n_samples or 0)
        sampler, self.valid_sampler = self._split_sampler(validation_split)
        super().__init__(**own | ({"sampler": sampler, "shuffle": False} if sampler is not None else {}))
        samplers = (self.sampler, getattr(self.batch_sampler, "sampler", None))
        self._is_dealt = any(isinstance(sampler, DistributedSampler) for sampler in samplers)
        if self._is_dealt:
            said = "a DistributedSampler is used as it is; without one, rows are dealt here, and none twice."
            get_logger("data").info(f"data     {said}")
        self._epoch = 1
        self._forget()

    def _forget(self):
        """No pass is open."""
        self._planner, self._inner = reading.Planner(), None
        self._open: Any = (None, None)  # a stream, and the (pass, batch) that it gives next

    def _split_sampler(self, split):
        """(training sampler, validation sampler) of a share or a count, the same rows whatever the run's seed."""
        given, valid = [self.init_kwargs.get(name) for name in ("sampler", "batch_sampler")], None
        draws = given[0] if hasattr(given[0], "draw_from") else None
        if self.shuffle and given != [None, None]:
            raise ArgumentError("shuffle: the sampler decides the order; leave shuffle out.")
        if split or self._how_to_split["folds"] is not None or self._how_to_split["fold"]:
            if self.n_samples is None or given not in ([None, None], [draws, None]):
                why = "a stream, or data with a sampler of its own, can't be split; give valid_data_loader instead."
                raise ArgumentError(f"validation_split: {why}")
            self._training_rows, valid = (rows.tolist() for rows in self._parts(split))
            self.shuffle, self.n_samples = False, len(self._training_rows)
        if draws is not None:
            draws.draw_from(self.init_kwargs["dataset"], np.asarray(self._training_rows))
            self.n_samples = len(draws)
            return draws, valid
        return SubsetRandomSampler(self._training_rows) if valid else None, valid

    def _parts(self, split):
        """(training rows, validation rows)."""
        count, how = self.n_samples or 0, self._how_to_split
        if not isinstance(split, (int, float)) or isinstance(split, bool):
            raise ArgumentError(f"validation_split: {shown(split)}, where a share or a count is wanted.")
        if any(how.values()):
            splits = imports.optional("extras.splits", ", ".join(how))
            return splits.split(self.init_kwargs["dataset"], count, split, **how)
        full = np.arange(count)
        np.random.RandomState(0).shuffle(full)
        size = split if isinstance(split, int) else int(count * split)
        if not 0 < size < count:
            left = f"leaves {size} to validate and {count - size} to train on"
            raise ArgumentError(f"validation_split: {shown(split)} of {count} examples {left}; give another.")
        return full[size:], full[:size]

    def training_indices(self):
        """(N,) int64: the rows of the set that are trained on, all where nothing is split off."""
        return np.asarray(getattr(self.sampler, "indices", self._training_rows))

    def split_validation(self):
        """A loader of the examples that validation_split set apart, in a fixed order; None where there is no split."""
        if self.valid_sampler is None:
            return None
        arguments = self.init_kwargs | {"shuffle": False, "drop_last": False, "sampler": self.valid_sampler}
        loader = BaseDataLoader(**arguments).evaluating()
        if hasattr(self, "load_state_dict"):  # of what the set that both read is encoded by
            loader.load_state_dict = self.load_state_dict
        loader.n_samples, loader.seed = len(self.valid_sampler), self.seed
        return loader

    def evaluating(self):
        """This loader, from here on with its eval_transform."""
        self.close()
        self.transform = self.eval_transform
        return self

    def first_batches(self, count):
        """A loader of the first `count` batches of pass 1, the same examples in every pass.

        A set's transforms still draw anew in each; a stream is read as in pass 1.
        """
        made = copy.copy(self)
        made._forget()
        made.limit = count
        if isinstance(self.dataset, IterableDataset):
            made.n_samples = self.n_samples and min(self.n_samples, count * (self.batch_size or 1))
        else:
            made.fixed, made.valid_sampler = self._batches(1)[:count], None
            made.n_samples = sum(map(len, made.fixed))
        return made

    def write_split(self, path):
        """Write the indices of a split that this loader made, {"train": […], "valid": […]}, as JSON."""
        if self.valid_sampler is not None and not path.exists():
            valid = list(getattr(self.valid_sampler, "indices", self.valid_sampler))  # without a draw
            indices = {"train": self.training_indices().tolist(), "valid": valid}
            path.write_text(json.dumps(indices, default=int), encoding="utf-8")

    def close(self):
        """End the workers that persist between passes; another pass begins new ones."""
        for source in (getattr(self._inner, "_iterator", None), self._open[0]):
            getattr(source, "_shutdown_workers", lambda: None)()
        self._forget()

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

    def planned(self, epoch, start=0, state=None):
        """Yield a Planned for each batch of a pass, from batch `start` on; state: where a stream stands there."""
        if isinstance(self.dataset, IterableDataset):
            yield from self._read_stream(epoch, start, state)
            return
        plan = self._plan(epoch)[start:]
        self._planner.plan = [rows for _, _, rows in plan]
        if self._inner is None:
            self._inner = self._loader_of(reading.Rows(self), self._planner)
        source = reading.opened(self._inner)
        for here, everywhere, _ in plan:
            yield Planned(here, everywhere, source)

    def _plan(self, epoch):
        """(examples here, everywhere, what Rows reads here) of each batch of a pass."""
        batches = self._batches(epoch)
        ends = np.cumsum([len(batch) for batch in batches])
        all_seeds = seeds.example_seeds(self.seed, epoch, int(ends[-1]) if batches else 0)
        rank, shares = (0, 1) if self._is_dealt else (processes.rank(), processes.size())
        plan, mine = [], slice(rank, None, shares)
        for batch, batch_seeds in zip(batches, np.split(all_seeds, ends[:-1])):
            read = mine if batch[mine] else slice(1)  # the first row, only to keep step
            everywhere = len(batch) * processes.size() // shares
            plan.append((len(batch[mine]), everywhere, (batch[read], batch_seeds[read], epoch)))
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
            for kept in getattr(sampler, "__dict__", {}).values():
                seeds.reseed(kept, drawn)
        with seeds.untouched():
            seeds.set_host(drawn)
            return [[i] for i in self.sampler] if self.batch_sampler is None else list(map(list, self.batch_sampler))

    def _read_stream(self, epoch, start, state):
        epoch = epoch if self.limit is None else 1
        stream, stands = self._open
        if stands != (epoch, start):
            if start and state is None:
                get_logger("data").info(f"data     reading over the first {start} batches of the stream")
            stream = reading.opened(self._loader_of(reading.Stream(self, epoch, start, state), None))
        left = None if self.limit is None else self.limit - start
        for here, everywhere, batch, behind in itertools.islice(stream, left):
            start += 1
            self._open = (stream, (epoch, start))
            yield Planned(here, everywhere, iter((batch,)), behind)
        self._open = (None, None)

    def _loader_of(self, rows, planner):
        """torch's DataLoader over whole batches, with this one's workers and a generator of its own."""
        names = ("num_workers", "pin_memory", "timeout", "multiprocessing_context", "prefetch_factor")
        return DataLoader(
            rows,
            batch_size=None,
            sampler=planner,
            collate_fn=reading.as_it_is,
            worker_init_fn=functools.partial(reading.start_worker, self.worker_init_fn),
            generator=torch.Generator(),
            persistent_workers=self.persistent_workers and planner is not None,
            **{name: getattr(self, name) for name in names},
        )
