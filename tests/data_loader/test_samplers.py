"""Samplers: what they draw, of which rows, and that a draw depends on seed and epoch alone."""

import math

import numpy as np
import pytest
import torch
import toy
from torch.utils.data import BatchSampler, Dataset
from torch.utils.data.distributed import DistributedSampler

from base import BaseDataLoader
from data_loader.data_loaders import DataLoader
from data_loader.samplers import BalancedSampler, WeightedFileSampler
from utils import processes
from utils.errors import ConfigError

LABELS = [0] * 60 + [2] * 25 + [1] * 10 + [7] * 5


class Labelled(Dataset):
    """Item i is i; the classes have very different shares."""

    def __init__(self, labels=LABELS):
        self.targets = labels

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return index


def loader_of(sampler, seed=0, dataset=None, **more):
    made = DataLoader(dataset or Labelled(), 8, sampler=sampler, **more)
    made.seed = seed
    return made


def rows(batches):
    return torch.cat(list(batches)).tolist()


def weights_file(folder, weights):
    path = folder / "weights.txt"
    path.write_text("".join(f"{weight}\n" for weight in weights))
    return path


@pytest.fixture(params=["balanced", "weighted"])
def make(request, tmp_path):
    """Make a sampler of each kind, over the rows of Labelled."""
    if request.param == "balanced":
        return BalancedSampler
    return lambda **more: WeightedFileSampler(weights_file(tmp_path, range(50, 50 + len(LABELS))), **more)


# --- what is drawn ---


@pytest.mark.parametrize("num_samples", [1, 4, 61, 100, 1003])
def test_every_class_is_drawn_equally_often(num_samples):
    drawn = np.array(LABELS)[list(BalancedSampler(LABELS, num_samples))]
    counts = [int((drawn == name).sum()) for name in (0, 1, 2, 7)]
    assert sum(counts) == num_samples and max(counts) - min(counts) <= 1


def test_a_row_comes_again_only_after_all_others_of_its_class():
    counts = np.bincount(list(BalancedSampler(LABELS, 203)), minlength=len(LABELS))
    for name in (0, 1, 2, 7):
        of_class = counts[np.array(LABELS) == name]
        assert of_class.max() - of_class.min() <= 1


def test_a_pass_has_as_many_draws_as_rows_where_no_one_says_how_many(make):
    loader = loader_of(make())
    assert loader.n_samples == len(rows(loader)) == len(LABELS) and len(loader) == math.ceil(len(LABELS) / 8)


def test_a_pass_has_as_many_draws_as_were_asked_for(make):
    loader = loader_of(make(num_samples=33))
    assert loader.n_samples == len(rows(loader)) == 33 and len(loader) == 5


def test_the_classes_are_mixed_within_a_pass():
    drawn = np.array(LABELS)[list(BalancedSampler(LABELS, 400))]
    assert all(len(set(drawn[start : start + 50])) == 4 for start in range(0, 400, 50))


def test_labels_may_be_words_or_a_tensor():
    for labels in (["b", "a", "b", "b"], torch.tensor([1, 0, 1, 1])):
        assert sum(row == 1 for row in BalancedSampler(labels, 100)) == 50


def test_rows_are_drawn_in_proportion_to_their_weights(tmp_path):
    weights = [0, 3, 1, 0, 6, 0]
    sampler = WeightedFileSampler(weights_file(tmp_path, weights), num_samples=100_000)
    sampler.draw_from(range(6), np.arange(6))
    shares = np.bincount(list(sampler), minlength=6) / 100_000
    expected = np.array(weights) / 10
    assert (shares[expected == 0] == 0).all()
    assert (abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / 100_000)).all()


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_weights_of_an_npy_file_are_those_of_a_text_file(tmp_path, kind):
    np.save(tmp_path / "weights.npy", np.array([1, 0, 5], kind))
    binary = WeightedFileSampler(tmp_path / "weights.npy")
    assert binary.weights.tolist() == WeightedFileSampler(weights_file(tmp_path, [1, 0, 5])).weights.tolist()


# --- of which rows ---


def test_only_rows_that_are_trained_on_are_drawn(make):
    loader = loader_of(make(num_samples=2000), validation_split=0.3)
    validated = rows(loader.split_validation())
    assert len(validated) == len(set(validated)) == 30
    assert set(rows(loader)) | set(validated) == set(range(len(LABELS)))
    assert not set(rows(loader)) & set(validated)
    assert set(loader.training_indices().tolist()).isdisjoint(validated)


def test_the_classes_of_the_training_rows_are_balanced_after_a_split():
    loader = loader_of(BalancedSampler(num_samples=400), validation_split=0.3, stratify=True)
    drawn = np.array(LABELS)[rows(loader)]
    assert [int((drawn == name).sum()) for name in (0, 1, 2, 7)] == [100] * 4


def test_the_split_that_is_written_is_that_of_the_rows(make, tmp_path):
    import json

    loader = loader_of(make(num_samples=3), validation_split=0.3)
    loader.write_split(tmp_path / "split.json")
    written = json.loads((tmp_path / "split.json").read_text())
    assert sorted(written["train"] + written["valid"]) == list(range(len(LABELS)))


# --- what the draw depends on ---


def test_a_draw_is_the_same_for_any_number_of_workers(make):
    alone, two = (rows(loader_of(make(), num_workers=n).batches_of(3)) for n in (0, 2))
    assert alone == two


def test_a_draw_is_another_in_every_epoch_and_for_every_seed(make):
    draws = [rows(loader_of(make(), seed).batches_of(epoch)) for seed, epoch in ((0, 1), (0, 2), (1, 1), (0, 1))]
    assert draws[0] == draws[3] and draws[0] != draws[1] and draws[0] != draws[2]


