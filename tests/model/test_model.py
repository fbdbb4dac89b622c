"""The example model, loss and metrics, against torch's own and brute force."""

import pytest
import torch
import torch.nn.functional as F

from model.loss import nll_loss
from model.metric import accuracy, top_k_acc, top_k_accuracy
from model.model import MnistModel


def some_outputs(count=50, classes=10):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, classes, generator=generator), torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize("classes", [10, 3])
def test_the_model_gives_log_probabilities_of_every_class(classes):
    torch.manual_seed(0)
    output = MnistModel(classes).eval()(torch.randn(2, 1, 28, 28))
    assert output.shape == (2, classes)
    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(2))


def test_the_model_has_as_many_parameters_as_it_says():
    assert str(MnistModel()).endswith("Trainable parameters: 21,840")


def test_the_model_drops_out_in_training_only():
    torch.manual_seed(0)
    model, images = MnistModel(), torch.randn(8, 1, 28, 28)
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))


def test_the_loss_is_the_mean_negative_log_probability_of_the_true_class():
    output, target = some_outputs()
    output = F.log_softmax(output, dim=1)
    expected = -sum(output[i, target[i]] for i in range(50)) / 50
    torch.testing.assert_close(nll_loss(output, target), expected)


def test_accuracy_is_the_share_whose_largest_output_is_the_true_class():
    output, target = some_outputs()
    right = sum(max(range(10), key=row.__getitem__) == true for row, true in zip(output.tolist(), target.tolist()))
    assert float(accuracy(output, target)) == pytest.approx(right / 50)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_top_k_accuracy_is_the_share_whose_true_class_is_among_the_k_largest(k):
    output, target = some_outputs()
    right = sum(
        true in sorted(range(10), key=row.__getitem__)[-k:] for row, true in zip(output.tolist(), target.tolist())
    )
    assert float(top_k_accuracy(output, target, k)) == pytest.approx(right / 50)


def test_top_k_accuracy_has_its_older_name():
    assert top_k_acc(*some_outputs()) == top_k_accuracy(*some_outputs())
