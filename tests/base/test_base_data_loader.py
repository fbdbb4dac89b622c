"""The stream of batches is a function of (seed, epoch, position), and of nothing else."""

import copy
import itertools
import json
import os
import random
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset

from base import BaseDataLoader
from utils import processes, seeds
from utils.errors import ConfigError


class Drawing(Dataset):
    """Examples that draw from each generator; it notes which rows this process has read."""

    def __init__(self, count=20):
        self.count = count
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor([index, torch.rand(()), np.random.rand(), random.random()], dtype=torch.float64)


class ByBatch(Dataset):
    """Reads a batch at once and draws from the examples' seeds."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError("is read by the batch")

    def __getitems__(self, indices, seeds):
        draws = [np.random.Generator(np.random.PCG64(int(seed))).random() for seed in seeds]
        return torch.from_numpy(indices), torch.tensor(draws, dtype=torch.float64)


class TorchsProtocol(Dataset):
    """torch's own batched reading knows no seeds, so its examples are read one by one."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.rand(())

    def __getitems__(self, indices):
        raise AssertionError("would not draw per example")


class KnowsEpoch(Dataset):
    """Every example is the pass that the set was last told of."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.epoch


class InWorker(Dataset):
    """Every example is how its process acts on the two signals."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return [handler == signal.SIG_IGN for handler in handlers]


class Process(Dataset):
    """Every example is the number of the process that read it, and a mark that a worker_init_fn may leave."""

    mark = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return os.getpid(), Process.mark


class Stream(IterableDataset):
    """Numbers from 0, each with a draw; every worker of it would give all of them."""

    def __init__(self, count=10):
        self.count = count

    def __iter__(self):
        for i in range(self.count):
            yield torch.tensor([i, torch.rand(()), random.random()], dtype=torch.float64)


class LongStream(Stream):
    """A stream that knows its length."""

    def __len__(self):
        return self.count


class ShuffledStream(IterableDataset):
    """Its order is drawn, as that of a shuffling stream is."""

    def __iter__(self):
        yield from torch.randperm(20)


class EndlessStream(IterableDataset):
    def __iter__(self):
        yield from (torch.tensor(i) for i in itertools.count())


def leave_mark(worker_id):
    Process.mark = 1 + worker_id


def as_list(samples):
    return samples


def loader_of(dataset=None, batch_size=4, shuffle=True, seed=0, **more):
    made = BaseDataLoader(dataset if dataset is not None else Drawing(), batch_size, shuffle, **more)
    made.seed = seed
    return made


def rows(batches):
    return torch.cat(list(batches)).tolist()


def disturb():
    torch.rand(7)
    np.random.rand(5)
    random.random()


# --- what the stream depends on ---


@pytest.mark.parametrize("dataset", [Drawing(), Stream(20)], ids=["rows", "a stream"])
def test_two_workers_give_the_batches_of_none(dataset):
    alone, two = (rows(loader_of(dataset, shuffle=False, num_workers=n).batches_of(3)) for n in (0, 2))
    assert alone == two


def test_two_workers_shuffle_like_none():
    alone, two = (rows(loader_of(num_workers=n).batches_of(3)) for n in (0, 2))
    assert alone == two


@pytest.mark.parametrize("dataset", [Drawing(), Stream(20)], ids=["rows", "a stream"])
def test_what_others_draw_between_batches_changes_none(dataset):
    disturbed = []
    for batch in loader_of(dataset, shuffle=False).batches_of(1):
        disturbed.append(batch)
        disturb()
    assert rows(disturbed) == rows(loader_of(dataset, shuffle=False).batches_of(1))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [Drawing(), Stream(20)], ids=["rows", "a stream"])
