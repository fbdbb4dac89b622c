"""A user's module in which everything is drawn: transforms from three generators, dropout, batch statistics."""

import os
import random
import signal

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Noisy(Dataset):
    """n points in four dimensions, each time with other noise on them, drawn from torch, numpy and random."""

    def __init__(self, n=50):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.randn(4) * 0.01 + np.random.rand() * 0.01 + random.random() * 0.01
        return self.x[index] + noise, torch.zeros(1)


class Net(nn.Sequential):
    """Batch statistics and dropout; it draws when it is evaluated, too, as Monte Carlo dropout does.

    At the batch that the environment names, INTERRUPT="train 7 SIGINT" or "valid 1 raise", it sends itself the signal
    or signals, or raises; the batches of each kind count from 1 in this process.
    """

    def __init__(self):
        super().__init__(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.seen = {"train": 0, "valid": 0}

    def forward(self, x):
        mode = "train" if self.training else "valid"
        self.seen[mode] += 1
        wanted, number, *actions = os.environ.get("INTERRUPT", "none 0").split()
        if wanted == mode and self.seen[mode] == int(number):
            for action in actions:
                if action == "raise":
                    raise RuntimeError("the interruption that was asked for")
                os.kill(os.getpid(), getattr(signal, action))
        noise = 0 if self.training else 0.01 * (torch.rand(1) + np.random.rand() + random.random())
        return super().forward(x) + noise


class Image(nn.Sequential):
    """A convolution whose weight has other strides in channels_last."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 1))


class Images(Dataset):
    def __init__(self, n=24):
        self.x = torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], torch.ones(1)


def mse(output, target):
    return ((output - target) ** 2).mean()


def size(output, target):
    return output.abs().mean()


class Largest:
    """A metric with a state of its own, kept in attributes as torchmetrics does it: the largest output so far."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.value = torch.tensor(-float("inf"))

    def update(self, output, target):
        self.value = torch.maximum(self.value, output.max())

    def compute(self):
        return self.value


class Median:
    """A metric with a state_dict: the median of the outputs."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.outputs = []

    def update(self, output, target):
        self.outputs += output.flatten().tolist()

    def compute(self):
        return float(np.median(self.outputs))

    def state_dict(self):
        return {"outputs": list(self.outputs)}

    def load_state_dict(self, state):
        self.outputs = list(state["outputs"])


def config(saved, **sections):
    """The config of a run over 50 examples in batches of 8, so the last one holds 2. `trainer` is merged."""
    trainer = {"epochs": 4, "save_dir": str(saved), "keep_last": 0, "tensorboard": False}
    return {
        "name": "noisy",
        "n_gpu": 0,
        "seed": 1,
        "arch": {"type": "noisy.Net"},
        "data_loader": loader(50, batch_size=8, shuffle=True),
        "optimizer": {"type": "AdamW", "args": {"lr": 0.01}},
        "lr_scheduler": {"type": "CosineAnnealingLR", "args": {"T_max": 4}},
        "loss": "noisy.mse",
        "metrics": [],
        **sections,
        "trainer": trainer | sections.get("trainer", {}),
    }


def everything(saved, **sections):
    """The config of a run that also averages its weights, accumulates, validates, and steps its schedule by updates."""
    trainer = {"ema_decay": 0.9, "accumulate": 2, "clip_grad_norm": 1.0, "monitor": "min val_loss", "epochs": 3}
    given = {
        "valid_data_loader": loader(13, batch_size=4, num_workers=0),
        "lr_scheduler": {"type": "OneCycleLR", "args": {"max_lr": 0.05}, "interval": "step"},
        "metrics": ["noisy.size", "noisy.Largest", "noisy.Median"],
        **sections,
    }
    return config(saved, **given | {"trainer": trainer | sections.get("trainer", {})})


def loader(n, **args):
    """A loader's section over Noisy."""
    return {"type": "DataLoader", "args": {"dataset": {"type": "noisy.Noisy", "args": {"n": n}}, **args}}
