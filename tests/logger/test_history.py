"""metrics.jsonl: what is written, cut and read."""

import json
import math

import pytest
import torch

from logger import append_numbers, cut_numbers


@pytest.fixture
def history(tmp_path):
    return tmp_path / "metrics.jsonl"


def with_epochs(history, *epochs):
    for epoch in epochs:
        append_numbers(history, {"epoch": epoch, "step": 10 * epoch, "loss": 0.5})
    return history


def epochs_in(path):
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_each_line_is_one_json_object(history):
    assert epochs_in(with_epochs(history, 1, 2)) == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null(history, value):
    append_numbers(history, {"epoch": 1, "step": 1, "val_loss": value})
    assert history.read_text().strip() == '{"epoch": 1, "step": 1, "val_loss": null}'


def test_a_cut_keeps_the_lines_that_were_there_at_the_checkpoint(history):
    cut_numbers(with_epochs(history, 1, 2, 3), 2)
    assert epochs_in(history) == [1, 2]


def test_after_a_cut_the_next_line_does_not_join_one_that_a_kill_left(history):
    with_epochs(history, 1)
    with open(history, "a") as file:
        file.write('{"epoch": 2, "st')
    cut_numbers(history, 1)
    assert epochs_in(with_epochs(history, 2)) == [1, 2]


def test_a_cut_of_another_runs_lines_copies_them_and_leaves_that_run_alone(history, tmp_path):
    other = with_epochs(tmp_path / "other.jsonl", 1, 2, 3)
    cut_numbers(history, 2, other)
    assert epochs_in(history) == [1, 2] and epochs_in(other) == [1, 2, 3]


def test_a_cut_without_a_file_makes_none(history):
    cut_numbers(history, 1)
    assert not history.exists()


def test_a_tensors_number_is_written_as_a_number(history):
    append_numbers(history, {"epoch": 1, "step": 1, "loss": torch.tensor(0.5)})
    assert json.loads(history.read_text())["loss"] == 0.5