def test_reading_a_pass_leaves_the_main_processs_generators_where_they_were(dataset, num_workers):
    before = seeds.state()
    rows(loader_of(dataset, shuffle=isinstance(dataset, Drawing), num_workers=num_workers).batches_of(1))
    after = seeds.state()
    assert torch.equal(before["torch"], after["torch"])
    assert [before["numpy"], before["python"]] == [after["numpy"], after["python"]]


def test_each_pass_has_an_order_and_draws_of_its_own():
    first, second = (loader_of().batches_of(epoch) for epoch in (1, 2))
    first, second = rows(first), rows(second)
    assert sorted(row[0] for row in first) == sorted(row[0] for row in second) == list(range(20))
    assert [row[0] for row in first] != [row[0] for row in second]
    assert not {row[1] for row in first} & {row[1] for row in second}


def test_each_seed_of_a_run_has_an_order_and_draws_of_its_own():
    first, second = (rows(loader_of(seed=seed).batches_of(1)) for seed in (0, 1))
    assert [row[0] for row in first] != [row[0] for row in second]
    assert not {row[1] for row in first} & {row[1] for row in second}


def test_each_example_draws_what_its_seed_says():
    drawn = rows(loader_of(Drawing(6), shuffle=False, seed=7).batches_of(2))
    expected = []
    for seed in seeds.example_seeds(7, 2, 6).tolist():
        numbers = np.random.RandomState(seed & 0xFFFFFFFF)
        torchs = torch.rand((), generator=torch.Generator().manual_seed(seed)).double().item()
        expected.append([torchs, numbers.rand(), random.Random(seed).random()])
    assert [row[1:] for row in drawn] == expected


def test_passes_follow_one_another_where_no_one_says_which():
    told, untold = loader_of(), loader_of()
    expected = [rows(told.batches_of(epoch)) for epoch in (1, 2, 3)]
    assert [rows(untold) for _ in range(3)] == expected


def test_the_next_pass_is_the_one_that_was_set():
    loader = loader_of()
    loader.set_epoch(5)
    assert rows(loader) == rows(loader_of().batches_of(5))


def test_a_batchs_collate_draws_alike_with_and_without_workers():
    def collate(samples):
        return torch.rand(1)

    alone, two = (rows(loader_of(num_workers=n, collate_fn=collate).batches_of(1)) for n in (0, 2))
    assert alone == two and len(set(alone)) == 5


# --- a start inside a pass ---


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_from_a_batch_on_is_the_tail_of_the_whole(num_workers):
    whole = [batch.tolist() for batch in loader_of().batches_of(2)]
    tail = [batch.tolist() for batch in loader_of(num_workers=num_workers).batches_of(2, start=3)]
    assert tail == whole[3:]


def test_a_start_inside_a_pass_loads_no_row_before_it():
    dataset = Drawing()
    tail = rows(loader_of(dataset).batches_of(1, start=3))
    assert dataset.read == [row[0] for row in tail] and len(tail) == 8


def test_a_stream_from_a_batch_on_is_the_tail_of_the_whole():
    whole = [batch.tolist() for batch in loader_of(Stream(), shuffle=False).batches_of(2)]
    tail = [batch.tolist() for batch in loader_of(Stream(), shuffle=False).batches_of(2, start=1)]
    assert tail == whole[1:]


