"""What of a trainer is saved and put back, and which changes a resumed run can take."""

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

    COUNTERS: tuple[str, ...] = ("position", "not_improved", "judged", "best_log")  # attributes, plain values

    config: Any
    logger: Any
    model: Any
    optimizer: Any
    checkpoint_dir: Any
    history: Any
    epoch: int
    step: int
    saved_step: int
    not_improved: int
    monitor: str
    mnt_best: float
    _restored: dict[str, Any] | None

    def _finished(self) -> str | None:
        raise NotImplementedError

    def _state(self):
        """The content of a checkpoint."""
        loader = getattr(self, "data_loader", None)
        learned = loader.state_dict() if isinstance(loader, BaseDataLoader) and hasattr(loader, "state_dict") else None
        state = {
            "format": checkpoint.FORMAT,
            "arch": type(checkpoint.unwrapped(self.model)).__name__,
            "epoch": self.epoch,
            "step": self.step,
            "state_dict": _state_of(self._evaluated()),
            "optimizer": _state_of(self.optimizer),
            "lr_scheduler": _state_of(getattr(self, "lr_scheduler", None)),
            "objects": {name: _state_of(value) for name, value in self._others().items()},
            "monitor": self.monitor,
            "monitor_best": self.mnt_best,
            "counters": {name: getattr(self, name) for name in self.COUNTERS},
            "finished": bool(self._finished()),
            "data": learned,
            "random": seeds.state(),
            "config": OrderedDict(getattr(self.config, "config", self.config)),
        }
        if self._evaluated() is not self.model:
            state["train_state_dict"] = _state_of(self.model)
        return state

    def _evaluated(self):
        """The model whose weights a checkpoint's `state_dict` holds."""
        return self.model

    def _others(self):
        """What else on this trainer has a state: whatever a subclass set, by its attribute's name."""
        return {name: value for name, value in vars(self).items() if name not in OWN and _has_state(value)}

    def _resume_checkpoint(self, path):
        """Put the weights, the optimizer and the epoch back; `train` does the rest, once the subclass is complete."""
        content = getattr(self.config, "checkpoint", None) or checkpoint.load(path, self.logger.warning)
        changes = getattr(self.config, "changes", ())
        _refuse_what_can_not_change(changes, content, self.config)
        for name, saved, now in changes:
            self.logger.info(f"changed  {name}: {saved!r} → {now!r}")
        checkpoint.load_weights(self.model, content.get("train_state_dict", content["state_dict"]), path)
        _restore(self.optimizer, content["optimizer"], "optimizer", path)
        _apply_to_optimizers(changes, self.optimizer, self.config)
        self.epoch, self.step = content["epoch"], content.get("step", 0)
        self.start_epoch = self.epoch + 1
        if content.get("monitor", self.monitor) == self.monitor:
            self.mnt_best = content["monitor_best"]
        self._restored = content
        self.logger.info(f"resumed  {path}: epoch {self.epoch}, step {self.step}")

    def _restore_rest(self):
        """What the subclass set after BaseTrainer's own __init__, and last the random numbers."""
        content, self._restored, self.config.checkpoint = self._restored, None, None
        if content is None:
            return
        path, schedule = self.config.resume, getattr(self, "lr_scheduler", None)
        if schedule is not None and content.get("lr_scheduler") is not None:
            _refuse_stretching(schedule, content["lr_scheduler"])
            _restore(schedule, content["lr_scheduler"], "lr_scheduler", path)
        for name, value in self._others().items():
            if name in content.get("objects", {}):
                _restore(value, content["objects"][name], name, path)
        for name in content.get("counters", {}).keys() & set(self.COUNTERS):
            setattr(self, name, content["counters"][name])
        if content.get("monitor", self.monitor) != self.monitor:
            self.not_improved = 0
        self.saved_step = self.step
        loader: Any = getattr(self, "data_loader", None)
        if content.get("data") is not None and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(content["data"])
        if self._evaluated() is not self.model:
            checkpoint.load_weights(self._evaluated(), content["state_dict"], path)
        if "random" in content:
            seeds.set_state(content["random"])

    def _inherit_history(self):
        """metrics.jsonl up to the checkpoint, copied first where a new run branches off from an older one."""
        if self.config.resume is None:
            return
        before = Path(self.config.resume).parent / "metrics.jsonl"
        if before.exists() and not self.history.path.exists():
            shutil.copyfile(before, self.history.path)
        self.history.cut(self.epoch, self.step)


def _has_state(value):
    if isinstance(value, dict):
        return bool(value) and all(_has_state(item) for item in value.values())
    return (
        hasattr(value, "state_dict")
        and hasattr(value, "load_state_dict")
        and not isinstance(value, (BaseDataLoader, type))
    )


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


def _refuse_what_can_not_change(changes, content, config):
    """ConfigError for a changed value that a resumed run could not act upon."""
    saved = content.get("config")
    schedule = saved.get("lr_scheduler") if isinstance(saved, dict) and config.get("lr_scheduler") is not None else None
    kind = schedule if isinstance(schedule, str) else (schedule or {}).get("type", "the schedule")
    for name, was, now in changes:
        section, reason = name.partition(".")[0], None
        if name.endswith(FREE):
            continue
        if name == "optimizer.type" or (section == "lr_scheduler" and schedule is not None):
            reason = f"the saved state is another one's. Set {section} back, or start a new run."
        elif name == "optimizer.args.lr" and schedule is not None and not kind.endswith("ReduceLROnPlateau"):
            reason = f"{kind} goes on from the saved rate and would overrule it. {_GO_ON}"
        elif content.get("counters", {}).get("position") and name.startswith(LINKED):
            reason = (
                "the checkpoint stands inside an epoch, whose batches would be others. Set it back, or resume from a "
                "checkpoint-epochN.pth."
            )
        if reason:
            raise ConfigError(f"{name}: {was!r} → {now!r}: {reason}")


_GO_ON = "Add lr_scheduler=null optimizer.args.lr=X to train on at a constant rate, or start a new run."


def _refuse_stretching(schedule, state):
    """ConfigError where a schedule that was shaped for one length of the run is to go on in another."""
    if isinstance(schedule, dict):
        for name, one in schedule.items():
            _refuse_stretching(one, state[name])
        return
    for length in ("total_steps", "T_max"):
        was, now = state.get(length), getattr(schedule, length, None)
        if was != now:
            raise ConfigError(
                f"lr_scheduler: {type(schedule).__name__} was shaped for {length}={was}; this run has {now}.\n{_GO_ON}"
            )


def _apply_to_optimizers(changes, optimizer, config):
    """A changed argument of an optimizer takes effect: its saved state had overwritten it.

    Where the schedule was taken away, all arguments do, since the schedule may have moved any.
    """
    all_of_them = any(path == "lr_scheduler" and now is None for path, _, now in changes)
    for name, one in (optimizer if isinstance(optimizer, dict) else {"": optimizer}).items():
        prefix = f"optimizer.{name}.args.".replace("..", ".")
        wanted = {path[len(prefix) :]: now for path, _, now in changes if path.startswith(prefix)}
        if all_of_them:
            spec = config["optimizer"][name] if name else config["optimizer"]
            wanted = spec.get("args", {}) if isinstance(spec, dict) else {}
        for group in one.param_groups:
            group.update(wanted)
            if "lr" in wanted and "initial_lr" in group:
                group["initial_lr"] = wanted["lr"]