def test_a_draw_from_a_batch_on_is_the_tail_of_the_whole(make):
    whole = rows(loader_of(make()).batches_of(2))
    torch.rand(7)
    assert rows(loader_of(make()).batches_of(2, start=5)) == whole[40:]


def test_processes_deal_one_draw_among_them(make, monkeypatch):
    whole, parts = list(loader_of(make()).batches_of(1)), []
    for rank in range(3):
        monkeypatch.setattr(processes, "size", lambda: 3)
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        parts.append([next(planned.source)[: planned.here] for planned in loader_of(make()).planned(1)])
    for i, batch in enumerate(whole):
        assert [batch[rank::3].tolist() for rank in range(3)] == [part[i].tolist() for part in parts]


# --- mistakes ---


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1\n2\n", "2 weights for 100 rows"),
        ("1\n-2\n", r"weight 2 is -2\.0"),
        ("nan\n", "weight 1 is nan"),
        ("inf\n", "weight 1 is inf"),
        ("0\n0\n", "no weight above 0"),
        ("", "no weight above 0"),
        ("weight\n1\n", "could not convert .*'weight'.*number a line"),
        ("1,2\n3,4\n", "could not convert .*'1,2'"),
    ],
)
def test_a_file_without_a_weight_for_each_row_is_a_config_error(tmp_path, text, why):
    path = tmp_path / "weights.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^(path|sampler): .*weights\.csv.*{why}"):
        loader_of(WeightedFileSampler(path))


@pytest.mark.parametrize("array", [np.ones((3, 1)), np.array(["a"]), np.array([{}])], ids=["2d", "text", "object"])
def test_an_npy_file_without_numbers_in_a_row_is_a_config_error(tmp_path, array):
    np.save(tmp_path / "weights.npy", array)
    with pytest.raises(ConfigError, match=r"^path: .*weights\.npy"):
        WeightedFileSampler(tmp_path / "weights.npy")


def test_weights_that_are_all_in_the_validation_rows_are_a_config_error(tmp_path):
    validated = DataLoader(Labelled(), validation_split=0.3).valid_sampler
    path = weights_file(tmp_path, [int(row in validated) for row in range(len(LABELS))])
    with pytest.raises(ConfigError, match=r"^sampler: .*all 70 rows that are trained on have the weight 0"):
        loader_of(WeightedFileSampler(path), validation_split=0.3)


def test_a_missing_weights_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^path: .*absent\.txt.*No such file"):
        WeightedFileSampler(tmp_path / "absent.txt")


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "10"])
def test_a_number_of_draws_that_is_none_is_a_config_error(make, count):
    with pytest.raises(ConfigError, match=r"^num_samples: .*a whole number from 1 on"):
        make(num_samples=count)


def test_a_set_without_labels_can_not_be_balanced():
    with pytest.raises(ConfigError, match=r"^sampler: a range has neither 'targets' nor 'labels'"):
        loader_of(BalancedSampler(), dataset=range(5))


def test_labels_of_another_set_are_a_config_error():
    with pytest.raises(ConfigError, match=r"^sampler: labels of shape \(3,\) for a set of 100 rows"):
        loader_of(BalancedSampler([0, 1, 1]))


def test_a_second_order_beside_the_samplers_is_a_config_error(make):
    with pytest.raises(ConfigError, match=r"^shuffle: the sampler decides the order"):
        loader_of(make(), shuffle=True)


@pytest.mark.parametrize(
    ("sampler", "rows"),
    [
        ({"type": "torch.utils.data.SequentialSampler"}, list(range(6))),
        (
            {"type": "torch.utils.data.DistributedSampler", "args": {"num_replicas": 2, "rank": 1, "shuffle": False}},
            [1, 3, 5],
        ),
        ({"type": "torch.utils.data.RandomSampler", "args": {"num_samples": 3}}, None),
    ],
    ids=lambda value: value["type"].rpartition(".")[2] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_sampler_of_torch_is_made_by_config_of_the_set_beside_it(lab, sampler, rows, in_batches):
    how = {"sampler": sampler, "batch_size": 2}
    if in_batches:
        how = {"batch_sampler": {"type": "torch.utils.data.BatchSampler", "args": {**how, "drop_last": False}}}
    data = {"type": "DataLoader", "args": {**how, "dataset": {"type": "toy.Rows", "args": {"n": 6}}}}
    config = toy.config(lab.saved, data_loader=data, trainer={"epochs": 1})
    assert lab.train(config).code == 0
    read = [int(x) for batch, train in zip(lab.probe("x"), lab.probe("train")) if train for x in batch]
    assert read == rows if rows else len(set(read)) == 3


def test_a_sampler_by_config_in_a_loader_without_a_set_beside_it_is_told_what_it_lacks(lab):
    args = {"data_dir": "data/mnist10k", "batch_size": 4, "shuffle": False}
    sampler = {"type": "torch.utils.data.SequentialSampler"}
    done = lab.train(
        toy.config(lab.saved, data_loader={"type": "MnistDataLoader", "args": {**args, "sampler": sampler}})
    )
    assert done.code == 2 and "data_loader.args.sampler.args.data_source: missing." in done.err


def test_rows_that_a_distributed_sampler_in_a_batch_sampler_dealt_are_not_dealt_again(monkeypatch):
    monkeypatch.setattr(processes, "size", lambda: 2)
    monkeypatch.setattr(processes, "rank", lambda: 1)
    dealt = DistributedSampler(range(8), num_replicas=2, rank=1, shuffle=False)
    loader = BaseDataLoader(torch.arange(8.0), batch_sampler=BatchSampler(dealt, 2, False))
    assert [batch.tolist() for batch in loader] == [[1, 3], [5, 7]]
