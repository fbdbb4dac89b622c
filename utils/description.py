"""Every key that a config may have, once: the check, the defaults and the README's table come from here."""

import difflib
from typing import Any, NamedTuple

from utils.errors import ConfigError

REQUIRED = "required"


class Key(NamedTuple):
    """path: dotted. kinds: what the value may be (see KINDS). least: the smallest number. choices: the words accepted."""

    path: str
    kinds: str
    default: Any
    text: str
    least: float | None = None
    choices: tuple[str, ...] = ()


KINDS = {
    "text": lambda value: isinstance(value, str),
    "whole": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "switch": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "args": lambda value: isinstance(value, dict),
    "object": lambda value: isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("type"), str)),
    "objects": lambda value: (
        isinstance(value, dict) and "type" not in value and all(map(KINDS["object"], value.values()))
    ),
    "list": lambda value: isinstance(value, list) and all(map(KINDS["object"], value)),
    "anything": lambda value: True,
}
SAID = {
    "text": "text",
    "whole": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "null": "null",
    "args": "{argument: value}",
    "object": 'a name or {"type": name, "args": {}}',
    "objects": "{name: object}",
    "list": "a list of objects",
    "anything": "anything",
}
INSIDE = {  # what an object of a section may hold beside type and args
    "lr_scheduler": ("interval",),
    "metrics": ("name",),
    "optimizer": ("params",),
}

KEYS = (
    Key("name", "text", REQUIRED, "the experiment's name; runs go to `save_dir/name/run_id/`"),
    Key("seed", "whole", 0, "of weights, dropout, the order of the data and every example's transforms", 0),
    Key("deterministic", "switch", False, "`torch.use_deterministic_algorithms`"),
    Key("device", "text", "auto", "`auto`: the accelerator torch finds (CUDA, ROCm, MPS, XPU), else `cpu`; or its name"),
    Key("parallel", "text", "auto", "how to use several GPUs", choices=("auto", "none", "data_parallel")),
    Key("n_gpu", "whole null", None, "older name: 0 is the CPU, more than 1 is `data_parallel`", 0),
    Key("matmul_precision", "text", "highest", "of float32 products on GPUs", choices=("highest", "high", "medium")),
    Key("cudnn_benchmark", "switch", False, "let cuDNN try for the fastest algorithm"),
    Key("arch", "object", REQUIRED, "the model, from `model/model.py` or by dotted path"),
    Key("data_loader", "object", REQUIRED, "the training data, from `data_loader/data_loaders.py` or by dotted path"),
    Key("valid_data_loader", "object objects null", None, "validation data, or names → several; without it, `data_loader`'s split"),
    Key("test_data_loader", "object null", None, "test data; without it, the training loader with `training=false`"),
    Key("optimizer", "object objects", REQUIRED, "from `torch.optim`; or names → several, each with `params`, a pattern of names"),
    Key("lr_scheduler", "object objects null", None, "from `torch.optim.lr_scheduler`, plus `interval`: `epoch` (default) or `step`; "
        "`total_steps`, `T_max` and `steps_per_epoch` are filled in from the plan of the run"),
    Key("loss", "object", REQUIRED, "function `(output, target)` from `model/loss.py`, or a class such as `torch.nn.CrossEntropyLoss`"),
    Key("metrics", "list", [], "functions `(output, target)` → mean over the batch, or objects with update/compute/reset; `name` renames"),
    Key("trainer.type", "text", "Trainer", "from `trainer/trainer.py` or by dotted path"),
    Key("trainer.args", "args", {}, "more arguments of a Trainer of one's own"),
    Key("trainer.epochs", "whole null", None, "epochs to train; at least one of `epochs` and `max_steps` is needed", 1),
    Key("trainer.max_steps", "whole null", None, "optimizer updates to train; whichever comes first ends the run", 1),
    Key("trainer.len_epoch", "whole null", None, "batches in an epoch, over as many passes as it takes; else one pass", 1),
    Key("trainer.save_dir", "text", "saved/", "where runs go"),
    Key("trainer.save_period", "whole", 1, "epochs between kept checkpoints", 1),
    Key("trainer.save_steps", "whole null", None, "updates between saves of `latest.pth` inside an epoch", 1),
    Key("trainer.keep_last", "whole", 3, "kept checkpoints; 0 keeps all", 0),
    Key("trainer.valid_period", "whole", 1, "epochs between validations", 1),
    Key("trainer.valid_steps", "whole null", None, "updates between validations inside an epoch", 1),
    Key("trainer.monitor", "text", "off", "`min val_loss`, `max val_accuracy`, …: what is best; or `off`"),
    Key("trainer.early_stop", "whole null", 0, "stop after so many validations in a row without improvement; 0 never", 0),
    Key("trainer.min_delta", "number", 0.0, "a smaller improvement is none", 0),
    Key("trainer.verbosity", "whole", 2, "0 warnings, 1 a line an epoch, 2 everything", 0),
    Key("trainer.log_step", "whole", 50, "updates between logged training values", 1),
    Key("trainer.amp", "text", "off", "automatic mixed precision", choices=("off", "bf16", "fp16")),
    Key("trainer.compile", "switch args", False, "`torch.compile` the model; or its arguments"),
    Key("trainer.accumulate", "whole", 1, "batches in an update: the effective batch is `batch_size` × `accumulate`", 1),
    Key("trainer.clip_grad_norm", "number null", None, "largest norm of the gradients", 0),
    Key("trainer.ema_decay", "number null", None, "evaluate a moving average of the weights, with this decay (0.999)", 0),
    Key("trainer.channels_last", "switch", False, "memory format of images and convolutions; faster for most of them"),
    Key("trainer.tensorboard", "switch", True, "write TensorBoard files"),
    Key("extra", "anything", None, "your own"),
)  # fmt: skip
PATHS = {key.path: key for key in KEYS}


