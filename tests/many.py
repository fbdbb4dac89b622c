"""A user's module for several processes: a model that gets into trouble where it is told to, once.

TROUBLE holds lines "train 12 1 SIGKILL": at the twelfth training batch of the run, on process 1, one of these happens:
a signal by its name to itself, `stop` (SIGTERM to torchrun itself), `raise`, `sleep`, `astray` (its weights change),
`nan` (its output is that); each once in all attempts together. "train 12 * raise": on every process. "valid 3 …": at
the process's third batch of an evaluation.
"""

import os
import signal
import time
from pathlib import Path

import torch
from noisy import Noisy
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from toy import say

from trainer import Trainer
from utils import processes


class Net(nn.Sequential):
    """Batch statistics and dropout; `batches` counts those of the whole run, so that a resumed one counts on."""

    def __init__(self):
        super().__init__(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.evaluated, self.factor = 0, 1.0

    def forward(self, x):
        if self.training:
            self.batches += 1
        else:
            self.evaluated += 1
        now = ("train", int(self.batches)) if self.training else ("valid", self.evaluated)
        for line in os.environ.get("TROUBLE", "").splitlines():
            mode, batch, number, action = line.split()
            here = now == (mode, int(batch)) and number in ("*", str(processes.process_number()))
            if here and _is_first_time(f"{line} {processes.process_number()}"):
                self.trouble(action)
        return super().forward(x) * self.factor

    def trouble(self, action):
        if action == "raise":
            raise KeyError("the trouble that was asked for")
        if action == "sleep":
            time.sleep(300)
        elif action == "astray":
            with torch.no_grad():
                self[0].weight += 1
        elif action == "nan":
            self.factor = float("nan")
        elif action == "stop":
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            os.kill(os.getpid(), getattr(signal, action))


def _is_first_time(name):
    try:
        Path(f"{os.environ['PROBE']} {name.replace('*', 'all')}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Around(Trainer):
    """Calls the model itself, not the one that averages gradients over processes."""

    def predict(self, model, inputs):
        return getattr(model, "module", model)(inputs)


class Elsewhere(Dataset):
    """Noisy's rows, which one process can't find."""

    def __new__(cls, n=50):
        if os.environ.get("RANK") == "1":
            raise FileNotFoundError(2, "No such file or directory", "rows.npy")
        return Noisy(n)


class Seven(IterableDataset):
    """A stream of n rows."""

    def __init__(self, n=7):
        self.n = n

    def __iter__(self):
        for index in range(self.n):
            yield torch.full((4,), index / self.n), torch.zeros(1)


class Finite(nn.Linear):
    """Notes the rows it is trained on and evaluated on."""

    def __init__(self):
        super().__init__(4, 1)

    def forward(self, x):
        say(mode="train" if self.training else "valid", rows=len(x))
        return super().forward(x)
