"""A checkpoint of pytorch-template's own: refused as it is, read with --trust, and no code of it is run."""

import collections
import pathlib
import sys
import types

import numpy as np
import pytest
import torch
import toy
from lab import history

from extras import old_checkpoints
from utils import checkpoint
from utils.errors import CheckpointError, exit_code

RAN = []


def note(word):
    RAN.append(word)


class Runs:
    """Unpickled, it runs code."""

    def __reduce__(self):
        return note, ("ran",)


@pytest.fixture
def old(tmp_path, monkeypatch, request):
    """An old checkpoint of toy's model after epoch 3, in the zip format or in that of torch before 1.6."""
    theirs = type("ConfigParser", (), {"__module__": "parse_config"})
    config = toy.config(tmp_path / "saved", trainer={"epochs": 5})
    model = toy.Scripted(**config["arch"]["args"])
    parser = theirs()
    vars(parser).update(_config=collections.OrderedDict(config), resume=None, _save_dir=pathlib.Path("saved/run"))
    state = {
        "arch": "Scripted",
        "epoch": 3,
        "logger": Runs(),
        "state_dict": {f"module.{name}": value + 2 for name, value in model.state_dict().items()},
        "optimizer": torch.optim.SGD(model.parameters(), lr=1.0).state_dict(),
        "monitor_best": np.float64(0.5),
        "config": parser,
    }
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "parse_config", types.SimpleNamespace(ConfigParser=theirs))
        torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=getattr(request, "param", True))
    return tmp_path / "old.pth"


@pytest.mark.parametrize("old", [True, False], indirect=True, ids=["zip", "before 1.6"])
def test_old_checkpoint_is_refused_and_the_refusal_names_the_way(lab, old):
    done = lab.resume(old)
    assert done.code == 3 and "--trust" in done.err and "options" not in done.err and not RAN


@pytest.mark.parametrize("old", [True, False], indirect=True, ids=["zip", "before 1.6"])
def test_trusted_old_checkpoint_goes_on_from_its_weights_in_a_new_run(lab, old):
    weights = toy.Scripted([], 1).state_dict()
    content = old_checkpoints.read(old)
    assert {name: value.tolist() for name, value in content["state_dict"].items()} == {
        f"module.{name}": (value + 2).tolist() for name, value in weights.items()
    }
    done = lab.resume(
        old, "--trust", "-c", lab.write({**toy.config(lab.saved), "trainer": content["config"]["trainer"]})
    )
    assert done.code == 0 and [line["epoch"] for line in history(lab.run)] == [4, 5] and not RAN


def test_old_checkpoint_is_read_in_plain_values_and_nothing_in_it_is_run(old, tmp_path):
    content = old_checkpoints.read(old)
    assert content["epoch"] == 3 and content["monitor_best"] == 0.5 and type(content["monitor_best"]) is float
    assert type(content["config"]) is collections.OrderedDict and content["config"]["trainer"]["epochs"] == 5
    assert "logger" not in content and not RAN
    checkpoint.save(content, tmp_path / "new.pth")
    assert checkpoint.load(tmp_path / "new.pth").keys() == content.keys()


def test_command_writes_an_old_checkpoint_anew(old, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["old_checkpoints", str(old), str(tmp_path / "new.pth")])
    assert exit_code(old_checkpoints.run) == 0
    assert torch.load(tmp_path / "new.pth", weights_only=True)["config"]["trainer"]["epochs"] == 5


def test_what_is_no_checkpoint_is_refused_with_trust_too(lab, tmp_path):
    torch.save([1, 2], tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("no checkpoint")
    for name in ("list.pth", "text.pth"):
        with pytest.raises(CheckpointError, match=name):
            old_checkpoints.read(tmp_path / name)
        assert lab.resume(tmp_path / name, "--trust").code == 3


def test_trust_lets_no_damaged_checkpoint_of_ours_through(lab):
    assert lab.train(toy.config(lab.saved, trainer={"epochs": 1})).code == 0
    path = lab.run / "latest.pth"
    content = bytearray(path.read_bytes())
    content[content.index(b"Scripted")] ^= 1
    path.write_bytes(content)
    for words in ((), ("--trust",)):
        done = lab.resume(path, *words)
        assert done.code == 3 and "checksum does not match" in done.err