def near(name, names):
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'? " if close else ""


def names_in(section=""):
    """The names of the keys at the top, or in a section."""
    prefix = f"{section}." if section else ""
    return list(dict.fromkeys(path[len(prefix) :].partition(".")[0] for path in PATHS if path.startswith(prefix)))


def problems(config):
    """What is wrong with a config by itself, a line each, without looking at any object."""
    found = []
    for name in config:
        if name not in names_in():
            found.append(f"{name}: unknown. {near(name, names_in())}Keys of your own go into 'extra'.")
    trainer = config.get("trainer", {})
    if not isinstance(trainer, dict):
        return [*found, f"trainer: {trainer!r} where {{key: value}} is wanted."]
    for name in trainer:
        if name not in names_in("trainer"):
            found.append(
                f"trainer.{name}: unknown. {near(name, names_in('trainer'))}It accepts {', '.join(names_in('trainer'))}."
            )
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


def _problems_of(key, value):
    kinds = key.kinds.split()
    if not any(KINDS[kind](value) for kind in kinds):
        return [f"{key.path}: {value!r} where {' or '.join(SAID[kind] for kind in kinds)} is wanted."]
    if key.choices and value not in key.choices:
        return [f"{key.path}: no '{value}'. {near(value, key.choices)}It is one of {', '.join(key.choices)}."]
    if key.least is not None and value is not None and value < key.least:
        return [f"{key.path}: {value} is too small; the least is {key.least}."]
    if (
        key.path == "trainer.monitor"
        and value != "off"
        and (len(value.split()) != 2 or value.split()[0] not in ("min", "max"))
    ):
        return [f"{key.path}: '{value}'. Say 'min' or 'max' and a number's name, as in 'min val_loss', or 'off'."]
    if not {"object", "objects", "list"} & set(kinds):
        return []
    return _problems_inside(key.path, value)


