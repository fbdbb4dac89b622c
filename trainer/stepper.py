"""The optimizer's side of a step: how weights move. The trainer says when."""

from contextlib import nullcontext

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from utils import processes
from utils.checkpoint import unwrapped
from utils.errors import OutOfMemory

PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """Mixed precision, accumulation, clipping, the moving average of the weights and the schedule.

    model: as the loop calls it. optimizer, lr_scheduler: one, or {name: one}. accumulate: batches in an update; a
    shorter last update and batches of unequal size still give the full batch's gradient. amp: "off" | "bf16" | "fp16".
    clip_grad_norm: largest total 2-norm of the true (unscaled) gradients, None for none. ema_decay: with it,
    `evaluated` is a moving average of the weights. interval: what the schedule counts, "epoch" or "step" (updates).
    """

    def __init__(
        self,
        model,
        optimizer,
        lr_scheduler=None,
        *,
        device,
        amp="off",
        clip_grad_norm=None,
        ema_decay=None,
        interval="epoch",
    ):
        self.model = model
        self.optimizers = list(optimizer.values()) if isinstance(optimizer, dict) else [optimizer]
        schedulers = lr_scheduler if isinstance(lr_scheduler, dict) else {"": lr_scheduler}
        self.schedulers = [scheduler for scheduler in schedulers.values() if scheduler is not None]
        self.by_step = interval == "step"
        self.clip_grad_norm = clip_grad_norm
        self._precision = precision(amp, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "fp16")
        self._average = _moving_average(unwrapped(model), ema_decay) if ema_decay else None
        self._update = _Update()
        self._gather = getattr(model, "no_sync", nullcontext)  # DistributedDataParallel: gradients meet once an update
        self._share, self._first, self._last = 1.0, True, True
        self._planned, self._counted = 1, None

    @property
    def evaluated(self):
        """The model that is validated and tested: with an average, the averaged one."""
        return self._average.module if self._average is not None else self.model

    def expect(self, examples, total, first=True, last=True):
        """The next batch holds `examples` of the update's `total` (over all processes), and is its first, its last."""
        self._share = examples * processes.size() / total if total else 0.0
        self._first, self._last, self._planned = first, last, total

    def update(self):
        """The block in which a batch is computed."""
        return self._update

    def zero_grad(self):
        """Drop the gradients, at the start of an update."""
        if self._first:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)

    def autocast(self):
        return self._precision

    def backward(self, loss):
        """Add the batch's share to the gradients.

        loss: mean over the batch's examples, or (sum, count) where the criterion averages over something else; then the
        update's gradients are those of sum of sums / sum of counts.
        """
        if isinstance(loss, tuple):
            loss = self._counted_loss(*loss)
        elif self._share != 1.0:
            loss = loss * self._share
        with nullcontext() if self._last else self._gather():
            self.scaler.scale(loss).backward()

    def _counted_loss(self, total, count):
        weight = 1.0 if self._share else 0.0  # a process without a row only keeps step
        exact = torch.promote_types(total.dtype, torch.float32)  # bfloat16 stops counting at 256
        count = torch.as_tensor(count, dtype=exact, device=total.device) * weight
        self._counted = count if self._counted is None else self._counted + count
        return total * (weight * processes.size() / self._planned)

    def step(self):
        """Move the weights, at the end of an update."""
        if not self._last:
            return
        if self._counted is not None:
            count = processes.sum_over_all(self._counted)
            self._rescale(torch.where(count > 0, self._planned / count, 0.0))  # all labels ignored: no gradient
            self._counted = None
        for optimizer in self.optimizers:
            if self.clip_grad_norm is not None:
                # Unscale before clipping: the limit is on true gradients, not on scaled ones.
                self.scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(_parameters(optimizer), self.clip_grad_norm)
            self.scaler.step(optimizer)
        self.scaler.update()
        if self._average is not None:
            self._average.update_parameters(unwrapped(self.model))
        if self.by_step:
            for scheduler in self.schedulers:
                scheduler.step()

    def _rescale(self, factor):
        for optimizer in self.optimizers:
            for parameter in _parameters(optimizer):
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def end_epoch(self, monitored=None):
        """Step the schedules that count epochs; one that waits for a plateau only when its number was measured."""
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                if monitored is not None:
                    scheduler.step(monitored)
            elif not self.by_step:
                scheduler.step()

    def learning_rates(self):
        """The learning rate of every parameter group, in order."""
        return [float(group["lr"]) for optimizer in self.optimizers for group in optimizer.param_groups]

    def state_dict(self):
        """What is not in the optimizer's, the schedule's and the model's own state."""
        averaged = int(self._average.n_averaged) if self._average is not None else 0
        return {"scaler": self.scaler.state_dict(), "averaged": averaged}

    def load_state_dict(self, state):
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self._average is not None:
            self._average.n_averaged.fill_(state["averaged"])


class _Update:
    """Running out of memory is told by what can be done about it."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None and issubclass(kind, torch.OutOfMemoryError):
            first = str(error).split("\n")[0]
            raise OutOfMemory(
                f"Out of memory in an update: {first}\n"
                "Halve data_loader.args.batch_size and double trainer.accumulate: the update stays the same.\n"
                "Or train in half the memory with trainer.amp=bf16."
            ) from error


def precision(amp, device):
    """The context a batch is computed in: autocast for amp "bf16" and "fp16", nothing for "off"."""
    return torch.autocast(device.type, PRECISION[amp]) if amp in PRECISION else nullcontext()


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _moving_average(model, decay):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
