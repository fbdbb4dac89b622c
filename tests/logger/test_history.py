"""metrics.jsonl: what is written, cut and read."""

import json
import math

import pytest
import torch

from logger import History


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "metrics.jsonl")


def with_lines(history, *lines):
    for epoch, step, *partial in lines:
        history.append({"epoch": epoch, "step": step, "loss": 0.5} | ({"partial": True} if partial else {}))
    return history


def epochs_and_steps(history):
    return [(line["epoch"], line["step"]) for line in history.read()]


def test_what_was_appended_is_read_in_order(history):
    history.append({"epoch": 1, "step": 10, "loss": 0.1})
    history.append({"epoch": 2, "step": 20, "loss": 1 / 3})
    assert history.read() == [{"epoch": 1, "step": 10, "loss": 0.1}, {"epoch": 2, "step": 20, "loss": 1 / 3}]


def test_each_line_is_one_json_object(history):
    with_lines(history, (1, 10), (2, 20))
    assert [json.loads(line)["epoch"] for line in history.path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null(history, value):
    history.append({"epoch": 1, "step": 1, "val_loss": value})
    assert history.path.read_text().strip() == '{"epoch": 1, "step": 1, "val_loss": null}'


def test_a_tensors_number_is_written_as_a_number(history):
    history.append({"epoch": 1, "step": 1, "loss": torch.tensor(0.5)})
    assert history.read()[0]["loss"] == 0.5


def test_without_a_file_there_are_no_lines(history):
    assert history.read() == []


def test_a_last_line_that_a_kill_cut_short_is_left_out(history):
    with_lines(history, (1, 10))
    with open(history.path, "a") as file:
        file.write('{"epoch": 2, "st')
    assert epochs_and_steps(history) == [(1, 10)]


def test_after_a_cut_the_next_line_does_not_join_one_that_a_kill_left(history):
    with_lines(history, (1, 10))
    with open(history.path, "a") as file:
        file.write('{"epoch": 2, "st')
    history.cut(1, 10)
    with_lines(history, (2, 20))
    assert epochs_and_steps(history) == [(1, 10), (2, 20)]


def test_a_cut_drops_the_epochs_that_a_resume_trains_again(history):
    with_lines(history, (1, 10), (2, 20), (3, 30)).cut(2, 20)
    assert epochs_and_steps(history) == [(1, 10), (2, 20)]


def test_a_cut_inside_an_epoch_keeps_its_validations_up_to_there(history):
    with_lines(history, (1, 10), (2, 13), (2, 16), (2, 20)).cut(1, 16)
    assert epochs_and_steps(history) == [(1, 10), (2, 13), (2, 16)]


def test_a_cut_drops_the_line_of_a_part_of_an_epoch(history):
    with_lines(history, (1, 10), (2, 15, "partial")).cut(1, 15)
    assert epochs_and_steps(history) == [(1, 10)]


def test_a_cut_without_a_file_makes_none(history):
    history.cut(1, 10)
    assert not history.path.exists()
