"""Tables from CSV files: what is read of them, and that all that is learned comes from the training rows."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from data_loader.tables import Table, TabularDataLoader
from utils.errors import ConfigError

TITANIC = Path(__file__).resolve().parents[2] / "data" / "titanic" / "titanic.csv"
COLUMNS = {"target": "survived", "numeric": ["age", "sibsp", "parch"], "categorical": ["pclass", "sex"]}
SMALL = "kind,size,colour,noise\na,1,red,9\nb,,blue,9\na,3,red,9\nb,5,,9\n"


@pytest.fixture
def file(tmp_path):
    """A function: the path of a file with this text."""

    def write(text, encoding="utf-8"):
        (tmp_path / "table.csv").write_text(text, encoding=encoding)
        return tmp_path / "table.csv"

    return write


def small(path, **more):
    return Table(path, "kind", **{"numeric": ["size"], "categorical": ["colour"], **more})


def encoded(table, rows):
    table.encode(table.learn(np.asarray(rows)))
    features, targets = table.__getitems__(np.arange(len(table)), None)
    return features.numpy(), targets.tolist()


def titanic(**more):
    return TabularDataLoader(TITANIC, batch_size=64, **COLUMNS, **more)


def everything(loader):
    """((N, F), (N,)) of a loader, row by row of its set."""
    return loader.dataset.__getitems__(np.arange(len(loader.dataset)), None)


# --- how features are made ---


def test_features_are_standardised_numbers_a_mark_of_missing_ones_and_a_column_a_word(file):
    features, targets = encoded(small(file(SMALL)), [0, 1, 2, 3])
    size = np.array([1, 3, 3, 5])  # the median of 1, 3, 5 in the gap
    expected = [(size - 3) / size.std(), [0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 0]]  # "", blue, red
    np.testing.assert_allclose(features, np.transpose(expected), rtol=1e-6)
    assert features.dtype == np.float32 and targets == [0, 1, 0, 1]


def test_what_is_learned_comes_from_the_rows_that_are_given(file):
    learned = small(file(SMALL)).learn(np.array([0, 2]))
    assert learned == {
        "numeric": {"size": {"median": 2.0, "mean": 2.0, "std": 1.0, "has_missing": False}},
        "categorical": {"colour": ["red"]},
        "classes": ["a"],
    }


def test_a_word_that_is_new_has_no_feature_and_a_number_missing_anew_no_mark(file):
    table = small(file(SMALL + "a,7,green,9\n"))
    table.names[:] = "a"
    features, _ = encoded(table, [0, 2])
    np.testing.assert_allclose(features, [[-1, 1], [0, 0], [1, 1], [3, 0], [5, 0]])


def test_a_column_that_never_changes_is_no_division_by_zero(file):
    features, _ = encoded(small(file(SMALL), numeric=["noise"], categorical=[]), [0, 1, 2, 3])
    assert features.tolist() == [[0.0]] * 4


def test_classes_that_are_numbers_are_in_their_order(file):
    path = file("kind,size\n" + "".join(f"{kind},1\n" for kind in (10, 9, 2)))
    assert small(path, categorical=[]).learn(np.arange(3))["classes"] == ["2", "9", "10"]


def test_a_byte_order_mark_and_quoted_line_ends_are_read(file):
    table = small(file('kind,size,colour\n"a\nb",1,"x, y"\n', "utf-8-sig"))
    assert table.names.tolist() == ["a\nb"] and table.words["colour"].tolist() == ["x, y"]


# --- the parts ---


def test_training_and_test_part_are_the_whole_file_and_share_no_row():
    with open(TITANIC, encoding="utf-8", newline="") as opened:
        names = [row["name"] for row in csv.DictReader(opened)]
    loaders = [TabularDataLoader(TITANIC, "survived", 8, [], ["name"], training=training) for training in (True, False)]
    parts = [loader.dataset.words["name"].tolist() for loader in loaders]
    assert sorted(parts[0] + parts[1]) == sorted(names) and not set(parts[0]) & set(parts[1])
    assert len(parts[1]) == 261  # a fifth of 1,309


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_the_test_part_has_its_share_of_every_class(share):
    whole = np.bincount(Table(TITANIC, "survived", ["age"]).labels)
    test = np.bincount(titanic(training=False, test_split=share).dataset.labels)
    assert (abs(test - share * whole) < 1).all()


def test_the_test_part_is_the_same_whatever_was_drawn_before():
    first = titanic(training=False).dataset.numbers["age"]
    np.random.rand(5)
    torch.rand(5)
    np.testing.assert_array_equal(first, titanic(training=False).dataset.numbers["age"])


def test_without_a_test_part_either_is_the_whole_file():
    assert [len(titanic(training=training, test_split=0).dataset) for training in (True, False)] == [1309, 1309]


# --- nothing of the validation or test part is learned ---


def test_statistics_are_those_of_the_training_rows_by_hand():
    loader = titanic(validation_split=0.2, stratify=True)
    rows = loader.training_indices()
    assert sorted([*rows.tolist(), *loader.valid_sampler]) == list(range(1048)) and len(rows) < 850
    age = loader.dataset.numbers["age"][rows]
    filled = np.where(np.isnan(age), np.nanmedian(age), age)
    known = {"median": np.nanmedian(age), "mean": filled.mean(), "std": filled.std(), "has_missing": True}
    assert loader.state_dict()["numeric"]["age"] == pytest.approx(known)
    whole = Table(TITANIC, "survived", ["age"]).learn(np.arange(1309))["numeric"]["age"]
    assert whole != pytest.approx(known)


def test_training_features_have_mean_zero_and_deviation_one():
    loader = titanic(validation_split=0.2)
    features = everything(loader)[0][loader.training_indices()].double()
    columns = [0, 2, 3]  # age, sibsp, parch
    torch.testing.assert_close(features[:, columns].mean(dim=0), torch.zeros(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(features[:, columns].std(dim=0, correction=0), torch.ones(3).double(), rtol=0, atol=1e-6)


def test_validation_and_test_rows_are_made_by_the_training_rows_statistics():
    loader, test = titanic(validation_split=0.2), titanic(training=False, shuffle=False)
    test.load_state_dict(loader.state_dict())
    known = loader.state_dict()["numeric"]["age"]
    for other, rows in ((loader.split_validation(), loader.valid_sampler), (test, range(261))):
        age = other.dataset.numbers["age"][list(rows)]
        expected = (np.where(np.isnan(age), known["median"], age) - known["mean"]) / known["std"]
        read = torch.cat([features for features, _ in other.batches_of(1)])[:, 0]
        np.testing.assert_allclose(read.numpy(), expected.astype(np.float32), rtol=1e-6)


def test_a_test_part_knows_its_features_once_it_was_told():
    loader, test = titanic(), titanic(training=False)
    assert not hasattr(test, "num_features")
    with pytest.raises(RuntimeError, match="load_state_dict tells"):
        test.dataset[0]
    test.load_state_dict(loader.state_dict())
    assert test.num_features == loader.num_features == everything(test)[0].shape[1] == 9  # 3 + 1 mark + 3 + 2
    assert test.num_classes == 2 and test.class_names == ["0", "1"]


def test_the_state_is_of_plain_values():
    def is_plain(value):
        if isinstance(value, dict):
            return all(type(name) is str and is_plain(inner) for name, inner in value.items())
        return all(map(is_plain, value)) if type(value) is list else type(value) in (str, float, bool)

    assert is_plain(titanic().state_dict())


def test_a_class_that_was_not_trained_on_is_a_config_error(file):
    table = small(file(SMALL))
    with pytest.raises(ConfigError, match=r'^target: "b" is no class of training, of \["a"\]'):
        table.encode(table.learn(np.array([0, 2])))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_any_number_of_workers_are_rows_of_the_table(num_workers):
    loader = titanic(validation_split=0.2, num_workers=num_workers)
    features, targets = (torch.cat(column) for column in zip(*loader.batches_of(2)))
    alone = titanic(validation_split=0.2)
    order = [i for batch in alone._batches(2) for i in batch]
    assert torch.equal(features, everything(alone)[0][order]) and torch.equal(targets, everything(alone)[1][order])


# --- mistakes ---


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        (SMALL, {"numeric": ["sise"]}, r"^numeric: no column 'sise' in .*table\.csv\. Did you mean 'size'\?"),
        (SMALL, {"categorical": ["kind"]}, "^target: 'kind' stands twice"),
        (SMALL, {"numeric": [], "categorical": []}, "^numeric: no column to predict from"),
        (SMALL, {"numeric": ["colour"]}, "^target: 'colour' stands twice"),
        (SMALL, {"numeric": ["colour"], "categorical": []}, '^numeric: .*line 2: colour is "red", no number'),
        (SMALL + "a,inf,red,9\n", {}, '^numeric: .*line 6: size is "inf", no number'),
        (SMALL + ",1,red,9\n", {}, "^target: .*line 6: no kind"),
        (SMALL + "a,1,red\n", {}, "^data_path: .*line 6: not 4 cells"),
        (SMALL + "a,1,red,9,9\n", {}, "^data_path: .*line 6: not 4 cells"),
        ("kind,size,colour\n", {}, "^data_path: .*has no row"),
        ("", {}, "no column 'kind'"),
        (SMALL + 'a,1,"red', {}, "^data_path: .*no CSV file"),
    ],
)
def test_a_table_that_does_not_fit_is_a_config_error_that_says_where(file, text, more, why):
    with pytest.raises(ConfigError, match=why):
        small(file(text), **more)


def test_a_file_that_is_absent_or_no_text_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^data_path: .*absent\.csv: .*No such file"):
        small(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"kind,size\n\xff,1\n")
    with pytest.raises(ConfigError, match=r"^data_path: .*binary\.csv: no CSV file in UTF-8"):
        small(tmp_path / "binary.csv")


@pytest.mark.parametrize("share", [1, 1.5, -0.1])
def test_a_share_that_is_none_is_a_config_error(share):
    with pytest.raises(ConfigError, match=r"^test_split: "):
        titanic(test_split=share)
