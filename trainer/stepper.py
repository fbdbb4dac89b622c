"""The optimizer's side of a step: how weights move. The trainer says when."""

import itertools
from contextlib import contextmanager, nullcontext

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from utils import processes
from utils.checkpoint import unwrapped
from utils.util import named

PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """Mixed precision, accumulation, clipping, the moving average of the weights and the schedule.

    model: as the loop calls it. optimizer, lr_scheduler: one, or {name: one}; a schedule whose attribute `interval` is
    "step" counts updates, else epochs. amp: "off" | "bf16" | "fp16". clip_grad_norm: largest total 2-norm of the true
    (unscaled) gradients, None for none. ema_decay: with it, a moving average of the weights is kept, which the model
    has within `averaged`. Batches of unequal size and a shorter last update give the full batch's gradient.
    """

    def __init__(self, model, optimizer, lr_scheduler=None, *, device, amp="off", clip_grad_norm=None, ema_decay=None):
        self.model, self.device, self.amp = model, device, amp
        self.optimizers, self.schedules = named(optimizer), named(lr_scheduler)  # by name
        self._parts, self._moved = [], None  # steppers of one optimizer each; what alone gets gradients
        self.clip_grad_norm = clip_grad_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")
        self.ema_decay = ema_decay
        self._weights = list(unwrapped(model).parameters()) if ema_decay else []
        self._averages = [weight.detach().clone() for weight in self._weights]
        self._precision = precision(amp, device)
        self._apart = getattr(model, "no_sync", nullcontext)  # DistributedDataParallel: gradients meet once an update
        self._whole_norm = getattr(model, "whole_norm", lambda norm: norm)  # where processes have layers of their own
        self._share, self._first, self._last = 1.0, True, True
        self._planned, self._counted = 1, None

    def each(self):
        """{name: Stepper} of the optimizers one by one, told with this one what comes; the last keeps the average.

        Each one's backward gives gradients to the weights that it moves, and to no others.
        """
        how = {"device": self.device, "amp": self.amp, "clip_grad_norm": self.clip_grad_norm}
        parts = {n: Stepper(self.model, one, self.schedules.get(n), **how) for n, one in self.optimizers.items()}
        self._parts = list(parts.values())
        vars(self._parts[-1]).update(ema_decay=self.ema_decay, _weights=self._weights, _averages=self._averages)
        for part in self._parts:
            part._moved = _parameters(*part.optimizers.values())
        return parts

    def expect(self, examples, total, first=True, last=True):
        """The next batch holds `examples` of the update's `total` (over all processes), and is its first, its last."""
        self._share = examples * processes.size() / total if total else 0.0
        self._first, self._last, self._planned = first, last, total
        for part in self._parts:
            part.expect(examples, total, first, last)

    def update(self):
        """The block in which a batch is computed."""
        return nullcontext() if self._last else self._apart()

    def zero_grad(self):
        """Drop the gradients, at the start of an update."""
        if self._first:
            for optimizer in self.optimizers.values():
                optimizer.zero_grad(set_to_none=True)

    def autocast(self):
        return self._precision

    def backward(self, loss):
        """Add the batch's share to the gradients.

        loss: mean over the batch's examples; or (sum, count) where the criterion averages over something else, then the
        update's gradients are those of sum of sums / sum of counts; or a dict, whose "loss" is one of these.
        """
        loss = loss["loss"] if isinstance(loss, dict) else loss
        if isinstance(loss, tuple):
            loss = self._counted_loss(*loss)
        elif self._share != 1.0:
            loss = loss * self._share
        self.scaler.scale(loss).backward(inputs=self._moved)

    def _counted_loss(self, total, count):
        weight = 1.0 if self._share else 0.0  # a process without a row only keeps step
        if self._counted is None:
            exact = torch.promote_types(total.dtype, torch.float32)  # bfloat16 stops counting at 256
            self._counted = torch.zeros((), dtype=exact, device=total.device)
        self._counted = self._counted + count * weight
        return total * (weight * processes.size() / self._planned)

    def step(self):
        """Move the weights, at the end of an update."""
        if not self._last:
            return
        if self._counted is not None:
            count = processes.sum_over_all(self._counted)
            self._rescale(torch.where(count > 0, self._planned / count, 0.0))  # all labels ignored: no gradient
            self._counted = None
        for optimizer in self.optimizers.values():
            if self.clip_grad_norm is not None:
                # Unscale before clipping: the limit is on true gradients, not on scaled ones.
                self.scaler.unscale_(optimizer)
                moved = _parameters(optimizer)
                norm = torch.nn.utils.get_total_norm([p.grad for p in moved if p.grad is not None])
                torch.nn.utils.clip_grads_with_norm_(moved, self.clip_grad_norm, self._whole_norm(norm))
            self.scaler.step(optimizer)
        self.scaler.update()
        if self._averages:  # they move by 1 - ema_decay towards the weights; buffers are the model's
            with torch.no_grad():
                torch._foreach_lerp_(self._averages, self._weights, 1 - self.ema_decay)
        for schedule in self.schedules.values():
            if _counts_steps(schedule):
                schedule.step()

    def averages(self):
        """{name: averaged weights}, tied ones under each of their names; {} where no average is kept."""
        kept = dict(zip(map(id, self._weights), self._averages))
        named_weights = unwrapped(self.model).named_parameters(remove_duplicate=False) if kept else ()
        return {name: kept[id(weight)] for name, weight in named_weights}

    @contextmanager
    def averaged(self):
        """Within the block the model has the averaged weights, where an average is kept."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self):
        for weight, average in zip(self._weights, self._averages):
            before = weight.clone()
            weight.copy_(average)
            average.copy_(before)

    def _rescale(self, factor):
        for parameter in itertools.chain(*map(_parameters, self.optimizers.values())):
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def end_epoch(self, monitored=None):
        """Step the schedules that count epochs; one that waits for a plateau only when its number was measured."""
        for schedule in self.schedules.values():
            if isinstance(schedule, ReduceLROnPlateau):
                if monitored is not None:
                    schedule.step(monitored)
            elif schedule is not None and not _counts_steps(schedule):
                schedule.step()

    def learning_rates(self):
        """The learning rate of every parameter group, in order."""
        return [float(group["lr"]) for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    def state_dict(self):
        """What is not in the optimizer's, the schedule's and the models' own state."""
        return self.scaler.state_dict()

    def load_state_dict(self, state):
        if self.scaler.is_enabled() and state:
            self.scaler.load_state_dict(state)


def _counts_steps(schedule):
    return getattr(schedule, "interval", "epoch") == "step"


def precision(amp, device):
    """The context a batch is computed in: autocast for amp "bf16" and "fp16", nothing for "off"."""
    return torch.autocast(device.type, PRECISION[amp]) if amp in PRECISION else nullcontext()


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