# --- sets that read by the batch ---


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_set_that_takes_seeds_is_read_by_the_batch(num_workers):
    batches = list(loader_of(ByBatch(), num_workers=num_workers, shuffle=False, seed=3).batches_of(1))
    draws = torch.cat([batch[1] for batch in batches]).tolist()
    expected = [np.random.Generator(np.random.PCG64(int(seed))).random() for seed in seeds.example_seeds(3, 1, 10)]
    assert draws == expected and [batch[0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_torchs_own_batched_reading_is_passed_by():
    draws = torch.cat(list(loader_of(TorchsProtocol(), shuffle=False).batches_of(1))).tolist()
    expected = [
        torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
        for seed in seeds.example_seeds(0, 1, 4).tolist()
    ]
    assert draws == expected


# --- what is passed on to torch ---


def test_a_sampler_of_ones_own_is_used():
    loader = loader_of(sampler=[3, 1, 2], shuffle=False)
    assert [row[0] for row in rows(loader)] == [3, 1, 2]


@pytest.mark.parametrize("kind", [RandomSampler, torch.utils.data.SubsetRandomSampler])
def test_a_sampler_with_a_generator_of_its_own_depends_on_seed_and_pass_only(kind):
    def order(seed, epoch):
        generator = torch.Generator().manual_seed(random.getrandbits(32))
        return [
            row[0]
            for row in rows(
                loader_of(sampler=kind(range(20), generator=generator), shuffle=False, seed=seed).batches_of(epoch)
            )
        ]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2) and order(0, 1) != order(1, 1)


@pytest.mark.parametrize(
    "kept",
    [
        np.random.default_rng,
        lambda seed: np.random.Generator(np.random.MT19937(seed)),
        np.random.RandomState,
        random.Random,
    ],
    ids=["numpy's generator", "of Mersenne", "numpy's older one", "Python's"],
)
def test_a_sampler_that_keeps_a_generator_of_any_kind_depends_on_seed_and_pass_only(kept):
    class Own(SequentialSampler):
        def __init__(self, source):
            super().__init__(source)
            self.rng = kept(5)

        def __iter__(self):
            order = list(range(len(self.data_source)))
            self.rng.shuffle(order)
            return iter(order)

    def order(sampler, seed, epoch):
        loader = loader_of(sampler=sampler, shuffle=False, seed=seed)
        return [row[0] for row in rows(loader.batches_of(epoch))]

    used = Own(range(20))
    first = order(used, 0, 1)
    assert order(used, 0, 1) == first == order(Own(range(20)), 0, 1)
    assert len({tuple(order(used, seed, epoch)) for seed in (0, 1) for epoch in (1, 2)}) == 4


def test_a_sampler_is_told_the_pass():
    class Told(SequentialSampler):
        def set_epoch(self, epoch):
            self.epoch = epoch

    sampler = Told(range(20))
    rows(loader_of(sampler=sampler, shuffle=False).batches_of(4))
    assert sampler.epoch == 4


def test_a_batch_sampler_of_ones_own_is_used():
    batches = BatchSampler(SequentialSampler(range(7)), 3, drop_last=True)
    loader = BaseDataLoader(Drawing(), batch_sampler=batches)
    assert [[int(row[0]) for row in batch] for batch in loader] == [[0, 1, 2], [3, 4, 5]]


def test_without_a_batch_size_an_item_is_the_batch():
    loader = BaseDataLoader(Drawing(3), batch_size=None, collate_fn=as_list)
    assert [batch.shape for batch in loader] == [(4,), (4,), (4,)]


def test_drop_last_drops_the_last_batch():
    assert [len(batch) for batch in loader_of(Drawing(10), drop_last=True)] == [4, 4]


def test_a_loader_has_as_many_batches_as_it_says():
    loader = loader_of(Drawing(10))
    assert len(list(loader)) == len(loader) == 3


def test_a_collate_function_of_ones_own_makes_the_batch():
    assert [len(batch) for batch in loader_of(Drawing(6), collate_fn=as_list)] == [4, 2]
    assert isinstance(next(iter(loader_of(Drawing(6), collate_fn=as_list))), list)


def test_workers_begin_with_the_users_own_function():
    marks = [
        int(mark) for _, batch in loader_of(Process(), 2, num_workers=2, worker_init_fn=leave_mark) for mark in batch
    ]
    assert set(marks) == {1, 2}


def pids(loader):
    return {int(pid) for batch, _ in loader for pid in batch}


def test_persistent_workers_read_every_pass():
    loader = loader_of(Process(), 2, num_workers=2, persistent_workers=True)
    assert pids(loader) == pids(loader)


def test_other_workers_end_with_their_pass():
    loader = loader_of(Process(), 2, num_workers=2)
    assert not pids(loader) & pids(loader)


def test_workers_leave_signals_to_the_process_that_started_them():
    (batch,) = loader_of(InWorker(), 2, num_workers=1)
    assert [[bool(ignored) for ignored in column] for column in batch] == [[True, True], [True, True]]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals can't be held back here")
def test_a_signal_that_comes_before_a_worker_leaves_signals_to_its_parent_does_not_end_it(monkeypatch):
    from torch.utils.data._utils import signal_handling

    original = signal_handling._set_worker_signal_handlers

    def with_a_signal_right_behind():
        original()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(signal_handling, "_set_worker_signal_handlers", with_a_signal_right_behind)
    loader = loader_of(num_workers=2, multiprocessing_context="fork")
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_set_is_told_the_pass_where_it_is_read(num_workers, persistent):
    loader = loader_of(KnowsEpoch(), num_workers=num_workers, persistent_workers=persistent and num_workers > 0)
    assert [sorted({int(epoch) for batch in loader for epoch in batch}) for _ in range(3)] == [[1], [2], [3]]


# --- a part for validation ---


def originals_split(count, split):
    """(training rows, validation rows) as the template that this one descends from splits them."""
    generator = np.random.RandomState(0)
    indices = np.arange(count)
    generator.shuffle(indices)
    size = split if isinstance(split, int) else int(count * split)
    return np.delete(indices, np.arange(size)).tolist(), indices[:size].tolist()


def read_by(loader):
    return [int(row[0]) for row in rows(loader)]


@pytest.mark.parametrize("split", [0.25, 0.1, 7, 1])
def test_a_split_has_the_rows_that_it_always_had(split):
    training, validation = originals_split(20, split)
    loader = loader_of(validation_split=split)
    assert sorted(read_by(loader)) == sorted(training)
    assert read_by(loader.split_validation()) == validation


def test_a_split_is_the_same_for_every_seed():
    first, second = (loader_of(validation_split=0.3, seed=seed).split_validation() for seed in (0, 99))
    assert read_by(first) == read_by(second)


def test_making_a_split_leaves_numpys_generator_alone():
    before = np.random.get_state()[1].tolist()
    loader_of(validation_split=0.3)
    assert np.random.get_state()[1].tolist() == before


def test_both_parts_know_their_size():
    loader = loader_of(validation_split=0.3)
    assert (loader.n_samples, loader.split_validation().n_samples) == (14, 6)
    assert (len(loader), len(loader.split_validation())) == (4, 2)


def test_the_training_part_is_shuffled_anew_in_every_pass():
    loader = loader_of(validation_split=0.3, shuffle=False)
    assert read_by(loader.batches_of(1)) != read_by(loader.batches_of(2))


def test_validation_drops_no_last_batch_where_training_does():
    loader = loader_of(validation_split=6, drop_last=True)
    assert [len(batch) for batch in loader.split_validation()] == [4, 2]


def test_validation_reads_with_the_training_loaders_collate_function():
    loader = loader_of(validation_split=6, collate_fn=as_list)
    assert isinstance(next(iter(loader.split_validation())), list)


def test_without_a_split_there_is_no_validation_loader():
    assert loader_of().split_validation() is None


@pytest.mark.parametrize("split", [20, 21, 1.0, 1.5, 0.01, -3, -0.5])
def test_a_split_that_leaves_a_part_empty_is_a_config_error(split):
    with pytest.raises(ConfigError, match=r"^validation_split: .* of 20 examples"):
        loader_of(validation_split=split)


@pytest.mark.parametrize(
    "more", [{"sampler": [1, 2]}, {"batch_sampler": [[1, 2]], "batch_size": 1}], ids=["sampler", "batch_sampler"]
)
def test_a_split_beside_a_sampler_of_ones_own_is_a_config_error(more):
    with pytest.raises(ConfigError, match=r"^validation_split: .* can't be split; give valid_data_loader"):
        BaseDataLoader(Drawing(), validation_split=0.5, **more)


def test_a_split_of_a_stream_is_a_config_error():
    with pytest.raises(ConfigError, match=r"^validation_split: a stream"):
        loader_of(Stream(), shuffle=False, validation_split=0.5)


def test_the_rows_of_a_split_are_written_as_json(tmp_path):
    loader_of(validation_split=5).write_split(tmp_path / "split.json")
    training, validation = originals_split(20, 5)
    assert json.loads((tmp_path / "split.json").read_text()) == {"train": training, "valid": validation}


def test_a_fork_may_split_by_a_rule_of_its_own():
    class Halves(BaseDataLoader):
        def _split_sampler(self, split):
            return torch.utils.data.SubsetRandomSampler(range(10)), torch.utils.data.SubsetRandomSampler(range(10, 20))

    loader = Halves(Drawing(), 4, True, 0.5)
    assert sorted(read_by(loader)) == list(range(10))
    assert sorted(read_by(loader.split_validation())) == list(range(10, 20))


# --- the first batches alone ---


def lists(batches):
    return [batch.tolist() for batch in batches]


def first_column(batches):
    """The row numbers of each batch of Drawing or Stream."""
    return [batch[:, 0].tolist() for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [Drawing(), Stream(20)], ids=["rows", "a stream"])
def test_the_first_batches_are_those_of_pass_1_in_every_pass(dataset, num_workers):
    def make():
        return loader_of(dataset, shuffle=isinstance(dataset, Drawing), seed=3, num_workers=num_workers)

    expected = first_column(make().batches_of(1))[:2]
    first = make().first_batches(2)
    assert [first_column(first) for _ in range(3)] == [expected] * 3
    assert first_column(first.batches_of(7)) == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_first_batches_of_a_stream_that_draws_its_order_are_the_same_in_every_pass(num_workers):
    first = loader_of(ShuffledStream(), shuffle=False, num_workers=num_workers).first_batches(2)
    assert [lists(first) for _ in range(3)] == [lists(loader_of(ShuffledStream(), shuffle=False).batches_of(1))[:2]] * 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_first_batches_of_an_endless_stream_come_to_an_end(num_workers):
    first = loader_of(EndlessStream(), shuffle=False, num_workers=num_workers).first_batches(2)
    assert [lists(first) for _ in range(2)] == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2


def test_the_first_batches_of_persistent_workers_are_the_same_in_every_pass():
    loader = loader_of(num_workers=2, persistent_workers=True)
    expected = first_column(loader.batches_of(1))[:2]
    first = loader.first_batches(2)
    assert [first_column(first) for _ in range(3)] == [expected] * 3
    loader.close()
    first.close()


def test_the_first_batches_of_a_set_that_takes_seeds_are_the_same_rows():
    expected = [batch[0].tolist() for batch in loader_of(ByBatch()).batches_of(1)][:2]
    first = loader_of(ByBatch()).first_batches(2)
    assert [[batch[0].tolist() for batch in first] for _ in range(2)] == [expected] * 2


def test_the_first_batches_of_a_batch_sampler_of_ones_own_are_the_same_in_every_pass():
    def make():
        batches = BatchSampler(RandomSampler(range(20)), 3, drop_last=False)
        return BaseDataLoader(Drawing(), batch_sampler=batches)

    expected = first_column(make().batches_of(1))[:2]
    first = make().first_batches(2)
    assert [first_column(first) for _ in range(3)] == [expected] * 3 and len(first) == 2


def test_the_first_batches_without_a_batch_size_are_the_first_items():
    def make():
        return BaseDataLoader(Drawing(), batch_size=None, shuffle=True, collate_fn=as_list)

    expected = [batch[0].item() for batch in make().batches_of(1)][:3]
    first = make().first_batches(3)
    assert [[batch[0].item() for batch in first] for _ in range(2)] == [expected] * 2 and len(first) == 3


@pytest.mark.parametrize(
    "dataset", [Drawing(10), Stream(10), LongStream(10)], ids=["rows", "a stream", "a stream with a length"]
)
def test_more_first_batches_than_there_are_are_all(dataset):
    first = loader_of(dataset, shuffle=False).first_batches(99)
    assert first_column(first) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("dataset", [Drawing(10), LongStream(10)], ids=["rows", "a stream with a length"])
def test_the_first_batches_know_how_many_they_are(dataset):
    first = loader_of(dataset, shuffle=False).first_batches(2)
    assert (len(first), first.n_samples) == (2, 8)
    last = loader_of(dataset, shuffle=False).first_batches(3)
    assert (len(last), last.n_samples) == (3, 10)


def test_the_first_batches_of_a_stream_without_a_length_do_not_say_how_many_they_are():
    assert loader_of(Stream(), shuffle=False).first_batches(2).n_samples is None


def test_the_first_batches_draw_anew_in_every_pass():
    first = loader_of().first_batches(2)
    one, two = rows(first), rows(first)
    assert not {row[1] for row in one} & {row[1] for row in two}


def test_the_first_batches_are_of_the_training_part_and_have_no_part_for_validation():
    first = loader_of(validation_split=0.3).first_batches(2)
    training, _ = originals_split(20, 0.3)
    assert set(read_by(first)) <= set(training) and first.split_validation() is None


def test_the_first_batches_leave_the_loader_they_are_of_as_it_was():
    loader, untouched = loader_of(), loader_of()
    first = loader.first_batches(1)
    rows(first)
    assert rows(loader) == rows(untouched.batches_of(1))
    assert (len(loader), loader.n_samples) == (5, 20)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["none", "persistent"])
