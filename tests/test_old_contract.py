"""A project that was forked from this template's ancestor trains here unchanged, and now resumes exactly."""

import argparse
import json
import os
import signal
import sys

import old_project
import pytest
import torch
from lab import differences_of_checkpoints, history, load

from parse_config import ConfigParser
from utils.errors import exit_code

pytest.importorskip("tensorboard")

CONFIG = {
    "name": "Digits",
    "n_gpu": 0,
    "arch": {"type": "DigitModel", "args": {}},
    "data_loader": {
        "type": "DigitLoader",
        "args": {"data_dir": "data/", "batch_size": 16, "shuffle": True, "validation_split": 0.1, "num_workers": 0},
    },
    "optimizer": {"type": "Adam", "args": {"lr": 0.001, "weight_decay": 0, "amsgrad": True}},
    "loss": "nll_loss",
    "metrics": ["accuracy", "top_k_acc"],
    "lr_scheduler": {"type": "StepLR", "args": {"step_size": 2, "gamma": 0.1}},
    "trainer": {
        "epochs": 4,
        "save_dir": "saved/",
        "save_period": 1,
        "verbosity": 2,
        "monitor": "min val_loss",
        "early_stop": 10,
        "tensorboard": True,
    },
}


@pytest.fixture
def old(lab, monkeypatch):
    """The command of the old project: its words → (exit code, its trainer)."""

    def command(*words, config=CONFIG, len_epoch=None):
        lab.as_in_a_new_process()
        if "-r" not in words:
            words = ("-c", lab.write({**config, "trainer": {**config["trainer"], "save_dir": str(lab.saved)}}), *words)
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, words)])
        made = []
        code = exit_code(lambda: made.append(old_project.main(old_project.configure(), len_epoch)))
        return code, made[0] if made else None

    return command


@pytest.mark.parametrize("len_epoch", [None, 3], ids=["one pass", "inf_loop"])
def test_old_project_resumes_with_every_bit_of_an_unbroken_run(lab, old, len_epoch):
    assert old(len_epoch=len_epoch)[0] == 0
    assert old("--ep", "2", len_epoch=len_epoch)[0] == 0
    whole, broken = lab.runs()
    assert old("-r", broken / "latest.pth", "--ep", "4", len_epoch=len_epoch)[0] == 0
    assert not differences_of_checkpoints(whole / "latest.pth", broken / "latest.pth")
    assert history(whole) == history(broken)
    assert [line["epoch"] for line in history(whole)] == [1, 2, 3, 4]


def test_old_project_learns(lab, old):
    _, trainer = old("--lr", "0.05", "--ep", "8")
    first, *_, last = history(lab.run)
    assert last["accuracy"] > first["accuracy"] and last["val_accuracy"] > 0.5
    assert trainer.mnt_best == min(line["val_loss"] for line in history(lab.run))


def test_old_project_finds_the_files_it_knows(lab, old):
    old("--ep", "2")
    names = {path.name for path in lab.run.iterdir()}
    assert not {"config.json", "checkpoint-epoch1.pth", "checkpoint-epoch2.pth", "model_best.pth"} - names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert json.loads((lab.run / "config.json").read_text())["trainer"]["epochs"] == 2


def test_old_projects_checkpoint_is_read_by_its_own_scripts(lab, old):
    """As a fork's test.py does it: torch.load, `state_dict`, and the config beside it."""
    _, trainer = old("--ep", "1")
    content = torch.load(lab.run / "model_best.pth")
    assert (content["arch"], content["epoch"], content["config"]["loss"]) == ("DigitModel", 1, "nll_loss")
    trainer.model.load_state_dict(content["state_dict"])


def test_old_project_keeps_every_checkpoint(lab, old):
    """It names no keep_last, so none is dropped."""
    old()
    assert len(list(lab.run.glob("checkpoint-epoch*.pth"))) == 4


def test_old_project_takes_keys_of_its_own(lab, old):
    assert old("--ep", "1", config={**CONFIG, "visualize": {"grid": 4}})[0] == 0


def test_old_project_that_a_signal_stops_goes_on_from_its_last_epoch(lab, old, monkeypatch):
    """Its loop counts no batches, so what is behind it in the epoch is trained again."""
    assert old()[0] == 0
    forward, seen = old_project.DigitModel.forward, []

    def interrupted(self, x):
        seen.append(self.training)
        if sum(seen) == 7:  # four batches an epoch: inside the second
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, x)

    with monkeypatch.context() as changed:
        changed.setattr(old_project.DigitModel, "forward", interrupted)
        code, _ = old()
    whole, broken = lab.runs()
    assert code == 143 and load(broken / "latest.pth")["epoch"] == 1
    assert old("-r", broken / "latest.pth")[0] == 0
    assert not differences_of_checkpoints(whole / "latest.pth", broken / "latest.pth")


def test_names_of_the_years_before_are_those_of_today(old):
    trainer = old("--ep", "1")[1]
    assert trainer.loss is trainer.criterion and trainer.metrics is trainer.metric_fns is trainer.metric_ftns
    assert trainer.verbosity == CONFIG["trainer"]["verbosity"] and not hasattr(trainer, "another")


def test_the_older_key_says_how_often_a_checkpoint_is_kept(lab, old):
    settings = {name: value for name, value in CONFIG["trainer"].items() if name != "save_period"}
    assert old(config={**CONFIG, "trainer": {**settings, "save_freq": 2}})[0] == 0
    assert sorted(path.name for path in lab.run.glob("checkpoint-*")) == [
        "checkpoint-epoch2.pth",
        "checkpoint-epoch4.pth",
    ]


def test_a_script_without_a_flag_for_the_config_resumes(lab, old, monkeypatch):
    assert old("--ep", "1")[0] == 0
    lab.as_in_a_new_process()
    parser = argparse.ArgumentParser()
    parser.add_argument("-r", "--resume")
    monkeypatch.setattr(sys, "argv", ["test.py", "-r", str(lab.run / "latest.pth")])
    config = ConfigParser.from_args(parser)
    assert config["name"] == CONFIG["name"] and config.resume == lab.run / "latest.pth"
