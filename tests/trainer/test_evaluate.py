"""Measuring a model on a set: every example once, and the model left as it was."""

import signal
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from base import BaseDataLoader
from trainer import Trainer
from trainer.evaluate import evaluate
from utils import signals
from utils.errors import Stopped
from utils.metrics import Metrics

COUNT = 11  # no multiple of the batch size


def some_data():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(COUNT, 4, generator=generator), torch.randint(3, (COUNT,), generator=generator))


def accuracy(output, target):
    return (output.argmax(dim=1) == target).float().mean()


def some_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))


def measured(model, data=None, batch_size=4, metrics=None, autocast=None):
    return evaluate(
        Trainer,
        model,
        BaseDataLoader(data or some_data(), batch_size),
        F.cross_entropy,
        metrics or Metrics([accuracy], "val_"),
        device=torch.device("cpu"),
        memory_format=torch.contiguous_format,
        autocast=autocast or nullcontext(),
    )


def test_the_numbers_are_those_of_the_whole_set_at_once():
    model, (inputs, target) = some_model(), some_data().tensors
    output = model.eval()(inputs)
    numbers = measured(model.train())
    assert numbers["val_loss"] == pytest.approx(F.cross_entropy(output, target).item())
    assert numbers["val_accuracy"] == pytest.approx((output.argmax(1) == target).sum().item() / 11)


def test_the_numbers_do_not_depend_on_the_batch_size():
    sizes = [measured(some_model(), batch_size=size) for size in (1, 4, 11)]
    assert sizes[0] == pytest.approx(sizes[1]) and sizes[1] == pytest.approx(sizes[2])


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_the_mode_that_it_was_in(training):
    model = some_model().train(training)
    measured(model)
    assert model.training is training


def test_the_model_is_left_in_its_mode_when_a_batch_raises():
    model = some_model().train()
    with pytest.raises(RuntimeError):
        measured(model, TensorDataset(torch.randn(4, 7), torch.zeros(4, dtype=torch.long)))
    assert model.training


def test_no_gradient_is_computed():
    model, seen = some_model(), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    measured(model)
    assert set(seen) == {False}


def test_numbers_of_an_earlier_evaluation_do_not_count():
    metrics = Metrics([accuracy], "val_")
    first = measured(some_model(), metrics=metrics)
    assert measured(some_model(), metrics=metrics) == first


def test_batches_are_computed_in_the_given_precision():
    model, seen = some_model(), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    measured(model, autocast=torch.autocast("cpu", torch.bfloat16))
    assert set(seen) == {torch.bfloat16}


def test_a_signal_ends_it_between_batches():
    with signals.watched():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            measured(some_model())


def test_inputs_in_a_dict_go_to_the_model_by_name():
    class Named(nn.Module):
        def forward(self, left, right):
            return left - right

    assert Trainer.predict(Named(), {"right": torch.tensor(2.0), "left": torch.tensor(5.0)}) == 3.0


def test_a_trainer_of_ones_own_says_what_of_a_batch_is_what():
    class Third(Trainer):
        @staticmethod
        def inputs_and_target(batch):
            return batch["x"], batch["wanted"]

        @staticmethod
        def predict(model, inputs):
            return model(inputs) * 0 + 1

    data = [{"x": torch.ones(4), "name": "a", "wanted": torch.ones(3)} for _ in range(3)]
    how = {"device": torch.device("cpu"), "memory_format": torch.contiguous_format, "autocast": nullcontext()}
    numbers = evaluate(Third, some_model(), BaseDataLoader(data, 2), F.mse_loss, Metrics([], "test_"), **how)
    assert numbers == {"test_loss": 0.0}
