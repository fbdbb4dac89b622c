"""The models of the worked examples."""

import pytest
import torch
from torch import nn

from model.examples import FashionNet, Mlp, Residual, SmallResNet


@pytest.mark.parametrize(
    ("model", "shape"),
    [(FashionNet(4), (2, 1, 28, 28)), (SmallResNet(4), (2, 3, 32, 32)), (SmallResNet(4, 8, 2), (2, 3, 17, 40))],
    ids=["FashionNet", "SmallResNet", "SmallResNet of other sizes"],
)
def test_a_network_gives_a_logit_a_class_whatever_the_images_size(model, shape):
    assert model(torch.randn(shape)).shape == (2, 4)


@pytest.mark.parametrize(("hidden", "expected"), [([5, 7], 3 * 5 + 5 + 5 * 7 + 7 + 7 * 2 + 2), ([], 3 * 2 + 2)])
def test_a_perceptron_has_the_layers_that_were_asked_for(hidden, expected):
    model = Mlp(3, 2, hidden)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model(torch.randn(4, 3)).shape == (4, 2)


def test_a_perceptron_drops_out_in_training_only():
    torch.manual_seed(0)
    model, x = Mlp(3, 2, [50], dropout=0.5), torch.randn(4, 3)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_a_residual_block_adds_its_input_to_what_its_convolutions_give():
    block, x = Residual(3, 3).eval(), torch.randn(2, 3, 8, 8)
    nn.init.zeros_(block.body[3].weight)
    assert torch.equal(block(x), x.relu())


def test_a_residual_block_halves_and_widens():
    block = Residual(3, 6, stride=2)
    assert block(torch.randn(2, 3, 8, 8)).shape == (2, 6, 4, 4)
    assert [m.kernel_size for m in block.shortcut if isinstance(m, nn.Conv2d)] == [(1, 1)]
