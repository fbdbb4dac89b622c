"""Two networks that are trained against each other, by an optimizer and a stepper each."""

import json
import math

import pytest
import torch
from lab import ROOT, differences, differences_of_checkpoints, history, load

from model.gan import grid

SMALL = {
    "extends": str(ROOT / "configs/gan.json"),
    "arch": {"args": {"latent": 5, "width": 2}},
    "data_loader": {"args": {"batch_size": 16, "validation_split": 32}},
    "trainer": {"len_epoch": 3, "epochs": 2, "tensorboard": False},
}
NAMES = ("discriminator", "generator")

POINTS = """
import torch
from torch import nn


class Points(torch.utils.data.Dataset):
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        point = torch.full((1, 1, 1), self.values[index])
        return point, point


class Lines(nn.Module):
    '''D(x) = 0.5 x + 0.1 and G(2) = 0.7 × 2 - 0.3, for images of one pixel.'''

    def __init__(self):
        super().__init__()
        self.discriminator = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten())
        self.generator = nn.Conv2d(1, 1, 1)
        for layer, weight, bias in ((self.discriminator[0], 0.5, 0.1), (self.generator, 0.7, -0.3)):
            nn.init.constant_(layer.weight, weight)
            nn.init.constant_(layer.bias, bias)

    def noise(self, count, generator=None):
        return torch.full((count, 1, 1, 1), 2.0)

    def picture(self, noise):
        return self.generator(noise)[0]

    def forward(self, images):
        made = self.generator(self.noise(len(images)))
        return {"images": made, "logits": torch.cat([self.discriminator(images), self.discriminator(made)], dim=1)}
"""
VALUES = [-1.0, 0.5, 2.0, 3.0, 0.0, 1.0]


def small(lab, **trainer):
    save = {"save_dir": str(lab.saved)}
    return {**SMALL, "trainer": {**SMALL["trainer"], **save, **trainer}}


def lines(lab, module, **trainer):
    """The config of a run on six points, whose every number can be worked out by hand."""
    module("points", POINTS)
    config = json.loads((ROOT / "configs/gan.json").read_text())
    dataset = {"type": "points.Points", "args": {"values": VALUES}}
    return {
        "name": "gan",
        "arch": "points.Lines",
        "data_loader": {"type": "DataLoader", "args": {"dataset": dataset, "batch_size": 6}},
        "optimizer": {name: {"type": "SGD", "params": f"{name}.*", "args": {"lr": 0.3}} for name in NAMES},
        "loss": config["loss"],
        "trainer": {
            "type": config["trainer"]["type"],
            "epochs": 3,
            "save_dir": str(lab.saved),
            "tensorboard": False,
            **trainer,
        },
    }


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def by_hand(updates, batches=1, lr=0.3):
    """(a, b, c, d) of D(x) = a x + b and G(2) = 2 c + d, which moves after D in each update.

    Of several batches in an update G sees D's step in the last alone.
    """
    a, b, c, d = 0.5, 0.1, 0.7, -0.3
    for _ in range(updates):
        before = pull_of(a, b, 2 * c + d)
        made = 2 * c + d
        taken, missed = sigmoid(a * made + b), [sigmoid(-(a * x + b)) for x in VALUES]
        a, b = (
            a - lr * (taken * made - sum(m * x for m, x in zip(missed, VALUES)) / 6),
            b - lr * (taken - sum(missed) / 6),
        )
        pull = (before * (batches - 1) + pull_of(a, b, made)) / batches
        c, d = c + lr * pull * 2, d + lr * pull
    return a, b, c, d


def pull_of(a, b, made):
    """How D(x) = a x + b draws an image towards what it takes for real."""
    return a * sigmoid(-(a * made + b))


def weights_of(state):
    return [weight.item() for weight in state.values()]


@pytest.mark.parametrize("batches", [1, 3])
def test_both_networks_take_the_steps_worked_out_by_hand(lab, module, batches):
    config = lines(lab, module, accumulate=batches)
    config["data_loader"]["args"]["batch_size"] = 6 // batches
    assert lab.train(config).code == 0
    assert weights_of(load(lab.run / "latest.pth")["state_dict"]) == pytest.approx(by_hand(3, batches), rel=1e-5)
    assert [line["step"] for line in history(lab.run)] == [1, 2, 3]


