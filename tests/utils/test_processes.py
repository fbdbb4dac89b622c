"""Several processes: what they ask each other, and that they train as one. They run this file."""

import copy
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).resolve().parents[2]
CLASS_WEIGHTS = torch.tensor([0.1, 1.0, 7.3], dtype=torch.float64)


def accuracy(output, target):
    return (output.argmax(dim=1) == target).double().mean()


def mean_loss(output, target):
    return F.cross_entropy(output, target)


def counted_loss(output, target):
    """Class-weighted, as (sum, count)."""
    return F.cross_entropy(output, target, CLASS_WEIGHTS, reduction="sum"), CLASS_WEIGHTS[target].sum()


def some_rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return TensorDataset(inputs, torch.randint(3, (count,), generator=generator))


def train(folder, criterion):
    """Three epochs of 13 rows in batches of 4, two batches an update: {"weights", "averaged", "log"}."""
    from base import BaseDataLoader
    from parse_config import ConfigParser
    from trainer import Trainer, parallel

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    trainer_section = {
        "epochs": 3,
        "accumulate": 2,
        "clip_grad_norm": 0.2,
        "ema_decay": 0.8,
        "monitor": "min val_loss",
        "save_dir": str(folder),
        "tensorboard": False,
        "verbosity": 0,
    }
    config = ConfigParser(
        {
            "name": "toy",
            "arch": "MnistModel",
            "data_loader": "DataLoader",
            "optimizer": "AdamW",
            "loss": "nll_loss",
            "lr_scheduler": {"type": "OneCycleLR", "interval": "step"},
            "trainer": trainer_section,
        },
        run_id="run",
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(
        parallel.auto(model, torch.device("cpu")),
        criterion,
        [accuracy],
        optimizer,
        config,
        torch.device("cpu"),
        BaseDataLoader(some_rows(13, seed=1), 4, shuffle=True),  # of the last batch, one process gets no row
        BaseDataLoader(some_rows(5, seed=2), 4),
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=6),
    )
    log = trainer.train()
    with trainer.stepper.averaged():
        averaged = weights(model)
    return {"weights": weights(model), "averaged": averaged, "log": log}


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def ask_each_other():
    """What each of the functions gives on this process."""
    from utils import processes

    rank = processes.rank()
    tensor = torch.tensor([1.0 + rank, 10.0])
    return {
        "rank": rank,
        "size": processes.size(),
        "is_main": processes.is_main(),
        "sum": processes.sum_over_all(tensor).tolist(),
        "summed in place": tensor.tolist(),
        "any, where one says so": processes.any_of_all(rank == 1),
        "any, where none does": processes.any_of_all(False),
        "from main": processes.from_main(lambda: {"folder": f"of {rank}"}),
    }


def main(folder):
    """What each process does; its findings go into the folder."""
    from utils import processes

    torch.set_num_threads(1)
    processes.join(timeout_seconds=120)
    found = {"answers": ask_each_other()}
    for criterion in (mean_loss, counted_loss):
        found[criterion.__name__] = train(folder / criterion.__name__, criterion)
    torch.save(found, folder / f"found-{processes.rank()}.pth")
    processes.leave()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """(findings of process 0, findings of process 1, the folder they wrote to)."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, folder],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = []
    try:
        said = [process.communicate(timeout=150)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    first, second = (torch.load(folder / f"found-{rank}.pth", weights_only=True) for rank in (0, 1))
    return first, second, folder


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """What a single process finds."""
    folder = tmp_path_factory.mktemp("one")
    return {criterion.__name__: train(folder, criterion) for criterion in (mean_loss, counted_loss)}


losses = pytest.mark.parametrize("loss", ["mean_loss", "counted_loss"])


def test_a_single_process_is_the_main_one_and_keeps_what_it_has():
    assert ask_each_other() == {
        "rank": 0,
        "size": 1,
        "is_main": True,
        "sum": [1.0, 10.0],
        "summed in place": [1.0, 10.0],
        "any, where one says so": False,
        "any, where none does": False,
        "from main": {"folder": "of 0"},
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


def test_a_flag_of_any_process_is_seen_by_all(two):
    assert [found["answers"]["any, where one says so"] for found in two[:2]] == [True, True]
    assert [found["answers"]["any, where none does"] for found in two[:2]] == [False, False]


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
    (run,) = (two[2] / loss / "toy").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]


@losses
def test_a_checkpoint_of_two_processes_has_the_names_of_the_users_own_model(one, two, loss):
    kept = torch.load(two[2] / loss / "toy" / "run" / "latest.pth", weights_only=True)
    assert list(kept["state_dict"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
