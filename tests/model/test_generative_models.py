"""The adversarial networks and the autoencoder, their losses and numbers."""

import math

import pytest
import torch
from torch import nn

from model.autoencoder import Autoencoder
from model.gan import Gan, NearestNeighbour, discriminator_accuracy, non_saturating_loss


@pytest.fixture
def images():
    return torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_an_autoencoder_paints_as_many_images_from_few_numbers(images):
    model = Autoencoder(latent=5, width=2)
    assert model.encoder(images).shape == (6, 5)
    painted = model(images)
    assert painted.shape == images.shape and painted.min() >= 0 and painted.max() <= 1


def test_a_gan_judges_real_images_and_as_many_generated_ones(images):
    model = Gan(latent=5, width=2).eval()
    torch.manual_seed(3)
    output = model(images)
    torch.manual_seed(3)
    generated = model.generator(torch.randn(6, 5, 1, 1))
    assert generated.shape == images.shape and generated.abs().max() <= 1
    torch.testing.assert_close(output["images"], generated)
    for column, judged in enumerate((images, generated)):
        torch.testing.assert_close(output["logits"][:, column], model.discriminator(judged)[:, 0])


def test_a_gan_begins_with_the_weights_of_dcgan():
    """Normal numbers of deviation 0.02, around 0, and around 1 for what scales a normalised channel."""
    torch.manual_seed(0)
    kinds = {nn.Conv2d: [], nn.ConvTranspose2d: [], nn.BatchNorm2d: [], nn.InstanceNorm2d: []}
    for layer in Gan(64, 64).modules():
        if type(layer) in kinds:
            kinds[type(layer)].append(layer.weight.flatten())
    for kind, weights in kinds.items():
        weights = torch.cat(weights)
        assert weights.std().item() == pytest.approx(0.02, rel=0.2)
        assert weights.mean().item() == pytest.approx(1 if "Norm" in kind.__name__ else 0, abs=0.01)


def test_each_network_minimises_its_cross_entropy():
    logits = torch.tensor([[0.5, -1.0], [2.0, 0.3], [-4.0, 3.0]], dtype=torch.float64)
    real, generated = ([1 / (1 + math.exp(-value)) for value in column] for column in logits.T.tolist())
    discriminator = -sum(math.log(p) + math.log(1 - q) for p, q in zip(real, generated)) / 3
    generator = -sum(math.log(q) for q in generated) / 3
    loss = {name: value.item() for name, value in non_saturating_loss({"logits": logits}, None).items()}
    assert loss == pytest.approx(
        {"loss": discriminator + generator, "discriminator": discriminator, "generator": generator}
    )


def test_the_discriminator_is_right_about_a_share_of_both_kinds():
    logits = torch.tensor([[1.0, -1.0], [2.0, 1.0], [-1.0, -2.0], [3.0, -0.1]])
    assert discriminator_accuracy({"logits": logits}, None).item() == (3 + 3) / 8


def told_apart(real, generated, batches=1, most=1000):
    metric = NearestNeighbour(most)
    for target, images in zip(real.chunk(batches), generated.chunk(batches)):
        metric.update({"images": images}, target)
    return float(metric.compute())


def test_the_share_of_images_next_to_their_own_kind_is_that_of_a_brute_force():
    torch.manual_seed(0)
    real, generated = torch.randn(12, 1, 2, 2), torch.randn(12, 1, 2, 2) * 0.5
    images = [(kind, image.flatten().tolist()) for kind, some in enumerate((real, generated)) for image in some]
    right = 0
    for i, (kind, image) in enumerate(images):
        others = [(math.dist(image, other), its) for j, (its, other) in enumerate(images) if j != i]
        right += min(others)[1] == kind
    assert told_apart(real, generated) == told_apart(real, generated, batches=4) == pytest.approx(right / 24)
    assert told_apart(real, generated, batches=4, most=5) == pytest.approx(told_apart(real[:5], generated[:5]))


def test_images_far_from_the_real_ones_are_told_apart():
    torch.manual_seed(0)
    real = torch.randn(50, 1, 3, 3)
    assert told_apart(real, real.flip(0) + 100) == 1
    assert told_apart(torch.randn(300, 1, 1, 2), torch.randn(300, 1, 1, 2)) == pytest.approx(0.5, abs=0.1)
