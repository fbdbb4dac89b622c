"""The worked examples on texts, streams, autoencoders and adversarial networks: each config trains and is evaluated."""

import json
import shutil

import pytest
import torch
from lab import ROOT, differences_of_checkpoints, history, load

SMALL = {  # so that two steps, a validation and a test take a second or two
    "text": ["data_loader.args.max_length=8"],
    "text_transformer": ["data_loader.args.max_length=8", "arch.args.dim=8"],
    "text_stream": [],
    "autoencoder": ["arch.args.width=2"],
    "gan": ["arch.args.width=2", "data_loader.args.validation_split=100"],
}
BEGINNING = {"text": 6, "text_transformer": 6, "text_stream": 6}  # classes, between which a new model can't choose


def trained(lab, name, *words):
    """The folder of a run of two steps."""
    save = f"trainer.save_dir={lab.saved}"
    done = lab.train(ROOT / f"configs/{name}.json", *SMALL[name], "trainer.max_steps=2", save, *words)
    assert done.code == 0, done.err
    return lab.runs()[-1]


@pytest.mark.parametrize("name", SMALL)
def test_an_examples_config_trains_and_is_evaluated(lab, name):
    folder = trained(lab, name)
    assert load(folder / "latest.pth")["step"] == 2
    (line,) = history(folder)
    assert all(value == value for value in line.values())  # none is NaN
    done = lab.test(folder / "latest.pth")
    assert done.code == 0, done.err
    numbers = json.loads((folder / "test.json").read_text())
    assert numbers["examples"] == {"autoencoder": 2000, "gan": 2000, "text_stream": 0}.get(name, 6150)
    if name in BEGINNING:
        assert numbers["test_loss"] == pytest.approx(torch.tensor(BEGINNING[name]).log().item(), abs=0.3)


def test_texts_are_evaluated_without_the_training_texts(lab, tmp_path):
    folder = trained(lab, "text")
    shutil.copy(ROOT / "data/bible/test.csv.gz", tmp_path)
    there = lab.test(folder / "latest.pth").numbers
    assert lab.test(folder / "latest.pth", f"data_loader.args.data_dir={tmp_path}").numbers == there


@pytest.mark.parametrize("split", ["val", "train"])
def test_texts_are_evaluated_on_their_other_parts(lab, split):
    folder = trained(lab, "text")
    done = lab.test(folder / "latest.pth", "--split", split)
    assert done.code == 0, done.err
    if split == "val":
        assert done.numbers["val_accuracy"] == pytest.approx(history(folder)[-1]["val_accuracy"])


def test_a_stopped_run_on_a_shuffled_stream_goes_on_as_if_it_never_was(lab):
    whole = trained(lab, "text_stream", "trainer.max_steps=4", "lr_scheduler=null", "--run-id", "unbroken")
    broken = trained(lab, "text_stream", "lr_scheduler=null", "--run-id", "broken")
    assert lab.resume(broken / "latest.pth", "trainer.max_steps=4").code == 0
    assert not differences_of_checkpoints(whole / "latest.pth", broken / "latest.pth")
