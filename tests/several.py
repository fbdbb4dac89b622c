"""What several processes do together in tests: a user's module, and a script that runs a function of one.

`python several.py MODULE FUNCTION FOLDER` calls MODULE.FUNCTION(FOLDER) in a process of a group.
"""

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).resolve().parents[1]


class Net(nn.Module):
    """In float64, where how numbers are summed up can't be seen in ten digits; a submodule is called `module`."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.module = nn.Sequential(nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8), nn.Tanh())
        self.last = nn.Linear(8, 3)
        self.double()

    def forward(self, x):
        return self.last(self.module(self.first(x)))


class Rows(TensorDataset):
    """`count` rows of 4 numbers, each of one of 3 classes."""

    def __init__(self, count=13, seed=1):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
        super().__init__(inputs, torch.randint(3, (count,), generator=generator))


def mean_loss(output, target):
    return F.cross_entropy(output, target)


def accuracy(output, target):
    return (output.argmax(dim=1) == target).double().mean()


def data_parallel(model, device):
    """torch's DataParallel, which on the CPU hands its input on."""
    return nn.DataParallel(model)


def config(saved, **sections):
    """13 rows in batches of 4, two batches an update: of the last batch one of two processes gets no row."""
    loader = {"type": "DataLoader", "args": {"dataset": {"type": "several.Rows"}, "batch_size": 4, "shuffle": True}}
    validation = {"type": "several.Rows", "args": {"count": 5, "seed": 2}}
    trainer = {"epochs": 2, "accumulate": 2, "clip_grad_norm": 0.2, "ema_decay": 0.8, "monitor": "min val_loss"}
    made = {
        "name": "several",
        "arch": "several.Net",
        "data_loader": loader,
        "valid_data_loader": {"type": "DataLoader", "args": {"dataset": validation, "batch_size": 4}},
        "loss": "several.mean_loss",
        "metrics": ["several.accuracy"],
        "optimizer": {"type": "AdamW", "args": {"lr": 0.01}},
        "lr_scheduler": {"type": "OneCycleLR", "args": {"max_lr": 0.05}, "interval": "step"},
        **sections,
    }
    more = {"save_dir": str(saved), "tensorboard": False, "verbosity": 0}
    return {**made, "trainer": {**trainer, **more, **sections.get("trainer", {})}}


def started(count, module, function, folder, **environment):
    """`count` processes of a group that call a test module's function with the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(map(str, [ROOT, *sorted({Path(module.__file__).parent, ROOT / "tests"})]))
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "PYTHONPATH": paths}
    words = [sys.executable, __file__, module.__name__.rpartition(".")[2], function, str(folder)]
    return [
        subprocess.Popen(
            words,
            env={**os.environ, **group, "OMP_NUM_THREADS": "1", "RANK": str(i), "LOCAL_RANK": str(i), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(count)
    ]


def together(count, module, function, folder, seconds=150, **environment):
    """What `count` processes have printed that called a test module's function with the folder, all with success."""
    processes, said = started(count, module, function, folder, **environment), []
    try:
        said = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * count, "\n".join(said)
    return said


def main(module, function, folder):
    from utils import processes

    torch.set_num_threads(1)
    processes.join(timeout_seconds=120)
    getattr(importlib.import_module(module), function)(Path(folder))
    processes.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