def _problems_inside(path, value):
    """Words beside type, args and what the section allows."""
    if isinstance(value, list):
        return [line for i, item in enumerate(value) for line in _problems_inside(f"{path}.{i}", item)]
    if not isinstance(value, dict):
        return []
    if "type" not in value:
        return [line for name, item in value.items() for line in _problems_inside(f"{path}.{name}", item)]
    accepted = ("type", "args", *INSIDE.get(path.partition(".")[0], ()))
    found = [
        f"{path}.{name}: unknown. {near(name, accepted)}It accepts {', '.join(accepted)}."
        for name in value
        if name not in accepted
    ]
    if not isinstance(value.get("args", {}), dict):
        found.append(f"{path}.args: {value['args']!r} where {{argument: value}} is wanted.")
    if value.get("interval", "epoch") not in ("epoch", "step"):
        found.append(f"{path}.interval: no '{value['interval']}'. It is one of epoch, step.")
    return found


def with_defaults(config):
    """The config, complete: each key that is left out has its default."""
    filled = {**config, "trainer": dict(config.get("trainer", {}))}
    for key in KEYS:
        section, _, name = key.path.rpartition(".")
        if key.default is not REQUIRED and key.path != "extra":
            (filled["trainer"] if section else filled).setdefault(name, key.default)
    return filled


def trainer_defaults():
    """{key: default} of the trainer section, for a config that never was checked."""
    return {key.path.partition(".")[2]: key.default for key in KEYS if key.path.startswith("trainer.")}


def set_value(config, path, value, source="command line"):
    """Set the key at a dotted path: one that is there, one of this description, or an argument of an object."""
    names = path.split(".")
    holder = config
    for i, name in enumerate(names[:-1]):
        here = ".".join(names[: i + 1])
        holder = _child(holder, name, here, source)
        if isinstance(holder, str) and names[i + 1] in ("type", "args"):  # a bare name grows into an object
            holder = _put(config, names[: i + 1], {"type": holder, "args": {}})
    if isinstance(holder, list):
        _child(holder, names[-1], path, source)
        holder[int(names[-1])] = value
        return
    if not isinstance(holder, dict):
        raise ConfigError(f"{source}: {path}: '{'.'.join(names[:-1])}' is {holder!r}, which has no keys.")
    inside = (
        names[0] in names_in() and names[0] != "trainer" and names[-1] in ("type", "args", *INSIDE.get(names[0], ()))
    )
    free = "args" in names[:-1] or names[0] == "extra" or inside
    if names[-1] not in holder and path not in PATHS and not free:
        known = dict.fromkeys([*holder, *names_in(".".join(names[:-1]))])
        raise ConfigError(f"{source}: {path}: there is no such key. {near(names[-1], known)}It has {', '.join(known)}.")
    holder[names[-1]] = value


def _child(holder, name, path, source):
    if isinstance(holder, list):
        if not name.isdecimal() or int(name) >= len(holder):
            raise ConfigError(f"{source}: {path}: the list has {len(holder)} items, counted from 0.")
        return holder[int(name)]
    if isinstance(holder, dict):
        if name not in holder and (name == "args" or path == "trainer"):
            holder[name] = {}
        if name in holder:
            return holder[name]
    known = dict.fromkeys([*(holder if isinstance(holder, dict) else ()), *names_in(path.rpartition(".")[0])])
    raise ConfigError(
        f"{source}: {path}: there is no such key. {near(name, known)}It has {', '.join(known) or 'none'}."
    )


def _put(config, names, value):
    holder = config
    for name in names[:-1]:
        holder = holder[int(name)] if isinstance(holder, list) else holder[name]
    holder[int(names[-1]) if isinstance(holder, list) else names[-1]] = value
    return value


def differences(before, after, path=""):
    """[(dotted path, before, after)] of the values that are not equal; None where one has no such key."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = dict.fromkeys([*before, *after])
        return [
            found
            for name in names
            for found in differences(before.get(name), after.get(name), f"{path}.{name}" if path else str(name))
        ]
    return [] if before == after else [(path, before, after)]
