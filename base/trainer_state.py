"""What of a trainer is saved and put back."""

import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from base.base_data_loader import BaseDataLoader
from utils import checkpoint, optim, seeds
from utils.errors import CheckpointError, ConfigError

OWN = ("model", "optimizer", "lr_scheduler", "criterion")  # have a place of their own in a checkpoint
FREE = (".num_workers", ".pin_memory", ".prefetch_factor", ".persistent_workers", ".timeout")  # change no number
LINKED = ("data_loader", "loss", "metrics", "seed", "trainer.len_epoch")  # mean where inside an epoch a run stands


class TrainerState:
    """The half of BaseTrainer that makes a checkpoint of itself and goes on from one."""

    config: Any
    logger: Any
    model: torch.nn.Module
    optimizer: Any
    checkpoint_dir: Any
    history: Any
    epoch: int
    step: int
    start_epoch: int
    monitor: str
    mnt_best: float
    not_improved: int
    best_log: dict[str, Any]
    _restored: dict[str, Any] | None
    _judged_step: int

    def _finished(self) -> str | None:
        raise NotImplementedError

    def _state(self):
        """The content of a checkpoint."""
        state = {
            "format": checkpoint.FORMAT,
            "arch": type(checkpoint.unwrapped(self.model)).__name__,
            "epoch": self.epoch,
            "step": self.step,
            "position": self._position(),
            "state_dict": checkpoint.unwrapped(self._evaluated()).state_dict(),
            "optimizer": _state_of(self.optimizer),
            "lr_scheduler": _state_of(getattr(self, "lr_scheduler", None)),
            "monitor": self.monitor,
            "monitor_best": self.mnt_best,
            "not_improved": self.not_improved,
            "judged_step": self._judged_step,
            "best_log": self.best_log,
            "finished": bool(self._finished()),
            "objects": {name: _state_of(value) for name, value in self._others().items()},
            "data": self._data_state(),
            "random": seeds.state(),
            "config": OrderedDict(getattr(self.config, "config", self.config)),
        }
        if self._evaluated() is not self.model:
            state["train_state_dict"] = checkpoint.unwrapped(self.model).state_dict()
        return state

    def _evaluated(self):
        """The model whose weights a checkpoint's `state_dict` holds."""
        return self.model

    def _position(self):
        """Where inside an epoch the run stands, for a subclass that counts."""
        return None

    def _restore_position(self, position):
        """The counterpart of `_position`."""

    def _others(self):
        """What else on this trainer has a state: whatever a subclass set, by its attribute's name."""
        return {name: value for name, value in vars(self).items() if name not in OWN and _has_state(value)}

    def _data_state(self):
        """What the training loader has learned from its data (a vocabulary, class names), None where it keeps nothing."""
        loader = getattr(self, "data_loader", None)
        return loader.state_dict() if isinstance(loader, BaseDataLoader) and hasattr(loader, "state_dict") else None

    def _resume_checkpoint(self, path):
        """Put the weights, the optimizer and the counters back; `train` does the rest, once the subclass is complete."""
        content = getattr(self.config, "checkpoint", None) or checkpoint.load(path, self.logger.warning)
        self._refuse_what_can_not_change(content)
        for name, saved, now in getattr(self.config, "changes", ()):
            self.logger.info(f"changed  {name}: {saved!r} → {now!r}")
        weights = content.get("train_state_dict", content["state_dict"])
        checkpoint.load_weights(self.model, weights, path)
        _restore(self.optimizer, content["optimizer"], "optimizer", path)
        self._apply_changed_optimizer_arguments()
        self.epoch, self.step = content["epoch"], content.get("step", 0)
        self.start_epoch = self.epoch + 1
        self.best_log = content.get("best_log", {})
        if content.get("monitor", self.monitor) == self.monitor:
            self.mnt_best = content["monitor_best"]
            self.not_improved = content.get("not_improved", 0)
            self._judged_step = content.get("judged_step", 0)
        self._restored = content
        self.logger.info(f"resumed  {path}: epoch {self.epoch}, step {self.step}")

    def _restore_rest(self):
        """What the subclass set after BaseTrainer's own __init__, and last the random numbers."""
        content, self._restored = self._restored, None
        if content is None:
            return
        path = self.config.resume
        if getattr(self, "lr_scheduler", None) is not None and content.get("lr_scheduler") is not None:
            _refuse_stretching(self.lr_scheduler, content["lr_scheduler"])
            _restore(self.lr_scheduler, content["lr_scheduler"], "lr_scheduler", path)
        for name, value in self._others().items():
            if name in content.get("objects", {}):
                _restore(value, content["objects"][name], name, path)
        if content.get("data") is not None and hasattr(getattr(self, "data_loader", None), "load_state_dict"):
            self.data_loader.load_state_dict(content["data"])
        if content.get("position") is not None:
            self._restore_position(content["position"])
        self._restore_evaluated(content)
        if "random" in content:
            seeds.set_state(content["random"])
        if hasattr(self.config, "checkpoint"):
            self.config.checkpoint = None  # its tensors are memory that nobody needs any more

    def _restore_evaluated(self, content):
        """Put `state_dict` into the model that is evaluated, where it is not the one that trains."""

    def _refuse_what_can_not_change(self, content):
        """ConfigError for a changed value that a resumed run could not act upon."""
        saved_config = content.get("config")
        schedule = saved_config.get("lr_scheduler") if isinstance(saved_config, dict) else None
        kept = schedule if self.config.get("lr_scheduler") is not None else None
        for name, saved, now in getattr(self.config, "changes", ()):
            if reason := _refusal(name, kept, (content.get("position") or {}).get("batches")):
                raise ConfigError(f"{name}: {saved!r} → {now!r}: {reason}")

    def _apply_changed_optimizer_arguments(self):
        """A changed argument of the optimizer takes effect: its saved state had overwritten it."""
        optimizers = self.optimizer if isinstance(self.optimizer, dict) else {"": self.optimizer}
        for path, _, value in getattr(self.config, "changes", ()):
            section, _, rest = path.partition(".")
            name, _, argument = rest.rpartition("args.")
            if section != "optimizer" or "args." not in rest:
                continue
            for group in optimizers[name.rstrip(".")].param_groups:
                group[argument] = value
                if argument == "lr" and "initial_lr" in group:
                    group["initial_lr"] = value

    def _inherit_history(self):
        """metrics.jsonl up to the checkpoint, copied first where a new run branches off from an older one."""
        resumed_run = Path(self.config.resume).parent
        if resumed_run.resolve() != Path(self.checkpoint_dir).resolve() and (resumed_run / "metrics.jsonl").exists():
            shutil.copyfile(resumed_run / "metrics.jsonl", self.history.path)
        self.history.cut(self.step)


