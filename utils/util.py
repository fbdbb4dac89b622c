"""Small things that projects of this lineage import: JSON files, an endless loader, a device, a table of means."""

import itertools
import json
import os
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path


def ensure_dir(dirname):
    Path(dirname).mkdir(parents=True, exist_ok=True)


def read_json(fname):
    """The file's content, its objects as OrderedDict."""
    return json.loads(Path(fname).read_text(encoding="utf-8-sig"), object_hook=OrderedDict)


def write_json(content, fname):
    with replacing(fname) as temporary:
        temporary.write_text(json.dumps(content, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")


class inf_loop:
    """A loader's batches without end, pass after pass; `state_dict` says where it stands.

    Restoring moves to the position without loading what lies before it where the loader can (a BaseDataLoader),
    else by reading over it.
    """

    def __init__(self, data_loader):
        self.data_loader = data_loader
        self.passes, self.batches = 1, 0  # those that are handed out in this pass
        self._row = self._endless()

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._row)

    def _endless(self):
        while True:
            if hasattr(self.data_loader, "batches_of"):
                left = self.data_loader.batches_of(self.passes, self.batches)
            else:
                left = itertools.islice(self.data_loader, self.batches, None)
            for batch in left:
                self.batches += 1
                yield batch
            if self.batches == 0:
                raise ValueError("inf_loop: the data loader gave no batch; an endless loop over it would never return.")
            self.passes, self.batches = self.passes + 1, 0

    def state_dict(self):
        return {"passes": self.passes, "batches": self.batches}

    def load_state_dict(self, state):
        self.passes, self.batches = state["passes"], state["batches"]
        self._row = self._endless()


@contextmanager
def replacing(path):
    """Yield a temporary path beside `path`, which takes its name when the block has ended, on the disk and whole."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
        if os.name == "posix":
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def as_plain(config):
    """The config as JSON has it; what is no plain value (a logger that a fork put there) becomes its text."""
    return json.loads(json.dumps(config, default=for_json), object_pairs_hook=OrderedDict)


def named(value):
    """{name: one} of a dict, of a list by number, of one alone by ''; nothing of None."""
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {} if value is None else {"": value}


def for_json(value):
    """What `json.dumps` is to write for an object that it does not know: numpy's and torch's numbers, else the text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def prepare_device(n_gpu_use):
    """The device to train on and the indices to give to DataParallel: (torch.device, list of int).

    Asking for more GPUs than there are is told and takes those that are there.
    """
    import warnings

    import torch

    there = torch.cuda.device_count()
    if n_gpu_use > there:
        warnings.warn(f"n_gpu is {n_gpu_use}, but this machine has {there} GPUs; taking {there}.", stacklevel=2)
    return torch.device("cuda:0" if there and n_gpu_use > 0 else "cpu"), list(range(min(n_gpu_use, there)))


class MetricTracker:
    """Means of named values, weighted by the `n` that each was measured on.

    A value may be a number or a tensor of one element; tensors are summed where they are and read when a mean is
    asked for. With a `writer`, each update also goes there under its key.
    """

    def __init__(self, *keys, writer=None):
        self.writer = writer
        self._sums = dict.fromkeys(keys, 0.0)
        self._counts = dict.fromkeys(keys, 0)

    def reset(self):
        for key in self._sums:
            self._sums[key], self._counts[key] = 0.0, 0

    def update(self, key, value, n=1):
        if isinstance(value, tuple):
            value, n = value
        if self.writer is not None:
            self.writer.add_scalar(key, value)
        if hasattr(value, "detach"):
            value = value.detach()
            value = value.float() if value.device.type == "mps" else value.double()  # MPS has no float64
        self._sums[key] = self._sums.get(key, 0.0) + value * n
        self._counts[key] = self._counts.get(key, 0) + n

    def avg(self, key):
        """The mean so far, a Python float; 0.0 before the first update."""
        return float(self._sums[key]) / max(self._counts[key], 1)

    def result(self):
        return {key: self.avg(key) for key in self._sums}

    def keys(self):
        return self._sums.keys()

    def __contains__(self, key):
        return key in self._sums

    def state_dict(self):
        return {"sums": {key: float(value) for key, value in self._sums.items()}, "counts": dict(self._counts)}

    def load_state_dict(self, state):
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
