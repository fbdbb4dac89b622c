"""torch's optimizers without what an eager run does not need, and their state put back right."""

import functools
import inspect
from fnmatch import fnmatchcase

import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from utils import processes
from utils.errors import ConfigError, near
from utils.objects import parameters_of


def lean(cls):
    """An optimizer class of torch.optim whose methods do not import torch._dynamo: 2 s and 150 MB at the first one.

    The class keeps its name and base, so isinstance, state_dicts and hooks are as ever. All else is returned as is.
    """
    is_optimizer = inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)
    if not (is_optimizer and cls.__module__.startswith("torch.optim.")):
        return cls
    plain_step = inspect.unwrap(cls.step)

    @functools.wraps(plain_step)
    def step(self, closure=None):
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return plain_step(self) if closure is None else plain_step(self, closure)

    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in names}
    return type(cls.__name__, (cls,), {**methods, "step": step, "__module__": cls.__module__})


def load_state(optimizer, state):
    """Load `state`, of which every tensor shaped like its parameter gets that parameter's device, parts and strides.

    A contiguous average beside a channels_last parameter makes the fused optimizers compute wrong weights, silently.
    Of weights in parts no process could hold the whole state on its device.
    """
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    states = {number: dict(kept) for number, kept in state["state"].items()}
    for number in parameters.keys() & states.keys():
        for name, value in states[number].items():
            if parameters[number].shape == getattr(value, "shape", None) != ():
                value = processes.laid_out(value, parameters[number])
                states[number][name] = torch.empty_like(parameters[number], dtype=value.dtype).copy_(value)
    optimizer.load_state_dict({**state, "state": states})


def counts(model):
    """How many numbers a model has, and how many of them learn, as text."""
    learn, rest = (sum(p.numel() for p in model.parameters() if p.requires_grad is wanted) for wanted in (True, False))
    return f"{learn + rest:,} parameters, {learn:,} of them learn"


def trainable(model, pattern="*", place="optimizer"):
    """The parameters that learn and whose name matches the shell-style `pattern`, in the model's order."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return [named[name] for name in matching(named, pattern, place, "parameter")]


def matching(names, pattern, place, what):
    """Those of the model's names that match the shell-style pattern; ConfigError with near ones where none does."""
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        advice = near(pattern, names) or f"It has {', '.join(list(names)[:8]) or 'none that learns'}."
        raise ConfigError(f"{place}: '{pattern}' matches no {what} of the model. {advice}")
    return found


def planned_arguments(cls, given, updates, updates_per_epoch, rates, mode):
    """The arguments of a schedule that the config leaves out and the rest of the run knows: {argument: value}.

    updates: how often the schedule will be stepped in the whole run; updates_per_epoch: in an epoch; None: unknown.
    rates: of the optimizer's groups. mode: the monitor's, "min" or "max".
    """
    of_class = {OneCycleLR: {"max_lr": rates}, ReduceLROnPlateau: {"mode": mode}}
    known = {"T_max": updates, **of_class.get(cls, {})}
    if "total_steps" not in given:
        known |= {"steps_per_epoch": updates_per_epoch} if "epochs" in given else {"total_steps": updates}
    left_out = parameters_of(cls).keys() - given.keys()
    return {name: value for name, value in known.items() if name in left_out and value is not None}