def test_the_first_batches_and_the_whole_are_read_at_once(workers):
    loader, expected = loader_of(**workers), first_column(loader_of().batches_of(1))
    rows(loader.batches_of(2))
    first = loader.first_batches(5)
    pairs = list(zip(loader.batches_of(1), first))
    assert first_column(whole for whole, _ in pairs) == first_column(batch for _, batch in pairs) == expected
    loader.close()
    first.close()


# --- streams ---


@pytest.mark.parametrize("kind", [Stream, LongStream])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_gives_each_example_once(kind, num_workers):
    loader = loader_of(kind(), shuffle=False, num_workers=num_workers)
    assert read_by(loader) == list(range(10))


def test_a_stream_keeps_its_last_short_batch_unless_it_is_to_be_dropped():
    assert [len(batch) for batch in loader_of(Stream(), shuffle=False)] == [4, 4, 2]
    assert [len(batch) for batch in loader_of(Stream(), shuffle=False, drop_last=True)] == [4, 4]


def test_a_stream_draws_anew_in_every_pass():
    loader = loader_of(Stream(), shuffle=False)
    assert rows(loader) != rows(loader)


# --- several processes ---


def plans(monkeypatch, size, make, epoch=1):
    """What each of `size` processes plans and reads: [[(here, everywhere, row numbers)]]."""
    found = []
    for rank in range(size):
        monkeypatch.setattr(processes, "size", lambda: size)
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        planned = list_of(make().planned(epoch))
        found.append(planned)
    return found


