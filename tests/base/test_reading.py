"""Streams: what each worker and process makes of one, and where a resumed run goes on in it."""

import itertools
import multiprocessing
import os

import numpy as np
import pytest
import torch
import toy
from lab import history
from torch.utils.data import IterableDataset, get_worker_info

from base import BaseDataLoader
from utils import processes

COUNT = 23


class Drawn(IterableDataset):
    """Rows that draw a number each."""

    def __iter__(self):
        for index in range(COUNT):
            yield torch.tensor([float(index), float(np.random.rand())], dtype=torch.float64)


class Placed(Drawn):
    """Says where it is, and notes which rows were read in this process."""

    def __init__(self):
        self.at, self.read = 0, []

    def __iter__(self):
        start, self.at = self.at, 0
        for index in range(start, COUNT):
            self.read.append(index)
            self.at = index + 1
            yield torch.tensor([float(index), float(np.random.rand())], dtype=torch.float64)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Long(Placed):
    def __len__(self):
        return COUNT


def transform(row):
    return torch.cat([row, torch.rand(1, dtype=torch.float64)])


def worker_of(row):
    return torch.tensor([int(row[0]), os.getpid()])


def lists(batches):
    return [batch.tolist() for batch in batches]


def loader_of(dataset, num_workers=0, **more):
    return BaseDataLoader(dataset, 4, num_workers=num_workers, **more)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("kind", [Drawn, Placed])
def test_batches_of_a_stream_do_not_depend_on_the_number_of_workers(kind, num_workers):
    alone = lists(loader_of(kind(), train_transform=transform).batches_of(2))
    assert len(alone) == 6 and lists(loader_of(kind(), num_workers, train_transform=transform).batches_of(2)) == alone


def test_workers_take_turns_to_make_the_batches_of_a_stream():
    made = lists(loader_of(Drawn(), 2, train_transform=worker_of).batches_of(1))
    processes_of = [{int(process) for _, process in batch} for batch in made]
    assert processes_of == processes_of[:2] * 3 and len(set.union(*processes_of)) == 2


class Dealt(IterableDataset):
    """As torch's documentation has it: each worker yields rows of its own."""

    def __iter__(self):
        worker = get_worker_info()
        yield from range(*((0, COUNT) if worker is None else (worker.id, COUNT, worker.num_workers)))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_set_that_deals_its_rows_to_workers_loses_none(num_workers):
    assert lists(loader_of(Dealt(), num_workers)) == [list(range(i, min(i + 4, COUNT))) for i in range(0, COUNT, 4)]


class Live(Placed):
    """Gives the state itself and not a copy of it."""

    def __iter__(self):
        self.place = {"at": 0}
        for index in range(COUNT):
            self.place["at"] = index + 1
            yield torch.tensor([index])

    def state_dict(self):
        return self.place


@pytest.mark.parametrize("num_workers", [0, 2])
def test_state_of_a_stream_is_that_behind_its_batch_although_the_stream_moves_on(num_workers):
    planned = list(loader_of(Live(), num_workers).planned(1))
    assert [one.state["at"] for one in planned[:-1]] == [4, 8, 12, 16, 20]


def test_two_passes_at_once_do_not_take_each_others_stream():
    loader = loader_of(Drawn())
    first = loader.planned(1)
    batches = [next(next(first).source).tolist() for _ in range(2)]
    list(loader.planned(1))
    batches.append(next(next(first).source).tolist())
    rest = [next(planned.source).tolist() for planned in loader.planned(1, 3)]
    assert batches + rest == lists(loader_of(Drawn()).batches_of(1))


def test_close_ends_the_workers_of_a_stream_that_is_open():
    loader = loader_of(Drawn(), 2)
    next(loader.planned(1))
    loader.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("start", [1, 3, 6])
def test_stream_that_says_where_it_is_goes_on_there(start, num_workers):
    whole = list(loader_of(Placed(), num_workers, train_transform=transform).planned(1))
    batches = [next(planned.source).tolist() for planned in whole]
    dataset = Placed()
    rest = loader_of(dataset, num_workers, train_transform=transform).planned(1, start, whole[start - 1].state)
    assert [next(planned.source).tolist() for planned in rest] == batches[start:]
    read = range(4 * start if start < 6 else 0, COUNT)  # behind the last batch there is nothing to go on with
    assert dataset.read == (list(read) if num_workers == 0 else [])


def test_stream_that_can_not_say_is_read_over_and_that_is_told(caplog):
    with caplog.at_level("INFO"):
        rest = [next(planned.source).tolist() for planned in loader_of(Drawn()).planned(1, 2)]
    assert rest == lists(loader_of(Drawn()).batches_of(1))[2:]
    assert "reading over the first 2 batches" in caplog.text


def test_pass_that_is_taken_up_where_it_was_left_is_not_read_again():
    dataset = Placed()
    loader = loader_of(dataset)
    first = list(itertools.islice(loader.planned(1), 2))
    second = list(loader.planned(1, 2))
    assert [next(planned.source).tolist() for planned in first + second] == lists(loader_of(Placed()).batches_of(1))
    assert dataset.read == list(range(COUNT))


@pytest.mark.parametrize("size", [2, 3])
def test_processes_and_workers_together_make_each_example_of_a_stream_once(monkeypatch, size):
    made = []
    for rank in range(size):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(processes, "size", lambda: size)
        for planned in loader_of(Drawn(), 2).planned(1):
            batch = next(planned.source)
            made += batch[:, 0].tolist()[: planned.here]
    assert sorted(made) == list(range(COUNT))


STREAM = """
import torch
from torch.utils.data import IterableDataset


class Placed(IterableDataset):
    read = []

    def __init__(self):
        self.at = 0

    def __iter__(self):
        start, self.at = self.at, 0
        for index in range(start, 20):
            self.read.append(index)
            self.at = index + 1
            yield torch.tensor([index + torch.rand(()).item()]), torch.tensor([float(index)])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
"""


@pytest.mark.parametrize("len_epoch", [None, 3])
def test_run_on_a_stream_that_was_stopped_inside_an_epoch_reads_on_and_ends_as_if_it_never_was(lab, module, len_epoch):
    module("placed", STREAM)
    loader = {"type": "DataLoader", "args": {"dataset": {"type": "placed.Placed", "args": {}}, "batch_size": 4}}
    trainer = {"epochs": 3, "len_epoch": len_epoch, "accumulate": 2}
    config = toy.config(lab.saved, data_loader=loader, trainer=trainer, script=[1.0] * 50)
    assert lab.train(config, "--run-id", "whole").code == 0
    trained = [x for x, train in zip(lab.probe("x"), lab.probe("train")) if train]
    lab.forget()
    assert lab.train(config, "trainer.max_steps=3", "--run-id", "broken").code == 0
    before = [x for x, train in zip(lab.probe("x"), lab.probe("train")) if train]
    lab.forget()
    done = lab.resume(lab.saved / "toy" / "broken" / "latest.pth", "trainer.max_steps=null")
    assert done.code == 0 and "reading over" not in done.out
    after = [x for x, train in zip(lab.probe("x"), lab.probe("train")) if train]
    assert before + after == trained
    numbers = [
        [(line["epoch"], line["step"], line["loss"]) for line in history(lab.saved / "toy" / name)]
        for name in ("whole", "broken")
    ]
    assert numbers[0] == numbers[1]
