"""What a run measures: sums over examples, kept where they are computed and read only when they are shown."""

import numpy as np
import torch

from utils import devices, processes
from utils.errors import ConfigError
from utils.objects import name_of

RESERVED = ("loss", "loss_count", "epoch", "step", "lr", "seconds", "samples_per_second", "data_wait", "partial")


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
        self._functions = {name_of(m): m for m in metric_ftns if not _is_object(m)}
        self._objects = {name_of(m): m for m in metric_ftns if _is_object(m)}
        alone = [name for name, metric in self._objects.items() if not hasattr(metric, "dist_sync_fn")]
        if alone and processes.size() > 1:
            why = "can't be gathered from several processes; torchmetrics' objects can."
            raise ConfigError(f"metrics: '{alone[0]}' {why}")
        self._examples = 0  # of the next batch
        self.reset()

    def reset(self):
        self._sums = {}  # on the device, by name; "loss_count" where the criterion counts something else than examples
        self._count = 0  # examples, which the plan knows
        for metric in self._objects.values():
            metric.reset()

    def expect(self, examples):
        """The next batch holds so many examples that count on this process; 0 where it only keeps step."""
        self._examples = examples

    @torch.no_grad()
    def update(self, output, target, loss):
        """Add a batch, without a wait for the device. loss: a mean over its examples, (sum, count), or a dict of more.

        Of a dict "loss" is one of these, and each other number a mean that gets a name of its own.
        """
        self._count += self._examples
        means = dict(loss) if isinstance(loss, dict) else {"loss": loss}
        if twice := means.keys() & {"loss_count", *self._functions, *self._objects}:
            raise ConfigError(f"metrics: the loss gives '{min(twice)}', too; give the metric another 'name'.")
        means |= {name: function(output, target) for name, function in self._functions.items()}
        if isinstance(means["loss"], tuple):
            for name, part in zip(("loss", "loss_count"), means.pop("loss")):
                self._add(name, part, min(self._examples, 1))
        for name, mean in means.items():
            self._add(name, mean, self._examples)
        for metric in self._objects.values() if self._examples else ():
            metric.update(output, target)

    def _add(self, name, mean, weight):
        total = self._sums.get(name)
        if total is None:
            total = self._sums[name] = torch.zeros((), dtype=self._dtype, device=self.device)
        if weight:
            try:
                total.add_(mean, alpha=weight)
            except (TypeError, RuntimeError) as error:
                raise TypeError(f"'{name}' gave {str(mean)[:60]}, where a number is wanted: {error}") from error

    def result(self):
        """{name: Python float} over all processes; NaN where nothing was measured. Waits for the device."""
        names = [name for name in dict.fromkeys(["loss", *self._sums, *self._functions]) if name != "loss_count"]
        values = [self._count, self._sums.get("loss_count", self._count), *(self._sums.get(n, 0.0) for n in names)]
        count, loss_count, *totals = self._together(values).tolist()
        divisors = [loss_count] + [count] * (len(names) - 1)
        means = {name: total / n if n else torch.nan for name, total, n in zip(names, totals, divisors)}
        means |= {name: float(metric.compute()) for name, metric in self._objects.items()}
        return {self.prefix + name: value for name, value in means.items()}

    def _together(self, values):
        """The values in one tensor, summed over all processes."""
        values = [torch.as_tensor(value, dtype=self._dtype, device=self.device) for value in values]
        return processes.sum_over_all(torch.stack(values))

    def loss_so_far(self):
        """(sum, count) of this process's loss, as Python floats, for a mean over some steps. Waits for the device."""
        return float(self._sums.get("loss", 0.0)), float(self._sums.get("loss_count", self._count))

    def state_dict(self):
        """The sums of all processes; what each one's objects have seen, by process."""
        values = self._together([self._count, *self._sums.values()]).cpu()
        objects = processes.gather({n: devices.move(_state_of(m), values.device) for n, m in self._objects.items()})
        return {"count": int(values[0]), "sums": dict(zip(self._sums, values[1:].clone())), "objects": objects}

    def load_state_dict(self, state):
        """Go on from these sums, of several processes the first; its own metric objects each does."""
        self.reset()
        share = int(processes.rank() == 0)  # the others have the names, so that all sum alike
        self._count = state["count"] * share
        self._sums = {name: total.to(self.device, self._dtype) * share for name, total in state["sums"].items()}
        own = dict(enumerate(state["objects"])).get(processes.rank(), {})  # a process that is new has seen nothing
        for name in own.keys() & self._objects.keys():
            _restore(self._objects[name], own[name], self.device)


def _is_object(metric):
    return all(hasattr(metric, method) for method in ("update", "compute", "reset"))


def _state_of(metric):
    """A metric object's own state_dict; without one, its attributes that a checkpoint can hold.

    torchmetrics gives an empty state_dict (its states are not persistent) and is kept by its attributes, too.
    """
    if hasattr(metric, "state_dict") and (state := metric.state_dict()):
        return {"state_dict": state}
    return {"attributes": {name: value for name, value in vars(metric).items() if _can_be_kept(value)}}


def _can_be_kept(value):
    if isinstance(value, (list, tuple, dict)):
        return all(map(_can_be_kept, value.values() if isinstance(value, dict) else value))
    return isinstance(value, (torch.Tensor, int, float, str, np.ndarray, np.generic)) or value is None


def _restore(metric, kept, device):
    if "state_dict" in kept:
        metric.load_state_dict(kept["state_dict"])
    for name, value in devices.move(kept.get("attributes", {}), device).items():
        if isinstance(getattr(metric, name, None), np.ndarray):
            value = np.asarray(value)
        setattr(metric, name, value)