def list_of(planned):
    return [(one.here, one.everywhere, next(one.source).tolist()) for one in planned]


@pytest.mark.parametrize("size", [2, 3])
def test_processes_deal_each_batch_among_them_without_padding(monkeypatch, size):
    alone = list_of(loader_of(Drawing(10)).planned(1))
    dealt = plans(monkeypatch, size, lambda: loader_of(Drawing(10)))
    for i, (_, everywhere, batch) in enumerate(alone):
        mine = [plan[i][2][: plan[i][0]] for plan in dealt]
        assert sorted(row for part in mine for row in part) == sorted(batch)
        assert [plan[i][1] for plan in dealt] == [everywhere] * size


def test_row_j_of_a_batch_goes_to_process_j_modulo_their_number(monkeypatch):
    (_, _, batch), *_ = list_of(loader_of().planned(1))
    first, second = plans(monkeypatch, 2, loader_of)
    assert first[0][2] == batch[0::2] and second[0][2] == batch[1::2]


def test_a_process_without_a_row_reads_a_real_one_that_does_not_count(monkeypatch):
    _, second = plans(monkeypatch, 2, lambda: loader_of(Drawing(5), shuffle=False))
    here, everywhere, batch = second[-1]
    assert (here, everywhere) == (0, 1) and [row[0] for row in batch] == [4]


