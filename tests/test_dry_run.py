"""`--dry-run`: one batch through all that the config names, what it met, and no file."""

import multiprocessing
import re
import sys

import noisy
import pytest
import toy

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def dry(lab):
    """A whole command with --dry-run, which leaves every file as it was: what it printed."""

    def command(config, *words):
        before = files(lab)
        done = lab.train(config, "--dry-run", *words)
        assert done.code == 0 and done.err == "", done.err
        assert files(lab) == before | {"experiment/config.json": files(lab)["experiment/config.json"]}
        return done.out

    return command


def files(lab):
    """{path: when it was written} of all but the probes, compiled modules and the note of configs' folders."""
    root = lab.folder.parent
    found = [path for path in root.rglob("*") if "__pycache__" not in path.parts]
    kept = [path for path in found if path.name not in ("probe.jsonl", "config_folders", "experiment")]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in kept}


def lines(out, word):
    """What stands behind a word at the start of a line, of each such line."""
    return [line.removeprefix(word).strip() for line in out.splitlines() if line.startswith(f"{word} ")]


def layers(out):
    """{name: (type, output, parameters)} of the table, in its order."""
    head, *rest = out[out.index("layer ") :].splitlines()
    rows = rest[: next(i for i, line in enumerate(rest) if re.match(r"[\d,]+ parameters", line))]
    kind, output = head.index("type"), head.index("output")
    cut = [(row[:kind].strip(), row[kind:output].strip(), row[output:]) for row in rows]
    tails = [(name, kind, re.fullmatch(r"(.*?) +([\d,]+(?: frozen)?)", tail)) for name, kind, tail in cut]
    return {name: (kind, tail[1].strip(), tail[2]) for name, kind, tail in tails}


# --- the layers ------------------------------------------------------------------------------------------------------

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, frozen=False):
        super().__init__()
        pooled = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*pooled)
        self.token = nn.Parameter(torch.zeros(5))
        self.twice = nn.Linear(32, 32)
        self.head = nn.Linear(32, 1200)
        for parameter in self.features[0].parameters() if frozen else ():
            parameter.requires_grad = False

    def forward(self, x):
        x = self.features(x).flatten(1) + self.token.sum()
        return self.head(self.twice(self.twice(x))).mean(1, keepdim=True)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 6, batch_first=True)

    def forward(self, x):
        output, _ = self.lstm(x[:, None])
        return output[:, -1].mean(1, keepdim=True)
"""


def images(lab, **arch):
    loader = {"type": "DataLoader", "args": {"dataset": {"type": "noisy.Images"}, "batch_size": 10}}
    return noisy.config(lab.saved, arch={"type": "net.Net", "args": arch}, data_loader=loader)


def test_each_layer_is_shown_with_its_outputs_shape_and_its_parameters(lab, module, dry):
    """Of 6 × 6 pixels a convolution of 3 × 3 leaves 4 × 4, and of these a pool of 2 × 2 leaves 2 × 2."""
    module("net", NET)
    assert layers(dry(images(lab))) == {
        "": ("Net", "(10, 1)", "5"),
        "features.0": ("Conv2d", "(10, 8, 4, 4)", str(8 * 3 * 9 + 8)),
        "features.1": ("BatchNorm2d", "(10, 8, 4, 4)", "16"),
        "features.2": ("ReLU", "(10, 8, 4, 4)", "0"),
        "features.3": ("MaxPool2d", "(10, 8, 2, 2)", "0"),
        "twice": ("Linear", "(10, 32)", "1,056"),
        "head": ("Linear", "(10, 1200)", "39,600"),
    }


def test_parameters_are_summed_up_and_frozen_ones_are_told_apart(lab, module, dry):
    module("net", NET)
    out = dry(images(lab, frozen=True))
    assert layers(out)["features.0"] == ("Conv2d", "(10, 8, 4, 4)", "224 frozen")
    assert [name for name, row in layers(out).items() if "frozen" in row[2]] == ["features.0"]
    every = 5 + 224 + 16 + 1056 + 39600
    assert f"\n{every:,} parameters, {every - 224:,} of them learn\n" in out


def test_layer_with_several_outputs_shows_them_all(lab, module, dry):
    """Of an LSTM the output, the hidden state, the cell's; each of its four gates has 6 + 36 weights and 12 biases."""
    module("net", NET)
    config = toy.config(lab.saved, arch="net.Recurrent", loss="toy.squared")
    (row,) = layers(dry(config)).values()
    assert row == ("LSTM", "(4, 1, 6), (1, 4, 6), (1, 4, 6)", str(4 * (6 + 36 + 12)))


