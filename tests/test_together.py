"""What goes wrong between several processes is told: other weights, a long wait, one that does not come."""

import sys
import time
from types import SimpleNamespace

import pytest
import several
import torch
from torch import nn

from utils import processes
from utils.errors import Failure


def said_of(model):
    """What check_alike says of a model."""
    from extras.together import check_alike

    try:
        check_alike(model, "At the start")
    except Failure as failure:
        return str(failure)
    return ""


def a_model(changed=None, dtype=torch.float32):
    """The same on every process but for the tensor called `changed`, of which one bit is another on process 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(dtype)
    if changed and processes.rank() == 1:
        tensor = model.state_dict()[changed]
        tensor.view(-1)[0] = torch.nextafter(tensor.view(-1)[0], torch.tensor(9.0, dtype=dtype))
    return model


def in_two(folder):
    from extras.together import told

    found = {
        "alike": said_of(a_model()),
        "one bit": said_of(a_model("2.bias")),
        "one bit in half": said_of(a_model("0.weight", torch.float16)),
        "a statistic": said_of(a_model("1.running_mean")),
        "wrapped": said_of(nn.DataParallel(a_model("2.bias"))),
    }
    trainer = SimpleNamespace(epoch=0, step=4)
    with told(trainer, patience_seconds=1):
        if processes.rank() == 1:
            time.sleep(5)  # here process 1 stands
        processes.wait_for_all()
    processes.set_timeout(2)
    try:
        with told(trainer, patience_seconds=100):
            if processes.rank() == 0:
                processes.wait_for_all()
            time.sleep(5)
    except Failure as failure:
        found["lost"] = str(failure)
    torch.save(found, folder / f"found-{processes.rank()}.pth")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """(what each process found, what it printed)."""
    folder = tmp_path_factory.mktemp("two")
    printed = several.together(2, sys.modules[__name__], "in_two", folder)
    return [torch.load(folder / f"found-{rank}.pth", weights_only=True) for rank in (0, 1)], printed


def test_equal_weights_are_let_pass(two):
    assert [found["alike"] for found in two[0]] == ["", ""]


@pytest.mark.parametrize(
    ("case", "name"), [("one bit", "2.bias"), ("one bit in half", "0.weight"), ("wrapped", "2.bias")]
)
def test_one_bit_of_a_weight_that_differs_is_told_by_name_on_both(two, case, name):
    for found in two[0]:
        assert found[case].startswith(f"At the start '{name}' (1 of 6 parameters) is another on process 1")


def test_statistics_that_each_process_counts_for_itself_may_differ(two):
    assert [found["a statistic"] for found in two[0]] == ["", ""]


def test_a_long_wait_is_told_once_with_where_each_stands(two):
    said = "".join(two[1])
    assert said.count("No step for") == 1
    assert "process 0: epoch 1, step 5: " in said and "wait_for_all" in said
    assert "process 1: epoch 1, step 5: test_together.py" in said


def test_a_collective_that_timed_out_says_where_each_stands(two):
    assert "does not come" in two[0][0]["lost"] and "process 1: epoch 1, step 5: " in two[0][0]["lost"]
    assert "lost" not in two[0][1]


def test_one_process_has_nobody_to_differ_from():
    assert said_of(a_model()) == ""
