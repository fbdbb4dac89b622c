"""Samplers that draw from the rows a loader trains on. A config names one as `sampler` of a DataLoader.

The loader calls `draw_from(dataset, rows)` once; a pass draws from torch's global generator alone, which is seeded for
every pass, so that the draw is the same for any number of workers and processes and after a resume.
"""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Sampler

from utils import imports
from utils.errors import ArgumentError


class BalancedSampler(Sampler):
    """Every class equally often, whatever its share: the numbers of draws of two classes differ by one at most.

    A row comes again within a pass only after all others of its class. labels: one a row of the set; left out, the
    loader's set has them (see extras.splits.labels_of). num_samples: draws of a pass; left out, as many as rows.
    """

    def __init__(self, labels=None, num_samples=None):
        self.labels = labels
        self.num_samples = _checked_count(num_samples)
        if labels is not None:
            self.draw_from(None, np.arange(len(labels)))

    def draw_from(self, dataset, rows):
        """Draw from these rows of the set, (N,) int64."""
        labels_of = imports.optional("extras.splits", "BalancedSampler").labels_of
        labels = labels_of(dataset, "sampler") if self.labels is None else np.asarray(self.labels)
        if dataset is not None and labels.shape != (len(dataset),):
            raise ArgumentError(f"sampler: labels of shape {labels.shape} for a set of {len(dataset)} rows.")
        self.indices = torch.from_numpy(rows)
        self.classes = [torch.from_numpy(rows[labels[rows] == name]) for name in np.unique(labels[rows])]

    def __len__(self):
        return self.num_samples or len(self.indices)

    def __iter__(self):
        each, rest = divmod(len(self), len(self.classes))
        luckier = set(torch.randperm(len(self.classes))[:rest].tolist())
        drawn = torch.cat([_endless(rows, each + (i in luckier)) for i, rows in enumerate(self.classes)])
        return iter(drawn[torch.randperm(len(drawn))].tolist())


class WeightedFileSampler(Sampler):
    """Rows drawn with replacement, each in proportion to its weight.

    path: a text or CSV file with a number a line, without a header, or an .npy file of shape (N,); one weight for each
    row of the set, of any scale, none negative. num_samples: draws of a pass; left out, as many as there are rows.
    """

    def __init__(self, path, num_samples=None):
        self.path = path
        self.weights = _read_weights(Path(path))
        self.num_samples = _checked_count(num_samples)

    def draw_from(self, dataset, rows):
        """Draw from these rows of the set, (N,) int64."""
        if len(self.weights) != len(dataset):
            raise ArgumentError(f"sampler: {self.path} holds {len(self.weights)} weights for {len(dataset)} rows.")
        self.indices = torch.from_numpy(rows)
        ends = np.cumsum(self.weights[rows])
        if not ends[-1] > 0:
            raise ArgumentError(f"sampler: {self.path}: all {len(rows)} rows that are trained on have the weight 0.")
        self.ends = torch.from_numpy(ends / ends[-1])

    def __len__(self):
        return self.num_samples or len(self.indices)

    def __iter__(self):
        # Not torch.multinomial, which takes 2^24 rows at most.
        drawn = torch.searchsorted(self.ends, torch.rand(len(self), dtype=torch.float64), right=True)
        return iter(self.indices[drawn].tolist())


def _endless(rows, count):
    """(count,): the rows in a random order, then in another, as often as it takes."""
    passes = max(-(-count // len(rows)), 1)
    return torch.cat([rows[torch.randperm(len(rows))] for _ in range(passes)])[:count]


def _checked_count(count):
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ArgumentError(f"num_samples: {count!r}; a whole number from 1 on is wanted.")
    return count


def _read_weights(path):
    """(N,) float64."""
    try:
        if path.suffix == ".npy":
            weights = np.load(path)
        else:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            weights = np.array([float(line) for line in lines if line.strip()])
    except (OSError, EOFError, ValueError) as error:
        raise ArgumentError(f"path: {path.absolute()}: {error}. A number a line is wanted, or an .npy file.") from error
    if weights.ndim != 1 or weights.dtype.kind not in "fiu":
        raise ArgumentError(f"path: {path.absolute()} is {weights.dtype} of shape {weights.shape}, not (N,) numbers.")
    weights = weights.astype(np.float64)
    if len(wrong := np.flatnonzero(~((weights >= 0) & (weights < np.inf)))):
        raise ArgumentError(f"path: {path.absolute()}: weight {wrong[0] + 1} is {weights[wrong[0]]}, not from 0 on.")
    if not weights.any():
        raise ArgumentError(f"path: {path.absolute()}: no weight above 0; nothing could be drawn.")
    return weights / weights.max()
