"""A generative adversarial network, its losses and how good it is."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from base import BaseModel


class Gan(BaseModel):
    """DCGAN (Radford et al. 2016, arXiv:1511.06434) for 28×28 grey images in [-1, 1], with its initial weights.

    Takes (B, 1, 28, 28) real images and generates as many. Returns {"images": the generated ones, "logits": (B, 2), the
    discriminator's that the real ones, and the generated ones, are real}. latent: numbers that an image is made of.
    width: channels next to the images; the inner layers have twice as many.
    The discriminator normalises each image by itself, where theirs does the batch: one that learns on batches of one
    kind, real or generated, judges otherwise by the statistics of both.
    """

    def __init__(self, latent=64, width=32):
        super().__init__()
        self.latent = latent
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, 7, bias=False),  # (B, 2 × width, 7, 7)
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),  # (B, width, 14, 14)
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),  # (B, 1, 28, 28)
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.InstanceNorm2d(2 * width, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 7),
            nn.Flatten(),
        )
        self.apply(_as_in_dcgan)

    def forward(self, images):
        generated = self.generator(self.noise(len(images)).to(images.device))
        logits = torch.cat([self.discriminator(images), self.discriminator(generated)], dim=1)
        return {"images": generated, "logits": logits}

    def noise(self, count, generator=None):
        """(count, latent, 1, 1): what images are made of."""
        return torch.randn(count, self.latent, 1, 1, generator=generator)

    def picture(self, noise):
        """(1, H, W) in [0, 1]: the images that are made of the noise, as many as fill a square."""
        return grid((self.generator(noise) + 1) / 2)


def grid(images):
    """(N, C, H, W) images, as many as make a square, row by row in one: (C, rows × H, columns × W)."""
    side = math.isqrt(len(images))
    rows = images[: side * side].unflatten(0, (side, side))
    return rows.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)


def _as_in_dcgan(layer):
    if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(layer.weight, 0.0, 0.02)
    elif isinstance(layer, (nn.BatchNorm2d, nn.InstanceNorm2d)):
        nn.init.normal_(layer.weight, 1.0, 0.02)


def non_saturating_loss(output, target):
    """What each network minimises, by name, and their sum (Goodfellow et al. 2014, arXiv:1406.2661, section 3)."""
    real, generated = output["logits"].unbind(dim=1)
    discriminator = F.softplus(-real).mean() + F.softplus(generated).mean()
    generator = F.softplus(-generated).mean()
    return {"loss": discriminator + generator, "discriminator": discriminator, "generator": generator}


def discriminator_accuracy(output, target):
    """Share of the real and the generated images that the discriminator takes for what they are, in [0, 1]."""
    real, generated = output["logits"].unbind(dim=1)
    return ((real > 0).float().mean() + (generated < 0).float().mean()) / 2


class NearestNeighbour:
    """Share of images, real and generated, whose nearest other image is of their kind, in [0, 1].

    1: the two are far apart; 0.5: they can't be told apart (Lopez-Paz & Oquab 2017, arXiv:1610.06545). Of the first
    `most` real images, which are the target, and as many generated ones; near is meant by the squares of the pixels.
    """

    def __init__(self, most=1000):
        self.most = most
        self.reset()

    def reset(self):
        self.real, self.generated = [], []  # (B, pixels) of each batch

    def update(self, output, target):
        left = self.most - sum(map(len, self.real))
        self.real.append(target[:left].flatten(1).float())
        self.generated.append(output["images"][:left].flatten(1).float())

    def compute(self):
        images = torch.cat(self.real + self.generated)
        distances = torch.cdist(images, images).fill_diagonal_(torch.inf)
        is_real = torch.arange(len(images), device=images.device) < len(images) // 2
        return (is_real[distances.argmin(dim=1)] == is_real).float().mean()
