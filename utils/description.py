"""Every key that a config may have, once: the check, the defaults and the README's table come from here."""

import copy
import difflib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from utils.errors import ConfigError

REQUIRED = "required"


class Key(NamedTuple):
    """path: dotted. kinds: what the value may be (see KINDS). least, most: of a number. choices: the words accepted."""

    path: str
    kinds: str
    default: Any
    text: str
    least: float | None = None
    choices: tuple[str, ...] = ()
    most: float | None = None


def _is_object(value):
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("type"), str))


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # what it is called, whether a value is one
    "text": ("text", lambda value: isinstance(value, str)),
    "whole": ("a whole number", lambda value: type(value) is int),
    "number": ("a number", lambda value: type(value) in (int, float)),
    "switch": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
    "args": ("{argument: value}", lambda value: isinstance(value, dict)),
    "object": ('a name or {"type": name, "args": {}}', _is_object),
    "objects": (
        "{name: object}",
        lambda v: isinstance(v, dict) and "type" not in v and all(map(_is_object, v.values())),
    ),
    "list": ("a list of objects", lambda value: isinstance(value, list) and all(map(_is_object, value))),
    "anything": ("anything", lambda value: True),
}
INSIDE = {"lr_scheduler": ("interval",), "metrics": ("name",), "optimizer": ("params",)}  # beside type and args

KEYS = (
    Key("name", "text", REQUIRED, "the experiment's name; runs go to `save_dir/name/run_id/`"),
    Key("seed", "whole", 0, "of weights, dropout, the data's order and every example's transforms", 0, most=2**63 - 1),
    Key("deterministic", "switch", False, "`torch.use_deterministic_algorithms`"),
    Key("device", "text", "auto", "`auto`: the accelerator torch finds (CUDA, ROCm, MPS, XPU), else `cpu`; or a name"),
    Key("parallel", "text", "auto", "how to use several GPUs", choices=("auto", "none", "data_parallel")),
    Key("n_gpu", "whole null", None, "older name: 0 is the CPU, more than 1 is `data_parallel`", 0),
    Key("matmul_precision", "text", "highest", "of float32 products on GPUs", choices=("highest", "high", "medium")),
    Key("cudnn_benchmark", "switch", False, "let cuDNN try for the fastest algorithm"),
    Key("arch", "object", REQUIRED, "the model, from `model/model.py` or by dotted path"),
    Key("data_loader", "object", REQUIRED, "the training data, from `data_loader/data_loaders.py` or by dotted path"),
    Key("valid_data_loader", "object objects null", None,
        "validation data, or names → several; without it, what `data_loader` splits off"),
    Key("test_data_loader", "object null", None, "test data; without it, the training loader with `training=false`"),
    Key("optimizer", "object objects", REQUIRED,
        "from `torch.optim`; or names → several, each with `params`, a pattern of parameter names"),
    Key("lr_scheduler", "object objects null", None,
        "from `torch.optim.lr_scheduler`, plus `interval`: `epoch` (default) or `step`; "
        "`total_steps`, `T_max`, `steps_per_epoch` and `max_lr` are filled in from the plan and the optimizer"),
    Key("loss", "object", REQUIRED,
        "function `(output, target)` from `model/loss.py`, or a class such as `torch.nn.CrossEntropyLoss`"),
    Key("metrics", "list", [],
        "from `model/metric.py`: functions `(output, target)`, or objects with update/compute/reset; `name` renames"),
    Key("trainer.type", "text", "Trainer", "from `trainer/trainer.py` or by dotted path"),
    Key("trainer.args", "args", {}, "more arguments of a Trainer of one's own"),
    Key("trainer.epochs", "whole null", None, "epochs to train; at least one of `epochs` and `max_steps` is needed", 1),
    Key("trainer.max_steps", "whole null", None, "steps (optimizer updates) to train; the first of both ends it", 1),
    Key("trainer.len_epoch", "whole null", None, "batches in an epoch, over as many passes as it takes", 1),
    Key("trainer.save_dir", "text", "saved/", "where runs go"),
    Key("trainer.save_period", "whole", 1, "epochs between kept checkpoints", 1),
    Key("trainer.save_steps", "whole null", None, "steps between saves of `latest.pth` inside an epoch", 1),
    Key("trainer.keep_last", "whole", 3, "kept checkpoints; 0 keeps all", 0),
    Key("trainer.valid_period", "whole", 1, "epochs between validations", 1),
    Key("trainer.valid_steps", "whole null", None, "steps between validations inside an epoch", 1),
    Key("trainer.monitor", "text", "off", "`min val_loss`, `max val_accuracy`, …: what is best; or `off`"),
    Key("trainer.early_stop", "whole null", 0, "validations in a row without improvement that end the run; 0 none", 0),
    Key("trainer.min_delta", "number", 0.0, "a smaller improvement is none", 0),
    Key("trainer.verbosity", "whole", 2, "0 warnings, 1 a line an epoch, 2 everything", 0),
    Key("trainer.log_step", "whole", 50, "steps between logged training values", 1),
    Key("trainer.amp", "text", "off", "automatic mixed precision", choices=("off", "bf16", "fp16")),
    Key("trainer.compile", "switch args", False, "`torch.compile` the model; or its arguments"),
    Key("trainer.accumulate", "whole", 1, "batches in a step; `batch_size` × this is the effective batch", 1),
    Key("trainer.clip_grad_norm", "number null", None, "largest norm of the gradients", 0),
    Key("trainer.ema_decay", "number null", None, "evaluate a moving average of the weights; its decay", 0, most=1),
    Key("trainer.channels_last", "switch", False, "memory format of images and convolutions; faster for most of them"),
    Key("trainer.tensorboard", "switch", True, "write TensorBoard files"),
    Key("extra", "anything", None, "your own"),
)  # fmt: skip
PATHS = {key.path: key for key in KEYS}


