"""What projects import from utils: JSON files, an endless loader, a device, a table of means."""

from collections import OrderedDict

import pytest
import torch

from base import BaseDataLoader
from utils import MetricTracker, ensure_dir, inf_loop, prepare_device, read_json, write_json


class Rows(torch.utils.data.Dataset):
    """Ten numbers, and a note of which were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.read.append(index)
        return index


class Notes:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.written = []

    def add_scalar(self, name, value):
        self.written.append((name, value))


# --- a table of means ---


def test_a_mean_is_weighted_by_what_each_value_was_measured_on():
    tracker = MetricTracker("loss")
    tracker.update("loss", 1.0, n=3)
    tracker.update("loss", 5.0)
    assert tracker.avg("loss") == 2.0


def test_a_mean_of_tensors_is_a_python_float():
    tracker = MetricTracker("loss")
    tracker.update("loss", torch.tensor([2.0], requires_grad=True), n=2)
    tracker.update("loss", torch.tensor(5.0))
    assert tracker.result() == {"loss": 3.0} and type(tracker.avg("loss")) is float


def test_a_mean_of_tensors_holds_no_graph():
    tracker, weight = MetricTracker("loss"), torch.ones(1, requires_grad=True)
    tracker.update("loss", weight.sum() * 2)
    kept = [value for value in vars(tracker)["_sums"].values() if isinstance(value, torch.Tensor)]
    assert not any(value.requires_grad for value in kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_of_half_precision_values_does_not_stall(dtype):
    tracker = MetricTracker("loss")
    for _ in range(5000):
        tracker.update("loss", torch.tensor(1.0, dtype=dtype), n=128)
    assert tracker.avg("loss") == pytest.approx(1.0, abs=1e-3)


def test_a_value_may_have_a_name_that_was_not_announced():
    tracker = MetricTracker()
    tracker.update("new", 2.0)
    assert "new" in tracker and tracker.result() == {"new": 2.0}


def test_before_the_first_update_a_mean_is_zero():
    assert MetricTracker("loss").result() == {"loss": 0.0}


def test_a_reset_forgets_the_values_and_keeps_the_names():
    tracker = MetricTracker("loss", "accuracy")
    tracker.update("loss", 3.0)
    tracker.reset()
    assert tracker.result() == {"loss": 0.0, "accuracy": 0.0}


def test_every_update_goes_to_the_writer_as_it_is():
    notes = Notes()
    tracker = MetricTracker("loss", writer=notes)
    tracker.update("loss", 3.0, n=10)
    assert notes.written == [("loss", 3.0)]


def test_a_tracker_goes_on_from_its_state():
    tracker, other = MetricTracker("loss"), MetricTracker("loss")
    tracker.update("loss", torch.tensor(1.0), n=3)
    other.load_state_dict(tracker.state_dict())
    other.update("loss", 5.0)
    assert other.avg("loss") == 2.0


# --- an endless loader ---


def taken(source, count):
    return [int(next(source)) for _ in range(count)]


def test_an_endless_loader_begins_again_at_the_end():
    assert taken(inf_loop([1, 2, 3]), 7) == [1, 2, 3, 1, 2, 3, 1]


def test_an_endless_loader_gives_the_passes_of_its_loader_one_after_the_other():
    loader = BaseDataLoader(Rows(), batch_size=1, shuffle=True)
    expected = [int(batch) for epoch in (1, 2) for batch in loader.batches_of(epoch)]
    assert taken(inf_loop(loader), 20) == expected


@pytest.mark.parametrize("position", [0, 4, 10, 13])
def test_an_endless_loader_goes_on_from_its_state(position):
    unbroken = inf_loop(BaseDataLoader(Rows(), batch_size=1, shuffle=True))
    taken(unbroken, position)
    resumed = inf_loop(BaseDataLoader(Rows(), batch_size=1, shuffle=True))
    resumed.load_state_dict(unbroken.state_dict())
    assert taken(resumed, 12) == taken(unbroken, 12)


def test_going_on_reads_no_row_before_the_position():
    rows = Rows()
    loop = inf_loop(BaseDataLoader(rows, batch_size=1))
    loop.load_state_dict({"passes": 1, "batches": 7})
    assert taken(loop, 1) == rows.read == [7]


def test_going_on_in_any_other_loader_skips_what_was_handed_out():
    loop = inf_loop([1, 2, 3])
    loop.load_state_dict({"passes": 5, "batches": 2})
    assert taken(loop, 2) == [3, 1]


def test_an_endless_loop_over_nothing_is_an_error():
    with pytest.raises(ValueError, match="gave no batch"):
        next(inf_loop([]))


# --- files ---


def test_what_is_written_as_json_is_read_as_it_was(tmp_path):
    content = {"b": [1, 2.5, None], "a": {"ü": "grün"}}
    write_json(content, tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == content


def test_json_is_read_in_its_order_with_or_without_a_byte_order_mark(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"b": 1, "a": {"d": 2, "c": 3}}')
    content = read_json(tmp_path / "a.json")
    assert isinstance(content["a"], OrderedDict) and [*content, *content["a"]] == ["b", "a", "d", "c"]


def test_json_is_written_for_people(tmp_path):
    write_json({"name": "grün"}, tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n    "name": "grün"\n}\n'


def test_a_folder_is_made_with_those_above_it_and_may_be_there(tmp_path):
    for _ in range(2):
        ensure_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


# --- a device ---


def test_no_gpu_is_the_cpu():
    assert prepare_device(0) == (torch.device("cpu"), [])


def test_more_gpus_than_there_are_is_told_and_takes_those_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.warns(UserWarning, match="n_gpu is 4, but this machine has 2 GPUs"):
        assert prepare_device(4) == (torch.device("cuda:0"), [0, 1])


def test_gpus_that_are_there_are_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert prepare_device(2) == (torch.device("cuda:0"), [0, 1])


def test_a_tracker_takes_a_value_with_its_count_in_a_pair():
    tracker = MetricTracker("accuracy")
    tracker.update("accuracy", (1.0, 3))
    tracker.update("accuracy", (0.0, 1))
    assert tracker.avg("accuracy") == 0.75
