"""Rows of files, one after the other, and from anywhere on."""

import csv
import gzip
import itertools
import json
import random

import pytest
import torch

from base import BaseDataLoader
from data_loader.streams import CsvRows
from data_loader.text import PadBatch
from utils.errors import ConfigError, Failure

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
ROWS = [[str(i), f'row {i}, "quoted"' + "\nof two lines, dé jà" * (i % 3 == 0)] for i in range(20)]


def as_it_is(row):
    return row


def number(row):
    return torch.tensor([int(row[0])]), 0


@pytest.fixture(params=["csv", "csv.gz"])
def paths(request, tmp_path):
    """Twenty rows in three files, of which the second holds none."""
    made = []
    for name, rows in (("a", ROWS[:12]), ("b", []), ("c", ROWS[12:])):
        made.append(str(tmp_path / f"{name}.{request.param}"))
        opened = gzip.open if made[-1].endswith(".gz") else open
        with opened(made[-1], "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    return made


def seeded(rows, first=0):
    """(row, where the pass then stands) of each; `random` is seeded for every one, as the loader does it."""
    for seed in itertools.count(first):
        random.seed(seed)
        row = next(rows, None)
        if row is None:
            return
        yield row, json.loads(json.dumps(rows.state_dict()))


def test_rows_come_in_the_order_of_the_files(paths):
    assert list(CsvRows(paths, as_it_is)) == ROWS
    assert list(CsvRows(paths[2], as_it_is)) == ROWS[12:]


@pytest.mark.parametrize("buffer", [0, 1, 5, 100])
def test_a_pass_goes_on_behind_any_of_its_rows(paths, buffer):
    stream = CsvRows(paths, as_it_is, buffer)
    whole = list(seeded(iter(stream)))
    assert len(whole) == 20
    for done, (_, state) in enumerate(whole, 1):
        resumed = iter(stream)
        resumed.load_state_dict(state)
        assert list(seeded(resumed, done)) == whole[done:]


def test_what_was_read_is_not_read_again(tmp_path):
    """In the place of the rows that are read stands what is no row at all."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,a\n2,b\n3,c\n")
    rows = iter(CsvRows(path.as_posix(), as_it_is))
    assert [next(rows), next(rows)] == [["1", "a"], ["2", "b"]]
    path.write_bytes(b"\xff\xff\xff\xff\xff\xff\xff\xff3,c\n")
    resumed = iter(CsvRows(path.as_posix(), as_it_is))
    resumed.load_state_dict(rows.state_dict())
    assert list(resumed) == [["3", "c"]]


def test_empty_lines_are_passed_over(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\n1,a\n\n2,b\n\n")
    assert list(CsvRows([str(tmp_path / "a.csv")], as_it_is)) == [["1", "a"], ["2", "b"]]


def test_a_state_that_was_taken_stays_what_it_was(paths):
    rows = iter(CsvRows(paths, as_it_is, 5))
    next(rows)
    state = rows.state_dict()
    before = json.dumps(state)
    list(rows)
    assert json.dumps(state) == before


def test_passes_over_one_stream_do_not_disturb_each_other(paths):
    stream = CsvRows(paths, as_it_is)
    one, other = iter(stream), iter(stream)
    assert [row for pair in zip(one, other) for row in pair] == [row for row in ROWS for _ in range(2)]


def test_a_shuffled_pass_has_every_row_once_and_none_comes_before_the_buffer_reaches_it(paths):
    random.seed(0)
    rows = list(CsvRows(paths, as_it_is, 4))
    assert rows != ROWS and sorted(rows) == sorted(ROWS)
    assert all(int(row[0]) <= place + 4 for place, row in enumerate(rows))


def numbers(paths, buffer=5, passes=1, **how):
    loader = BaseDataLoader(CsvRows(paths, number, buffer), 3, collate_fn=PadBatch(), **how)
    return [torch.cat([batch.flatten() for batch, _ in loader]).tolist() for _ in range(passes)]


@FORKS
def test_shuffled_rows_depend_on_seed_and_pass_and_not_on_workers(paths):
    first, second = numbers(paths, passes=2)
    assert first != second and sorted(first) == sorted(second) == list(range(20))
    random.seed(7)
    assert numbers(paths, passes=2) == numbers(paths, passes=2, num_workers=1) == [first, second]


def test_a_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^paths: there is no file .*none.csv"):
        CsvRows([str(tmp_path / "none.csv")], as_it_is)


def test_a_damaged_file_is_named_with_its_place(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,a\n2,\xff\n")
    rows = iter(CsvRows([str(path)], as_it_is))
    assert next(rows) == ["1", "a"]
    with pytest.raises(Failure, match=r"a\.csv, behind byte 4: "):
        next(rows)