def test_all_processes_together_read_a_stream_once(monkeypatch):
    dealt = plans(monkeypatch, 2, lambda: loader_of(Stream(), shuffle=False))
    read = sorted(row[0] for plan in dealt for here, _, batch in plan for row in batch[:here])
    assert read == list(range(10))
    assert [sum(plan[i][0] for plan in dealt) for i in range(3)] == [plan[1] for plan in dealt[0]]


@pytest.mark.parametrize("kind", [Drawing, Stream])
def test_processes_deal_the_first_batches_among_them(monkeypatch, kind):
    def make():
        return loader_of(kind(10), shuffle=kind is Drawing).first_batches(3)

    alone = list_of(make().planned(1))
    dealt = plans(monkeypatch, 3, make)
    for i, (_, _, batch) in enumerate(alone):
        read = [row[0] for plan in dealt for row in plan[i][2][: plan[i][0]]]
        assert sorted(read) == sorted(row[0] for row in batch)
    assert [len(plan) for plan in dealt] == [3, 3, 3]


def test_what_a_distributed_sampler_has_dealt_is_not_dealt_again(monkeypatch):
    def make():
        sampler = torch.utils.data.DistributedSampler(range(20), 2, processes.rank(), shuffle=False)
        return loader_of(sampler=sampler, shuffle=False)

    first, second = plans(monkeypatch, 2, make)
    assert sorted(row[0] for plan in (first, second) for _, _, batch in plan for row in batch) == list(range(20))


