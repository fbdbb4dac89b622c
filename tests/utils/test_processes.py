"""Several processes: what they ask each other, and that they train as one."""

import copy
import json
import sys
from datetime import timedelta

import pytest
import several
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from utils import processes
from utils.errors import Failure

CLASS_WEIGHTS = torch.tensor([0.1, 1.0, 7.3], dtype=torch.float64)


def mean_loss(output, target):
    return F.cross_entropy(output, target)


def counted_loss(output, target):
    """Class-weighted, as (sum, count)."""
    return F.cross_entropy(output, target, CLASS_WEIGHTS, reduction="sum"), CLASS_WEIGHTS[target].sum()


def train_on(folder, loss):
    """Three epochs: {"weights", "averaged", "log"}."""
    import train
    from parse_config import ConfigParser

    made = {}

    def trained(trainer):
        made["log"] = trainer.train()
        made["weights"] = weights(trainer.model)
        with trainer.stepper.averaged():
            made["averaged"] = weights(trainer.model)

    config = several.config(folder, name=loss, loss=f"test_processes.{loss}", trainer={"epochs": 3})
    train.main(ConfigParser(config, run_id="run"), trained)
    return made


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def ask_each_other():
    """What each of the functions gives on this process."""
    rank = processes.rank()
    tensor = torch.tensor([1.0 + rank, 10.0])
    return {
        "rank": rank,
        "size": processes.size(),
        "is_main": processes.is_main(),
        "sum": processes.sum_over_all(tensor).tolist(),
        "summed in place": tensor.tolist(),
        "from main": processes.from_main(lambda: {"folder": f"of {rank}"}),
        "gathered": processes.gather(rank),
    }


def find(folder):
    """What each of two processes does; its findings go into the folder."""
    found = {"answers": ask_each_other()}
    for loss in ("mean_loss", "counted_loss"):
        found[loss] = train_on(folder, loss)
    torch.save(found, folder / f"found-{processes.rank()}.pth")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """(findings of process 0, findings of process 1, the folder they wrote to)."""
    folder = tmp_path_factory.mktemp("two")
    several.together(2, sys.modules[__name__], "find", folder)
    first, second = (torch.load(folder / f"found-{rank}.pth", weights_only=True) for rank in (0, 1))
    return first, second, folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What a single process finds."""
    folder = tmp_path_factory.mktemp("one")
    return {loss: train_on(folder, loss) for loss in ("mean_loss", "counted_loss")}


losses = pytest.mark.parametrize("loss", ["mean_loss", "counted_loss"])


def test_a_single_process_is_the_main_one_and_keeps_what_it_has():
    assert ask_each_other() == {
        "rank": 0,
        "size": 1,
        "is_main": True,
        "sum": [1.0, 10.0],
        "summed in place": [1.0, 10.0],
        "from main": {"folder": "of 0"},
        "gathered": [0],
    }


def test_a_single_process_leaves_the_model_unwrapped():
    from trainer import parallel

    model = nn.Linear(2, 2)
    assert parallel.auto(model, torch.device("cpu")) is model


def test_the_first_of_two_processes_is_the_main_one(two):
    answers = [found["answers"] for found in two[:2]]
    assert [(a["rank"], a["size"], a["is_main"]) for a in answers] == [(0, 2, True), (1, 2, False)]


def test_a_sum_over_all_is_on_every_process_in_place(two):
    assert [found["answers"]["sum"] for found in two[:2]] == [[3.0, 20.0]] * 2
    assert [found["answers"]["summed in place"] for found in two[:2]] == [[3.0, 20.0]] * 2


def test_every_process_learns_what_each_has(two):
    assert [found["answers"]["gathered"] for found in two[:2]] == [[0, 1]] * 2


def test_what_the_main_process_has_is_given_to_all(two):
    assert [found["answers"]["from main"] for found in two[:2]] == [{"folder": "of 0"}] * 2


@losses
def test_two_processes_train_like_one_with_the_same_batches(one, two, loss):
    assert (one[loss]["weights"] - two[0][loss]["weights"]).abs().max() <= 1e-10


@losses
def test_both_processes_end_with_the_same_bits(two, loss):
    assert torch.equal(two[0][loss]["weights"], two[1][loss]["weights"])


@losses
def test_the_moving_average_of_two_processes_is_that_of_one(one, two, loss):
    assert (one[loss]["averaged"] - two[0][loss]["averaged"]).abs().max() <= 1e-10


@losses
def test_two_processes_measure_what_one_measures(one, two, loss):
    """The numbers that were logged; training is measured over the same examples, too."""
    for name in ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy", "lr"):
        assert two[0][loss]["log"][name] == pytest.approx(one[loss]["log"][name], abs=1e-9), name


@losses
def test_both_processes_measure_the_same(two, loss):
    first, second = (copy.copy(found[loss]["log"]) for found in two[:2])
    assert [first[name] for name in ("val_loss", "val_accuracy")] == [
        second[name] for name in ("val_loss", "val_accuracy")
    ]


@losses
def test_two_processes_make_one_run_and_write_each_epoch_once(two, loss):
    (run,) = (two[2] / loss).iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]


@losses
def test_a_checkpoint_of_two_processes_has_the_names_of_the_users_own_model(one, two, loss):
    kept = torch.load(two[2] / loss / "run" / "latest.pth", weights_only=True)
    assert list(kept["state_dict"]) == list(several.Net().state_dict())


def test_the_first_process_waits_for_the_others_no_longer_than_the_store():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    store.set("asks/1", "an earlier attempt's")
    with pytest.raises(Failure, match=r"1 of 3 processes came in 0:00:00\.1"):
        processes._of_this_attempt(store, 0, 3)