def test_model_of_one_layer_is_shown(lab, dry):
    linear = {"type": "torch.nn.Linear", "args": {"in_features": 4, "out_features": 1}}
    out = dry(noisy.config(lab.saved, arch=linear))
    assert layers(out) == {"": ("Linear", "(8, 1)", "5")}
    assert "\n5 parameters, 5 of them learn\n" in out


def test_output_of_a_layer_in_other_precision_says_so(lab, dry):
    linear = {"type": "torch.nn.Linear", "args": {"in_features": 4, "out_features": 1}}
    out = dry(noisy.config(lab.saved, arch=linear, trainer={"amp": "bf16"}))
    assert layers(out) == {"": ("Linear", "(8, 1) bfloat16", "5")}


# --- data, memory, numbers -------------------------------------------------------------------------------------------


def test_sizes_of_the_data_and_shapes_of_a_batch_are_shown(lab, dry):
    """Of 20 rows a split keeps 14, in batches of 4 without the rest."""
    loader = toy.rows(20, batch_size=4, validation_split=0.3, drop_last=True)
    out = dry(toy.config(lab.saved, data_loader=loader, valid_data_loader=None))
    training, validation = lines(out, "data")
    assert training.endswith("Rows, 14 examples in 3 batches of 4")
    assert validation.startswith("valid") and validation.endswith("Rows, 6 examples in 2 batches of 4")
    assert lines(out, "batch") == ["(4, 1) float32, (4, 1) float32"]


def test_types_of_a_batch_are_shown(lab, module, dry):
    code = "import torch\nfrom toy import Rows, mean_out\n\n\nclass Bytes(Rows):\n    def __getitem__(self, index):\n"
    module("bytes", code + "        return torch.zeros(2, 3, dtype=torch.uint8), index\n")
    module("sums", "from torch import nn\n\n\nclass Sum(nn.Linear):\n    def forward(self, x):\n" + SUM)
    loader = {"type": "DataLoader", "args": {"dataset": {"type": "bytes.Bytes"}, "batch_size": 4}}
    sections = {"data_loader": loader, "valid_data_loader": None, "trainer": {"monitor": "off"}}
    arch = {"type": "sums.Sum", "args": {"in_features": 6, "out_features": 1}}
    out = dry(toy.config(lab.saved, arch=arch, **sections))
    assert lines(out, "batch") == ["(4, 2, 3) uint8, (4) int64"]


SUM = "        return super().forward(x.flatten(1).float())\n"


def test_memory_of_the_weights_and_of_the_optimizer_is_shown(lab, dry):
    """A million float32 take 3.8 MiB; Adam keeps two numbers for each weight."""
    linear = {"type": "torch.nn.Linear", "args": {"in_features": 4, "out_features": 200_000, "bias": True}}
    out = dry(noisy.config(lab.saved, arch=linear, loss="toy.mean_out"))
    (memory,) = lines(out, "memory")
    assert "weights 3.8 MiB" in memory and "optimizer 7.6 MiB" in memory


def test_numbers_of_a_training_and_a_validation_batch_are_shown(lab, dry):
    """The weight is 0 before its first step, and the first output in validation is written down as 3."""
    out = dry(toy.config(lab.saved, metrics=[{"type": "toy.mean_target", "name": "target"}]))
    (numbers,) = lines(out, "numbers")
    assert "val_loss 3" in numbers and re.match(r"loss 0 ", numbers)
    assert "val_target 0.5" in numbers  # of the rows 0 and 1, the first batch


# --- what the batch meets --------------------------------------------------------------------------------------------


