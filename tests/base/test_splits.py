"""Which rows train and which validate: shares of classes, whole groups, folds that together are everything."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
import toy
from torch.utils.data import Dataset, SequentialSampler, Subset

from base import BaseDataLoader
from extras.splits import labels_of
from utils.errors import ConfigError

COUNT = 103


class Labelled(Dataset):
    """Class 0 has a tenth of the examples, class 1 a third, class 2 the rest; seven patients."""

    def __init__(self, count=COUNT):
        draw = np.random.RandomState(3)
        self.targets = draw.choice(3, count, p=[0.1, 0.3, 0.6])
        self.patient = draw.randint(7, size=count)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.tensor([float(index)]), int(self.targets[index])


class NoAttribute(Labelled):
    def __init__(self):
        super().__init__()
        self.kept = self.targets
        del self.targets

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor(self.kept[index])


def parts(dataset=None, **how):
    """(training rows, validation rows) of a loader."""
    loader = BaseDataLoader(dataset or Labelled(), 8, **how)
    return loader.training_indices().tolist(), list(loader.valid_sampler)


def assert_a_partition(train, valid, count=COUNT):
    assert sorted(train + valid) == list(range(count))


@pytest.mark.parametrize("split", [0.2, 0.5, 10, 50])
def test_both_sides_of_a_stratified_split_have_the_classes_shares_to_one_example(split):
    targets = Labelled().targets
    train, valid = parts(validation_split=split, stratify=True)
    assert_a_partition(train, valid)
    size = split if isinstance(split, int) else int(COUNT * split)
    assert len(valid) == size
    for label, count in Counter(targets.tolist()).items():
        assert abs(np.sum(targets[valid] == label) - size * count / COUNT) <= 1


def test_a_plain_split_of_the_same_set_has_not():
    targets = Labelled().targets
    _, valid = parts(validation_split=20)
    expected = {label: 20 * count / COUNT for label, count in Counter(targets.tolist()).items()}
    assert any(abs(np.sum(targets[valid] == label) - share) > 1 for label, share in expected.items())


@pytest.mark.parametrize("how", [{}, {"stratify": True}, {"group_by": "patient"}], ids=str)
def test_folds_together_validate_every_example_once(how):
    every = [parts(folds=5, fold=fold, **how) for fold in range(5)]
    for train, valid in every:
        assert_a_partition(train, valid)
    assert sorted(row for _, valid in every for row in valid) == list(range(COUNT))


@pytest.mark.parametrize("how", [{"validation_split": 0.3}, {"folds": 3, "fold": 1}], ids=str)
def test_examples_of_one_group_are_on_one_side(how):
    patient = Labelled().patient
    train, valid = parts(group_by="patient", **how)
    assert not set(patient[train]) & set(patient[valid]) and valid and train


def test_a_grouped_split_is_as_near_its_share_as_whole_groups_go():
    sizes = list(Counter(Labelled().patient.tolist()).values())
    _, valid = parts(group_by="patient", validation_split=0.3)
    assert abs(len(valid) - 0.3 * COUNT) <= max(sizes) / 2 + 1


@pytest.mark.parametrize("how", [{"stratify": True, "validation_split": 9}, {"folds": 4, "fold": 2}], ids=str)
def test_a_split_depends_on_no_seed(how):
    before = parts(**how)
    np.random.seed(77)
    torch.manual_seed(77)
    assert parts(**how) == before


def test_labels_are_found_on_the_set_in_a_subset_of_it_or_in_its_examples():
    whole = Labelled()
    assert labels_of(whole).tolist() == whole.targets.tolist() == labels_of(NoAttribute()).tolist()
    assert labels_of(Subset(whole, [5, 3, 3])).tolist() == whole.targets[[5, 3, 3]].tolist()


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"folds": 5, "fold": 5}, "fold: 5 of 5"),
        ({"folds": 1}, "fold: 0 of 1"),
        ({"fold": 2, "validation_split": 0.1}, "fold: 2, but of how many"),
        ({"folds": 2, "group_by": "doctor"}, "group_by: the set has no 'doctor'"),
        ({"folds": 2, "group_by": "patient", "stratify": True}, "stratify: "),
        ({"validation_split": 0.001, "stratify": True}, "validation_split: "),
        ({"validation_split": "a"}, 'validation_split: "a"'),
        ({"validation_split": 0.1, "sampler": SequentialSampler(range(3))}, "validation_split: "),
        ({"shuffle": True, "sampler": SequentialSampler(range(3))}, "shuffle: "),
    ],
    ids=str,
)
def test_a_split_that_can_not_be_is_refused_by_its_argument(how, named):
    with pytest.raises(ConfigError) as caught:
        BaseDataLoader(Labelled(), 8, **how)
    assert str(caught.value).startswith(named)


def test_a_class_too_small_to_be_on_both_sides_is_named():
    dataset = Labelled()
    dataset.targets[:] = 1
    dataset.targets[4] = 9
    with pytest.raises(ConfigError, match="class 9 has 1 example"):
        BaseDataLoader(dataset, 8, validation_split=0.2, stratify=True)


class Backwards:
    """A sampler that is told which rows train."""

    def draw_from(self, dataset, rows):
        self.rows = rows.tolist()[::-1]

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


def test_a_sampler_is_told_the_rows_that_train():
    loader = BaseDataLoader(Labelled(), 8, validation_split=13, sampler=Backwards())
    plain = BaseDataLoader(Labelled(), 8, validation_split=13)
    read = [int(row) for inputs, _ in loader for row in inputs]
    assert read == plain.training_indices().tolist()[::-1] and loader.n_samples == COUNT - 13
    assert loader.training_indices().tolist() == plain.training_indices().tolist()
    assert [int(row) for inputs, _ in loader.split_validation() for row in inputs] == list(plain.valid_sampler)


def test_without_a_split_a_sampler_is_told_all_rows():
    loader = BaseDataLoader(Labelled(), 8, sampler=Backwards())
    assert [int(row) for inputs, _ in loader for row in inputs] == list(range(COUNT))[::-1]


# Transforms of the two sides.


def plus_100(inputs):
    return inputs + 100


def noise(inputs):
    return inputs + torch.rand(())


def inputs_of(loader):
    return [float(row) for inputs, _ in loader for row in inputs]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_has_its_transform_and_validation_its_own(num_workers):
    how = {"train_transform": noise, "eval_transform": plus_100, "validation_split": 20, "num_workers": num_workers}
    loader = BaseDataLoader(Labelled(), 8, **how)
    valid = loader.split_validation()
    assert inputs_of(valid) == [row + 100 for row in loader.valid_sampler]
    trained = inputs_of(loader.batches_of(1))
    assert all(0 < value % 1 < 1 and value < 100 + 20 for value in trained)
    assert sorted(map(int, trained)) == sorted(loader.training_indices().tolist())


def test_validation_never_sees_the_training_transform():
    loader = BaseDataLoader(Labelled(), 8, train_transform=plus_100, validation_split=20)
    assert inputs_of(loader.split_validation()) == list(loader.valid_sampler)


def test_a_random_transform_draws_alike_with_and_without_workers():
    one, two = (BaseDataLoader(Labelled(), 8, train_transform=noise, num_workers=n) for n in (0, 2))
    assert inputs_of(one.batches_of(3)) == inputs_of(two.batches_of(3)) != inputs_of(one.batches_of(4))


def test_an_example_that_is_no_tuple_is_transformed_whole():
    loader = BaseDataLoader(torch.arange(4.0), 2, train_transform=plus_100)
    assert [batch.tolist() for batch in loader] == [[100, 101], [102, 103]]


# In a run.


def test_folds_are_trained_in_turn_and_their_means_are_told(lab):
    config = toy.config(lab.saved, valid_data_loader=None, trainer={"epochs": 1}, metrics=["toy.mean_target"])
    done = lab.train(config, "--folds", 4, "--run-id", "cv")
    assert done.code == 0
    found = json.loads((lab.saved / "toy" / "cv-folds.json").read_text())
    means = [log["val_mean_target"] for log in found["folds"]]
    assert sorted(means) != [means[0]] * 4 and found["val_mean_target"][0] == pytest.approx(3.5)  # of 0 … 7
    assert found["val_mean_target"][1] == pytest.approx(np.std(means, ddof=1))
    assert f"val_mean_target          3.5000 ± {np.std(means, ddof=1):.4f} over 4 folds" in done.out
    splits = [json.loads((folder / "split.json").read_text())["valid"] for folder in lab.runs()]
    assert sorted(row for rows in splits for row in rows) == list(range(8))


def test_a_fold_is_resumed_with_the_same_rows(lab):
    config = toy.config(lab.saved, valid_data_loader=None, trainer={"epochs": 1})
    config["data_loader"]["args"] |= {"folds": 4, "fold": 3}
    assert lab.train(config).code == 0
    before = json.loads((lab.run / "split.json").read_text())
    lab.forget()
    assert lab.resume(lab.run / "latest.pth", "trainer.epochs=2").code == 0
    trained = {int(x) for batch, train in zip(lab.probe("x"), lab.probe("train")) if train for x in batch}
    assert trained == set(before["train"]) and json.loads((lab.run / "split.json").read_text()) == before
