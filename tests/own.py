"""A user's module of what few projects have: a loop, a loss with a state, a set that is told its pass, all of its own.

Copied beside a config by the fixture `lab`; it stands on `noisy`, in which everything is drawn.
"""

import multiprocessing

import torch
from noisy import Noisy
from torch import nn
from toy import say

from base import BaseTrainer
from trainer.trainer import Trainer


def one_pass(trainer, optimizers):
    """A plain loop over the trainer's loader, which counts no batches; the mean loss."""
    trainer.model.train()
    losses = []
    for inputs, target in trainer.data_loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = trainer.criterion(trainer.model(inputs), target)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses) / len(losses)}


class Loop(Trainer):
    """Trains by a loop of its own."""

    def _train_epoch(self, epoch):
        return one_pass(self, [self.optimizer])


class Pair(BaseTrainer):
    """Moves the first layer and the last by an Adam each, in a list; the optimizer of the config stands by."""

    def __init__(self, model, criterion, metric_ftns, optimizer, config, data_loader, **others):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        self.data_loader = data_loader
        self.movers = [torch.optim.Adam(model[i].parameters(), lr=0.01 * (i + 1)) for i in (0, 3)]

    def _train_epoch(self, epoch):
        return one_pass(self, self.movers)


class Leaving(Trainer):
    """Notes how many processes are left when a run has ended."""

    def train(self):
        best = super().train()
        say(left=len(multiprocessing.active_children()))
        return best


class Centred(nn.Module):
    """A loss with running statistics: it is measured from the mean of the outputs so far."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output, target):
        with torch.no_grad():
            self.mean.lerp_(output.mean(), 0.1)
        return ((output - target - self.mean) ** 2).mean()


class Passing(Noisy):
    """Its points grow with the pass that it was told."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * self.epoch, y


class Broken(Noisy):
    def __getitem__(self, index):
        raise RuntimeError("an example that can't be read")


class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = [][0]


def too_large_to_validate(output, target):
    if not torch.is_grad_enabled():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")
    return ((output - target) ** 2).mean()