def assert_one_batch_each(lab, validations=1):
    assert lab.probe("train") == [True] + [False] * validations


@pytest.mark.parametrize(
    ("trainer", "sizes"),
    [
        ({"len_epoch": 5}, [4, 2]),
        ({"accumulate": 4}, [4, 2]),
        ({"valid_period": 2}, [4, 2]),
        ({"valid_steps": 1, "save_steps": 1, "log_step": 1, "max_steps": 1}, [4, 2]),
        ({"ema_decay": 0.5, "amp": "bf16", "clip_grad_norm": 1.0}, [4, 2]),
        ({"overfit": 2}, [4, 4]),
    ],
    ids=str,
)
def test_one_batch_is_trained_on_and_one_validated_on_whatever_the_trainer_is_told(lab, dry, trainer, sizes):
    out = dry(toy.config(lab.saved, trainer=trainer))
    assert_one_batch_each(lab)
    assert [len(x) for x in lab.probe("x")] == sizes
    assert "val_loss 3" in lines(out, "numbers")[0]


def test_first_batch_is_the_one_that_the_run_would_begin_with(lab, dry):
    config = toy.config(lab.saved)
    dry(config)
    (shown, _) = lab.probe("x")
    lab.forget()
    lab.train(config)
    assert lab.probe("x")[0] == shown


def test_several_validation_sets_are_each_tried_and_shown_by_name(lab, dry):
    sets = {"near": toy.rows(3, batch_size=2), "far": toy.rows(values=[7.0] * 5, batch_size=3)}
    out = dry(toy.config(lab.saved, valid_data_loader=sets, loss="toy.mean_target", trainer={"monitor": "off"}))
    assert_one_batch_each(lab, validations=2)
    assert [line for line in lines(out, "data") if "near" in line and "3 examples in 2 batches of 2" in line]
    assert [line for line in lines(out, "data") if "far" in line and "5 examples in 2 batches of 3" in line]
    assert "val_near_loss 0.5" in lines(out, "numbers")[0] and "val_far_loss 7" in lines(out, "numbers")[0]


def test_run_without_validation_is_tried(lab, dry):
    out = dry(toy.config(lab.saved, valid_data_loader=None, trainer={"monitor": "off"}))
    assert_one_batch_each(lab, validations=0)
    assert len(lines(out, "data")) == 1 and "val" not in lines(out, "numbers")[0]


def test_stream_is_tried(lab, dry):
    data = {"type": "DataLoader", "args": {"dataset": {"type": "toy.Stream", "args": {"n": 10**9}}, "batch_size": 4}}
    out = dry(toy.config(lab.saved, data_loader=data, trainer={"len_epoch": 1000}))
    assert_one_batch_each(lab)
    assert "Stream, a stream of 4" in lines(out, "data")[0] and lab.probe("x")[0] == [0, 1, 2, 3]


@FORKS
def test_workers_of_a_try_end_with_it(lab, dry):
    loader = toy.rows(8, batch_size=4, num_workers=2, persistent_workers=True)
    dry(toy.config(lab.saved, data_loader=loader, valid_data_loader=loader))
    assert_one_batch_each(lab)
    assert multiprocessing.active_children() == []


NAMED = """
from toy import Rows, say
from base import BaseTrainer
from trainer.trainer import Trainer
from utils import inf_loop


class Items(Rows):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "y": y, "name": f"row {index}"}


class ByName(Trainer):
    def _train_epoch(self, epoch):
        for batch in self.batches(epoch):
            with self.stepper.update():
                self.stepper.zero_grad()
                output = self.model(batch["x"])
                loss = self.criterion(output, batch["y"])
                self.stepper.backward(loss)
                self.train_metrics.update(output, batch["y"], loss)
                self.stepper.step()
        return self.train_metrics.result()


class Elsewhere(BaseTrainer):
    def __init__(self, model, criterion, metric_ftns, optimizer, config, device, data_loader, endless=False, **others):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        self.rows, self.len_epoch = inf_loop(data_loader) if endless else data_loader, len(data_loader)

    def _train_epoch(self, epoch):
        for i, (inputs, target) in enumerate(self.rows):
            loss = self.criterion(self.model(inputs), target)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if i + 1 == self.len_epoch:
                break
        return {"own": 7.0}
"""