def _has_state(value):
    if isinstance(value, dict):
        return bool(value) and all(_has_state(item) for item in value.values())
    if isinstance(value, BaseDataLoader) or isinstance(value, type):
        return False
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _state_of(value):
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: _state_of(item) for name, item in value.items()}
    return (checkpoint.unwrapped(value) if isinstance(value, torch.nn.Module) else value).state_dict()


def _restore(value, state, name, path):
    try:
        if isinstance(value, dict):
            for key, item in value.items():
                _restore(item, state[key], f"{name}.{key}", path)
        elif isinstance(value, torch.optim.Optimizer):
            optim.load_state(value, state)
        elif isinstance(value, torch.nn.Module):
            checkpoint.load_weights(value, state, path)
        else:
            value.load_state_dict(state)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: its state of {name} does not fit this run: {error}") from error


def _refusal(name, schedule, inside):
    """Why the changed value `name` can't take effect, or None.

    schedule: the saved run's, where this one keeps it. inside: whether the checkpoint stands inside an epoch.
    """
    section = name.partition(".")[0]
    if name.endswith(FREE):
        return None
    if name == "optimizer.type" or (section == "lr_scheduler" and schedule is not None):
        return f"the saved state is another one's. Set {section} back, or start a new run."
    if name == "optimizer.args.lr" and schedule is not None and not _type_of(schedule).endswith("ReduceLROnPlateau"):
        return (
            f"{_type_of(schedule)} goes on from the saved rate and would overrule it. "
            "Add lr_scheduler=null to train on at this rate, or start a new run."
        )
    if inside and any(name == key or name.startswith(key + ".") for key in LINKED):
        return (
            "this checkpoint stands inside an epoch, whose batches would be others. Set it back, or resume from a "
            "checkpoint-epochN.pth."
        )
    return None


def _refuse_stretching(scheduler, state):
    """ConfigError where a schedule that was shaped for one length of the run is to go on in another."""
    if isinstance(scheduler, dict):
        for name, one in scheduler.items():
            _refuse_stretching(one, state[name])
        return
    for length in ("total_steps", "T_max"):
        was, now = state.get(length), getattr(scheduler, length, None)
        if was != now and was is not None:
            raise ConfigError(
                f"lr_scheduler: {type(scheduler).__name__} was shaped for {was} steps, and this run would have {now}.\n"
                f"Add lr_scheduler.args.{length}={was} to keep its shape if the run does not outlast it; "
                "or lr_scheduler=null optimizer.args.lr=X to train on at a constant rate; or start a new run."
            )


def _type_of(schedule):
    return schedule if isinstance(schedule, str) else schedule.get("type", "the schedule")
