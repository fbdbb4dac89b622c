"""Several losses: their weighted sum is minimised, each is logged by its name."""

import json

import pytest
import torch
import toy
from lab import history, load
from torch import nn

from trainer.build import Losses
from trainer.stepper import Stepper
from utils.errors import ConfigError
from utils.metrics import Metrics

TWO = {"near": {"type": "toy.mean_out", "args": {}, "weight": 0.5}, "far": {"type": "toy.squared", "args": {}}}


def test_sum_is_weighted_and_its_parts_are_not():
    output, target = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.0, 1.0, 1.0])
    made = Losses({"l1": nn.L1Loss(), "mse": toy.squared}, {"l1": 2.0, "mse": 0.25})(output, target)
    assert {name: float(value) for name, value in made.items()} == pytest.approx(
        {"loss": 2 * 5 / 3 + 0.25 * 11 / 3, "l1": 5 / 3, "mse": 11 / 3}
    )


def test_gradients_are_those_of_the_weighted_sum():
    weight = nn.Parameter(torch.tensor([3.0]))
    stepper = Stepper(nn.Module(), torch.optim.SGD([weight], lr=0.1), device=torch.device("cpu"))
    stepper.expect(2, 2)
    stepper.backward({"loss": 2 * weight.sum(), "other": weight.sum() * 100})
    assert weight.grad.tolist() == [2.0]


def test_every_part_is_a_mean_over_examples():
    metrics = Metrics([], "val_")
    for examples, value in ((3, 1.0), (1, 5.0)):
        metrics.expect(examples)
        metrics.update(None, None, {"loss": torch.tensor(value), "part": torch.tensor(10 * value)})
    assert metrics.result() == {"val_loss": 2.0, "val_part": 20.0}


def test_restored_sums_have_the_parts_of_the_loss():
    before, after = Metrics([], "val_"), Metrics([], "val_")
    before.expect(2)
    before.update(None, None, {"loss": torch.tensor(1.0), "part": torch.tensor(3.0)})
    after.load_state_dict(before.state_dict())
    assert after.result() == {"val_loss": 1.0, "val_part": 3.0}


def test_run_logs_each_loss_and_may_be_judged_by_one(lab):
    config = toy.config(lab.saved, loss=TWO, trainer={"epochs": 2, "monitor": "min val_far"})
    assert lab.train(config).code == 0
    for line in history(lab.run):
        assert line["val_loss"] == pytest.approx(0.5 * line["val_near"] + line["val_far"], rel=1e-6)
        assert {"loss", "near", "far"} <= line.keys()
    assert load(lab.run / "model_best.pth")["monitor_best"] == min(line["val_far"] for line in history(lab.run))


def test_resumed_run_with_several_losses_logs_what_an_unbroken_one_does(lab):
    config = toy.config(lab.saved, loss=TWO, trainer={"epochs": 2, "monitor": "off"})
    assert lab.train(config, "--run-id", "whole").code == 0
    assert lab.train(config, "trainer.max_steps=3", "--run-id", "broken").code == 0
    assert lab.resume(lab.saved / "toy" / "broken" / "latest.pth", "trainer.max_steps=null").code == 0
    keep = ("epoch", "step", "loss", "near", "far", "val_near", "val_far")
    whole, broken = ([[line[k] for k in keep] for line in history(lab.saved / "toy" / n)] for n in ("whole", "broken"))
    assert whole == broken


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ({"type": "toy.squared", "args": {}, "weight": 2.0}, "loss.weight: there is one loss"),
        ({"near": {"type": "toy.squared", "weight": "much"}}, 'loss.near.weight: "much" where a number is wanted'),
        ({"epoch": {"type": "toy.squared"}}, "two numbers would be called 'epoch'"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_what_can_not_be_a_loss_is_refused(lab, loss, said):
    done = lab.train(toy.config(lab.saved, loss=loss))
    assert done.code == 2 and said in done.err


def test_part_of_a_loss_that_is_called_as_a_metric_is_refused():
    metrics = Metrics([toy.squared])
    metrics.expect(1)
    with pytest.raises(ConfigError, match="'squared'"):
        metrics.update(torch.ones(1), torch.ones(1), {"loss": torch.tensor(1.0), "squared": torch.tensor(2.0)})


def test_of_several_losses_one_that_gives_a_sum_and_a_count_is_refused():
    losses = Losses({"counted": lambda output, target: (output.sum(), 2)}, {"counted": 1.0})
    with pytest.raises(ConfigError, match=r"loss\.counted"):
        losses(torch.ones(2), torch.ones(2))