def near(name, names):
    """ "Did you mean …? " with the nearest of `names`, or nothing."""
    close = difflib.get_close_matches(str(name), [str(other) for other in names], n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'? " if close else ""


def names_in(section=""):
    """The names of the keys at the top, or in a section."""
    prefix = f"{section}." if section else ""
    return list(dict.fromkeys(path[len(prefix) :].partition(".")[0] for path in PATHS if path.startswith(prefix)))


def problems(config):
    """What is wrong with a config by itself, a line each, without looking at any object."""
    trainer = config.get("trainer", {})
    if not isinstance(trainer, dict):
        return [f"trainer: {trainer!r} where {{key: value}} is wanted."]
    found = _unknown("", config, names_in(), "Keys of your own go into 'extra'.")
    found += _unknown("trainer.", trainer, names_in("trainer"))
    for key in KEYS:
        section, _, name = key.path.rpartition(".")
        holder = trainer if section else config
        if name in holder:
            found += _problems_of(key, holder[name])
        elif key.default is REQUIRED:
            found.append(f"{key.path}: missing. {key.text[0].upper()}{key.text[1:]}.")
    if trainer.get("epochs") is None and trainer.get("max_steps") is None:
        found.append("trainer.epochs: missing. Give epochs, max_steps or both.")
    return found


def _unknown(prefix, holder, accepted, otherwise=""):
    otherwise = otherwise or f"It accepts {', '.join(accepted)}."
    return [f"{prefix}{name}: unknown. {near(name, accepted)}{otherwise}" for name in holder if name not in accepted]


def _problems_of(key, value):
    kinds = key.kinds.split()
    if not any(KINDS[kind][1](value) for kind in kinds):
        return [f"{key.path}: {value!r} where {' or '.join(KINDS[kind][0] for kind in kinds)} is wanted."]
    if key.choices and value not in key.choices:
        return [f"{key.path}: no '{value}'. {near(value, key.choices)}It is one of {', '.join(key.choices)}."]
    if key.least is not None and value is not None and value < key.least:
        return [f"{key.path}: {value} is too small; the least is {key.least}."]
    if key.most is not None and value is not None and value > key.most:
        return [f"{key.path}: {value} is too large; the most is {key.most}."]
    if key.path == "trainer.monitor" and value != "off" and not re.fullmatch(r"(min|max)\s+\S+", value):
        return [f"{key.path}: '{value}'. Say 'min' or 'max' and a number's name, as in 'min val_loss', or 'off'."]
    if key.path == "name" and not re.fullmatch(r"[^/\\]*[^/\\.][^/\\]*", value):
        return [f"name: '{value}' can't be a folder's name; leave slashes out."]
    return _problems_inside(key.path, value) if {"object", "objects", "list"} & set(kinds) else []


def _problems_inside(path, value):
    """What is wrong with the words of an object, or of each in a list or dict of them."""
    if not isinstance(value, dict) or "type" not in value:
        items = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
        return [line for name, item in items for line in _problems_inside(f"{path}.{name}", item)]
    found = _unknown(f"{path}.", value, ("type", "args", *INSIDE.get(path.partition(".")[0], ())))
    if not isinstance(value.get("args", {}), dict):
        found.append(f"{path}.args: {value['args']!r} where {{argument: value}} is wanted.")
    if value.get("interval", "epoch") not in ("epoch", "step"):
        found.append(f"{path}.interval: no '{value['interval']}'. It is one of epoch, step.")
    return found


def with_defaults(config):
    """The config, complete: each key that is left out has its default, each object is {"type", "args", …}."""
    filled = {**config, "trainer": dict(config.get("trainer", {}))}
    for key in KEYS:
        section, _, name = key.path.rpartition(".")
        holder = filled["trainer"] if section else filled
        if key.default is not REQUIRED and key.path != "extra":
            holder.setdefault(name, copy.deepcopy(key.default))
        if {"object", "objects", "list"} & set(key.kinds.split()) and name in holder:
            holder[name] = _spelt_out(holder[name])
    return filled


def _spelt_out(value):
    if isinstance(value, list):
        return [_spelt_out(item) for item in value]
    if isinstance(value, dict) and "type" not in value:
        return {name: _spelt_out(item) for name, item in value.items()}
    if isinstance(value, str):
        value = {"type": value}
    return value and {"args": {}, **value}


def trainer_defaults():
    """{key: default} of the trainer section, for a config that never was checked."""
    return with_defaults({})["trainer"]


def set_value(config, path, value, source="command line"):
    """Set the key at a dotted path: one that is there, one of this description, or an argument of an object."""
    *above, last = path.split(".")
    holder = config
    for i, name in enumerate(above):
        here = ".".join(above[: i + 1])
        if isinstance(holder, dict) and holder.get(name) is None and (name == "args" or here in names_in()):
            holder[name] = {}  # a section that is left out, or null
        index = _index(holder, name, here, source)
        if isinstance(holder[index], str) and [*above, last][i + 1] in ("type", "args"):
            holder[index] = {"type": holder[index], "args": {}}  # a bare name grows into an object
        holder = holder[index]
    takes_words = above and above[0] in names_in() and last in ("type", "args", *INSIDE.get(above[0], ()))
    if isinstance(holder, dict) and (path in PATHS or "args" in above or path.startswith("extra") or takes_words):
        holder[last] = value
    else:
        holder[_index(holder, last, path, source)] = value


def _index(holder, name, path, source):
    """Where `name` is in a list or dict; ConfigError with what is there if it is not."""
    if isinstance(holder, list):
        if not name.isdecimal() or int(name) >= len(holder):
            raise ConfigError(f"{source}: {path}: the list has {len(holder)} items, counted from 0.")
        return int(name)
    known = dict.fromkeys([*(holder if isinstance(holder, dict) else ()), *names_in(path.rpartition(".")[0])])
    if not isinstance(holder, dict) or name not in holder:
        raise ConfigError(f"{source}: {path}: no such key. {near(name, known)}There is {', '.join(known) or 'none'}.")
    return name


def differences(before, after, path=""):
    """[(dotted path, before, after)] of the values that are not equal; None where one has no such key."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [(path, before, after)]
    names = dict.fromkeys([*before, *after])
    pairs = [(f"{path}.{name}".lstrip("."), before.get(name), after.get(name)) for name in names]
    return [found for inner, was, now in pairs for found in differences(was, now, inner)]