# --- arguments that are no objects ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset", {"typ": "Rows"}),
        ("dataset", "Rows"),
        ("sampler", {"typ": "Rows"}),
        ("collate_fn", "as_list"),
        ("worker_init_fn", "leave_mark"),
    ],
)
def test_what_stands_for_an_object_and_is_none_is_refused_with_how_to_write_it(name, value):
    arguments = {"dataset": Drawing(), name: value}
    with pytest.raises(ConfigError) as caught:
        BaseDataLoader(**arguments)
    assert str(caught.value).startswith(f"{name}: ") and 'write {"type": NAME, "args": {}}' in str(caught.value)


# --- as torch's own ---


def test_without_draws_the_batches_are_those_of_torchs_loader():
    dataset = Subset(torch.arange(10), range(10))
    ours = [batch.tolist() for batch in BaseDataLoader(dataset, 3)]
    assert ours == [batch.tolist() for batch in torch.utils.data.DataLoader(dataset, 3)]


def test_two_passes_at_once_do_not_disturb_each_other():
    loader = loader_of()
    pairs = list(zip(loader.batches_of(1), loader.batches_of(2)))
    assert rows(first for first, _ in pairs) == rows(loader_of().batches_of(1))
    assert rows(second for _, second in pairs) == rows(loader_of().batches_of(2))


def test_what_a_loader_was_made_with_makes_another():
    loader = loader_of(drop_last=True)
    arguments = copy.copy(loader.init_kwargs)
    assert rows(BaseDataLoader(**arguments)) == rows(loader_of(drop_last=True))
