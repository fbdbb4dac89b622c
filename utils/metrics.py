"""What a run measures: sums over examples, kept where they are computed and read only when they are shown."""

import math

import torch

from utils import processes
from utils.errors import ConfigError


class Metrics:
    """The loss and every metric, over all examples since `reset`.

    A metric is a function (output, target) → mean over the batch's examples, or an object with update(output, target),
    compute() and reset() as in torchmetrics. Its name is its `__name__`. Before each batch `expect(examples)` says how
    many examples of it count here; a mean is weighted by them, so a small last batch weighs what it holds.
    """

    def __init__(self, metric_ftns, prefix="", device="cpu"):
        self.prefix = prefix
        self.device = torch.device(device)
        self._dtype = torch.float32 if self.device.type == "mps" else torch.float64  # MPS has no float64
        names = ["loss", *map(name_of, metric_ftns)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"metrics: two numbers would be called '{twice[0]}'; give one of them another 'name'.")
        self._functions = {name_of(m): m for m in metric_ftns if not _is_object(m)}
        self._objects = {name_of(m): m for m in metric_ftns if _is_object(m)}
        alone = [name for name, metric in self._objects.items() if not hasattr(metric, "dist_sync_fn")]
        if alone and processes.size() > 1:
            raise ConfigError(
                f"metrics: '{alone[0]}' can't be gathered from several processes; torchmetrics' objects can."
            )
        self._examples = 0
        self.reset()

    def names(self):
        """The names of the numbers, as `result` gives them."""
        return [self.prefix + name for name in ("loss", *self._functions, *self._objects)]

    def reset(self):
        self._sums = {}
        self._count = 0  # examples, a Python number: the plan knows it
        self._loss_count = 0  # the loss's own count, where the criterion gives one
        for metric in self._objects.values():
            metric.reset()

    def expect(self, examples):
        """The next batch holds so many examples that count on this process; 0 where it only keeps step."""
        self._examples = examples

    @torch.no_grad()
    def update(self, output, target, loss):
        """Add a batch, without a wait for the device. loss: a mean over the batch's examples, or (sum, count)."""
        examples = self._examples
        self._count += examples
        if isinstance(loss, tuple):
            self._add("loss", loss[0], 1 if examples else 0)
            self._loss_count = self._loss_count + (loss[1] if examples else 0)
        else:
            self._add("loss", loss, examples)
            self._loss_count = self._loss_count + examples
        for name, function in self._functions.items():
            self._add(name, function(output, target), examples)
        if examples:
            for metric in self._objects.values():
                metric.update(output, target)

    def _add(self, name, mean, weight):
        total = self._sums.get(name)
        if total is None:
            total = self._sums[name] = torch.zeros((), dtype=self._dtype, device=self.device)
        if weight:
            total.add_(mean, alpha=weight)

    def result(self):
        """{name: Python float} over all processes; NaN where nothing was measured. Waits for the device."""
        names = ["loss", *self._functions]
        values = [self._loss_count, self._count, *(self._sums.get(name, 0.0) for name in names)]
        packed = torch.stack([torch.as_tensor(value, dtype=self._dtype, device=self.device) for value in values])
        loss_count, count, *totals = processes.sum_over_all(packed).tolist()
        divisors = [loss_count] + [count] * len(self._functions)
        numbers = {
            self.prefix + name: total / divisor if divisor else math.nan
            for name, total, divisor in zip(names, totals, divisors)
        }
        for name, metric in self._objects.items():
            numbers[self.prefix + name] = float(metric.compute())
        return numbers

    def loss_so_far(self):
        """(sum, count) of this process's loss, as Python floats, for a mean over some steps. Waits for the device."""
        return self._sums["loss"].item() if "loss" in self._sums else 0.0, float(self._loss_count)

    def state_dict(self):
        objects = {name: _state_of(metric) for name, metric in self._objects.items()}
        return {"sums": dict(self._sums), "count": self._count, "loss_count": self._loss_count, "objects": objects}

    def load_state_dict(self, state):
        self.reset()
        self._sums = {name: total.to(self.device) for name, total in state["sums"].items()}
        self._count, self._loss_count = state["count"], state["loss_count"]
        for name, kept in state["objects"].items():
            if name in self._objects:
                _restore(self._objects[name], kept, self.device)


def name_of(metric):
    """What a metric is called in the log: its `__name__`, or else its class's."""
    return getattr(metric, "__name__", type(metric).__name__)


def _is_object(metric):
    return all(hasattr(metric, method) for method in ("update", "compute", "reset"))


def _state_of(metric):
    """A metric object's own state_dict; without one, its attributes that are tensors, numbers or lists of them.

    torchmetrics gives an empty state_dict (its states are not persistent) and is kept by its attributes, too.
    """
    if hasattr(metric, "state_dict") and (state := metric.state_dict()):
        return {"state_dict": state}
    return {"attributes": {name: value for name, value in vars(metric).items() if _is_number(value)}}


def _is_number(value):
    if isinstance(value, list):
        return all(isinstance(item, (torch.Tensor, int, float)) for item in value)
    return isinstance(value, (torch.Tensor, int, float)) and not isinstance(value, bool)


def _restore(metric, kept, device):
    if "state_dict" in kept:
        metric.load_state_dict(kept["state_dict"])
    for name, value in kept.get("attributes", {}).items():
        if isinstance(value, torch.Tensor):
            value = value.to(device)
        elif isinstance(value, list):
            value = [item.to(device) if isinstance(item, torch.Tensor) else item for item in value]
        setattr(metric, name, value)