def test_both_networks_are_averaged_where_the_config_asks_for_it(lab, module):
    lab.train(lines(lab, module, epochs=1, ema_decay=0.9))
    content = load(lab.run / "latest.pth")
    before, after = by_hand(0), by_hand(1)
    assert weights_of(content["train_state_dict"]) == pytest.approx(after, rel=1e-5)
    assert weights_of(content["state_dict"]) == pytest.approx([0.9 * b + 0.1 * a for a, b in zip(after, before)])


@pytest.mark.parametrize("resting", NAMES)
def test_each_stepper_moves_its_own_weights_alone(lab, resting):
    lab.train(small(lab, epochs=1), f"optimizer.{resting}.args.lr=0.0", "--run-id", "rests")
    lab.train(small(lab, epochs=1), *(f"optimizer.{name}.args.lr=0.0" for name in NAMES), "--run-id", "both rest")
    now, before = (load(lab.saved / "gan" / name / "latest.pth")["state_dict"] for name in ("rests", "both rest"))
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    moved = {name for name in now if not name.endswith(statistics) and not torch.equal(now[name], before[name])}
    learning = {name for name in now if not name.endswith(statistics) and not name.startswith(resting)}
    assert moved == learning and moved


@pytest.mark.parametrize("stop", ["trainer.epochs=1", "trainer.max_steps=4"], ids=["an epoch's end", "inside one"])
def test_a_resumed_run_has_every_bit_of_an_unbroken_one(lab, stop):
    config = small(lab, ema_decay=0.9)
    lab.train(config, "--run-id", "unbroken")
    lab.train(config, "--run-id", "broken", stop)
    back = ("trainer.epochs=2", "trainer.max_steps=null")
    assert lab.resume(lab.saved / "gan/broken/latest.pth", *back).code == 0
    whole, broken = (lab.saved / "gan" / name for name in ("unbroken", "broken"))
    assert not differences_of_checkpoints(whole / "latest.pth", broken / "latest.pth")
    assert history(whole) == history(broken)
    optimizers = load(broken / "latest.pth")["optimizer"]
    assert set(optimizers) == set(NAMES)
    for name in NAMES:
        assert all(state["step"] == 6 and state["exp_avg"].any() for state in optimizers[name]["state"].values())


def test_losses_of_both_are_logged_by_name(lab):
    lab.train(small(lab, epochs=1))
    (line,) = history(lab.run)
    for prefix in ("", "val_"):
        parts = [line[prefix + name] for name in NAMES]
        assert line[f"{prefix}loss"] == pytest.approx(sum(parts)) and min(parts) > 0
    assert 0 <= line["val_told_apart"] <= 1


def test_the_images_shown_change_no_random_number(lab):
    for samples in (1, 9):
        lab.train(small(lab, epochs=1), f"trainer.args.samples={samples}", "--run-id", str(samples))
    one, other = (load(lab.saved / f"gan/{samples}/latest.pth") for samples in (1, 9))
    assert not differences({**one, "config": None}, {**other, "config": None})


def test_every_epoch_shows_images_of_the_same_noise(lab):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    frozen = [f"optimizer.{name}.args.lr=0.0" for name in NAMES]
    lab.train(small(lab, tensorboard=True), "trainer.args.samples=9", *frozen)
    shown = EventAccumulator(str(lab.run), {"images": 0}).Reload().Images("generated/train")
    assert [(image.step, image.width, image.height) for image in shown] == [(3, 84, 84), (6, 84, 84)]


def test_images_are_laid_out_row_by_row():
    images = torch.arange(5.0).view(5, 1, 1, 1) + torch.tensor([[0.0, 0.1]])  # (5, 1, 1, 2)
    expected = torch.tensor([[[0.0, 0.1, 1.0, 1.1], [2.0, 2.1, 3.0, 3.1]]])
    torch.testing.assert_close(grid(images), expected)


def test_one_optimizer_for_both_is_a_config_error(lab):
    config = small(lab)
    config["optimizer"] = {"type": "Adam", "args": {}}
    done = lab.train(config)
    assert done.code == 2 and "GanTrainer wants several optimizers" in done.err
