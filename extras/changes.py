"""Which changes of its config a resumed run can take, and how they take effect."""

import re

from utils.errors import ConfigError, shown
from utils.util import named

_GO_ON = "Add lr_scheduler=null optimizer.args.lr=X to train on at a constant rate, or start a new run."
_ANOTHERS = "the saved state is another one's. Set it back, or start a new run."
_INSIDE = "the checkpoint stands inside an epoch. Set it back, or resume from a checkpoint-epochN.pth."
_REFUSALS = (  # pattern of a dotted path, when its change is refused, why; the first that matches
    (r".*\.(num_workers|pin_memory|prefetch_factor|persistent_workers|timeout)", "never", ""),  # change no number
    (r"optimizer(\.\w+)?\.type|optimizer", "always", _ANOTHERS),
    (r"lr_scheduler.*", "with a schedule", _ANOTHERS),
    (r"optimizer.*\.args\.(lr|betas|momentum)", "scheduled", f"the schedule goes on and would overrule it. {_GO_ON}"),
    (r"trainer\.overfit", "always", "the run is one on other data. Start a new one."),
    (r"name|trainer\.save_dir", "continued", "the run goes on in its own folder. Set it back."),
    (r"(data_loader|loss|metrics|seed|trainer\.len_epoch)(\..*)?", "inside an epoch", _INSIDE),
)


def refuse(changes, content, config):
    """ConfigError for a changed value that a resumed run could not act upon."""
    schedule, saved = config.get("lr_scheduler"), content.get("config")
    had_one = isinstance(saved, dict) and saved.get("lr_scheduler") is not None
    holds = {
        "never": False,
        "always": True,
        "with a schedule": schedule is not None,
        "scheduled": schedule is not None and had_one and "ReduceLROnPlateau" not in str(schedule),
        "continued": config.continues,
        "inside an epoch": bool(content.get("counters", {}).get("position")),
    }
    for name, was, now in changes:
        matching = [(when, why) for pattern, when, why in _REFUSALS if re.fullmatch(pattern, name)]
        if matching and holds[matching[0][0]]:
            raise ConfigError(f"{name}: {shown(was)} → {shown(now)}: {matching[0][1]}")


def refuse_stretching(schedule, state):
    """ConfigError where a schedule that was shaped for one length of the run is to go on in another."""
    for key, one in named(schedule).items():
        saved = (state if key == "" else state[key]) or {}
        for length in ("total_steps", "T_max"):
            was, now = saved.get(length), getattr(one, length, None)
            if was != now:
                shape = f"{type(one).__name__} was shaped for {length}={was}; this run has {now}"
                raise ConfigError(f"lr_scheduler: {shape}.\n{_GO_ON}")


def apply_to_optimizers(changes, trainer, fresh):
    """A changed argument of an optimizer takes effect, though its saved state has overwritten it.

    fresh: the parameter groups as they were made. Where the schedule was taken away, all arguments are put back, since
    the schedule may have moved any.
    """
    everything = any(path == "lr_scheduler" and now is None for path, _, now in changes)
    groups = [(name, group) for name, one in named(trainer.optimizer).items() for group in one.param_groups]
    for (name, group), made in zip(groups, fresh):
        prefix = f"optimizer.{name}.args.".replace("..", ".")
        changed = {path[len(prefix) :] for path, _, _ in changes if path.startswith(prefix)}
        for argument in made.keys() - {"params"} if everything else made.keys() & changed:
            group[argument] = made[argument]
        if "initial_lr" in group and (everything or "lr" in changed):
            group["initial_lr"] = group["lr"]
