"""TensorBoard, with step and mode filled in, or nothing."""

import logging
import sys

import pytest
import torch

from logger import TensorboardWriter


def writer_in(folder, enabled=True):
    return TensorboardWriter(folder, logging.getLogger("test"), enabled)


def scalars(folder):
    """{tag: [(step, value)]} of what the folder's event files hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_scalar_gets_the_step_and_the_mode_that_were_set(tmp_path):
    writer = writer_in(tmp_path)
    writer.set_step(7, "valid")
    writer.add_scalar("loss", 0.5)
    writer.close()
    assert scalars(tmp_path) == {"loss/valid": [(7, 0.5)]}


def test_a_step_that_is_given_is_kept(tmp_path):
    writer = writer_in(tmp_path)
    writer.set_step(7)
    writer.add_scalar("loss", 0.5, 3)
    writer.add_scalar("loss", 0.25, global_step=4)
    writer.close()
    assert scalars(tmp_path) == {"loss/train": [(3, 0.5), (4, 0.25)]}


def test_numbers_are_written_under_their_names_as_they_are(tmp_path):
    writer = writer_in(tmp_path)
    writer.numbers({"loss": 0.5, "val_loss": 0.25}, 9)
    writer.close()
    assert scalars(tmp_path) == {"loss": [(9, 0.5)], "val_loss": [(9, 0.25)]}


def test_histograms_and_images_are_written_with_the_step(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = writer_in(tmp_path)
    writer.set_step(3)
    writer.add_histogram("weights", torch.arange(4.0))
    writer.add_image("digit", torch.zeros(1, 4, 4))
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Histograms("weights")] == [3]
    assert [event.step for event in events.Images("digit/train")] == [3]


def test_a_resumed_run_purges_the_points_that_it_writes_again(tmp_path):
    first = writer_in(tmp_path)
    for step in (1, 2, 3):
        first.numbers({"loss": float(step)}, step)
    first.close()
    resumed = writer_in(tmp_path)
    resumed.purge_step = 2
    resumed.numbers({"loss": 20.0}, 2)
    resumed.close()
    assert scalars(tmp_path) == {"loss": [(1, 1.0), (2, 20.0)]}


def test_a_folder_is_asked_for_at_the_first_point_only(tmp_path):
    asked = []

    def folder():
        asked.append(tmp_path)
        return tmp_path

    writer = writer_in(folder)
    writer.set_step(0)
    assert asked == []
    writer.add_scalar("loss", 1.0)
    writer.close()
    assert asked == [tmp_path]


def test_a_writer_that_is_off_takes_every_call_and_writes_nothing(tmp_path):
    writer = writer_in(tmp_path / "run", enabled=False)
    writer.set_step(1)
    writer.set_step(2)
    assert writer.add_scalar("loss", 1.0) is None and writer.add_whatever("x") is None
    writer.numbers({"loss": 1.0}, 1)
    writer.flush()
    writer.close()
    assert not (tmp_path / "run").exists()


def test_a_method_that_tensorboard_does_not_have_is_an_attribute_error(tmp_path):
    with pytest.raises(AttributeError, match="TensorboardWriter has no 'scalar'"):
        _ = writer_in(tmp_path).scalar


def test_without_tensorboard_a_run_goes_on_and_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    writer = writer_in(tmp_path / "run")
    for step in (1, 2):
        writer.numbers({"loss": 1.0}, step)
    (record,) = caplog.records
    assert "pip install tensorboard" in record.message and not (tmp_path / "run").exists()


def test_torchs_own_writer_is_had_by_its_old_name(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = writer_in(tmp_path)
    assert isinstance(writer.writer, SummaryWriter)
    writer.close()
    assert writer_in(tmp_path, enabled=False).writer is None