def test_batch_of_named_tensors_is_tried_by_a_trainer_of_ones_own(lab, module, dry):
    module("named", NAMED)
    loader = {"type": "DataLoader", "args": {"dataset": {"type": "named.Items"}, "batch_size": 4}}
    trainer = {"type": "named.ByName", "monitor": "off"}
    out = dry(toy.config(lab.saved, data_loader=loader, valid_data_loader=None, trainer=trainer))
    assert_one_batch_each(lab, validations=0)
    (batch,) = lines(out, "batch")
    assert batch.startswith("x: (4, 1) float32, y: (4, 1) float32, name: str")
    assert layers(out)[""] == ("Scripted", "(4, 1)", "1")


@pytest.mark.parametrize("endless", [False, True])
def test_trainer_of_ones_own_that_calls_its_data_otherwise_is_tried(lab, module, dry, endless):
    module("named", NAMED)
    trainer = {"type": "named.Elsewhere", "args": {"endless": endless}, "monitor": "off"}
    out = dry(toy.config(lab.saved, trainer=trainer))
    assert_one_batch_each(lab, validations=0)
    assert "own 7" in lines(out, "numbers")[0] and "8 examples in 2 batches of 4" in lines(out, "data")[0]


@pytest.mark.parametrize("kind", ["own.Loop", "own.Pair"])
def test_loop_of_ones_own_is_tried(lab, dry, kind):
    config = noisy.config(lab.saved, optimizer="SGD", lr_scheduler=None, trainer={"type": kind})
    out = dry(config)
    assert list(layers(out)) == ["0", "1", "2", "3"] and layers(out)["0"] == ("Linear", "(8, 16)", "80")
    assert "50 examples in 7 batches of 8" in lines(out, "data")[0] and "loss " in lines(out, "numbers")[0]


# --- no file ---------------------------------------------------------------------------------------------------------


def test_dry_run_begins_no_run(lab, dry):
    """The fixture compares all files; this names what is meant."""
    dry(toy.config(lab.saved, trainer={"tensorboard": True, "log_step": 1}), "--run-id", "mine")
    assert not lab.saved.exists() and lab.probe("lr") == [1.0]


def test_dry_run_of_a_checkpoint_leaves_its_run_as_it_was(lab):
    lab.train(toy.config(lab.saved, trainer={"tensorboard": True}), "trainer.epochs=2")
    before, content = files(lab), (lab.run / "train.log").read_text()
    done = lab.resume(lab.run / "latest.pth", "--dry-run", "trainer.epochs=4")
    assert done.code == 0, done.err
    assert files(lab) == before and (lab.run / "train.log").read_text() == content
    assert "val_loss 1" in lines(done.out, "numbers")[0]  # of the third epoch


def test_dry_run_of_a_wrong_config_tells_what_is_wrong(lab):
    done = lab.train(toy.config(lab.saved, optimizer="Adamm"), "--dry-run")
    assert done.code == 2 and done.out == "" and not lab.saved.exists()
    assert done.err.splitlines() == ["config.json: optimizer.type: no 'Adamm' in torch.optim. Did you mean 'Adam'?"]


@pytest.mark.parametrize("missing", ["extras", "extras.dry_run"])
def test_dry_run_without_its_file_says_so_in_one_line(lab, monkeypatch, missing):
    monkeypatch.delitem(sys.modules, "extras.dry_run", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    done = lab.train(toy.config(lab.saved), "--dry-run")
    (line,) = done.err.splitlines()
    assert done.code == 2 and "--dry-run" in line and re.search("extras.dry_run", line)
    assert lab.probe("x") == [] and not lab.saved.exists()


def test_training_does_without_extras(lab, monkeypatch):
    monkeypatch.delitem(sys.modules, "extras.dry_run", raising=False)
    monkeypatch.setitem(sys.modules, "extras", None)
    assert lab.train(toy.config(lab.saved), "trainer.epochs=1").code == 0
