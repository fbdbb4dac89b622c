"""torch's optimizers without what an eager run does not need, and their state put back right."""

import inspect
from fnmatch import fnmatchcase

import torch

from utils.errors import ConfigError


def lean(cls):
    """An optimizer class of torch.optim whose methods do not import torch._dynamo: 2 s and 150 MB at the first one.

    The class keeps its name and base, so isinstance, state_dicts and hooks are as ever. All else is returned as is.
    """
    if not (
        inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls.__module__.startswith("torch.optim.")
    ):
        return cls
    plain_step = inspect.unwrap(cls.step)

    def step(self, closure=None):
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return plain_step(self) if closure is None else plain_step(self, closure)

    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in names}
    return type(cls.__name__, (cls,), {**methods, "step": step, "__module__": cls.__module__})


def load_state(optimizer, state):
    """Load `state`, then give every tensor shaped like its parameter that parameter's strides.

    A contiguous average beside a channels_last parameter makes the fused optimizers compute wrong weights, silently.
    """
    optimizer.load_state_dict(state)
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape:
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def trainable(model, pattern="*", place="optimizer"):
    """The parameters that learn and whose name matches the shell-style `pattern`, in the model's order."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    found = [parameter for name, parameter in named if fnmatchcase(name, pattern)]
    if not found:
        names = ", ".join(name for name, _ in named[:8]) or "none that learns"
        raise ConfigError(f"{place}: '{pattern}' matches no parameter of the model. It has {names}.")
    return found


def planned_arguments(cls, given, updates, updates_per_epoch):
    """The arguments of a schedule that the config leaves out and the plan of the run knows: {argument: value}.

    updates: how often the schedule will be stepped in the whole run; updates_per_epoch: in an epoch. None: unknown.
    """
    known = {}
    if not given.keys() & {"total_steps", "epochs"}:
        known["total_steps"] = updates
    elif "epochs" in given and not given.keys() & {"total_steps", "steps_per_epoch"}:
        known["steps_per_epoch"] = updates_per_epoch
    if "T_max" not in given:
        known["T_max"] = updates
    accepted = inspect.signature(cls).parameters
    return {name: value for name, value in known.items() if name in accepted and value is not None}
