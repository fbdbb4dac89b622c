"""Every key that a config may have, once: the check, the defaults, the schema and the README's table come from here."""

import copy
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from utils.errors import hint, near, shown

REQUIRED, ABSENT = "required", "absent"  # as defaults: it must be given; it is not filled in


class Key(NamedTuple):
    """path: dotted. kinds: what the value may be (see KINDS). bounds: of a number, as in "> 0 <= 1"; choices: words."""

    path: str
    kinds: str
    default: Any
    text: str
    bounds: str = ""
    choices: tuple[str, ...] = ()


def _is_object(value):
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("type"), str))


def names_objects(value):
    """Whether a value is {name: object}, several by name."""
    if not isinstance(value, dict) or looks_like_object(value) or "." in "".join(value):
        return False
    return len(value) > 0 and all(map(_is_object, value.values()))


def _is_name(value):
    return isinstance(value, str) and bool(re.fullmatch(r"[^/\\]*[^/\\.][^/\\]*", value)) and _is_short(value)


def _is_short(part, most=200):  # bytes; a file system's 255, less the endings that we add
    return "\0" not in part and len(part.encode(errors="replace")) <= most


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # what it is called, whether a value is one
    "text": ("text", lambda value: isinstance(value, str)),
    "whole": ("a whole number", lambda value: type(value) is int and abs(value) < 2**63),
    "number": ("a number", lambda value: type(value) in (int, float) and abs(value) < 1e300),
    "switch": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
    "section": ("{key: value}", lambda value: isinstance(value, dict)),
    "args": ("{argument: value}", lambda value: isinstance(value, dict)),
    "object": ('a name or {"type": name, "args": {}}', _is_object),
    "objects": ("{name without dots: object}", names_objects),
    "list": ("a list of names or objects", lambda value: isinstance(value, list) and all(map(_is_object, value))),
    "monitor": (
        "'min NAME', 'max NAME' (as in 'min val_loss') or 'off'",
        lambda value: isinstance(value, str) and bool(re.fullmatch(r"off|(min|max)\s+\S+", value)),
    ),
    "name": ("a folder's name, short and without slashes,", _is_name),
    "anything": ("anything", lambda value: True),
}
_PARALLEL = {"type": "auto", "args": {}}
BOUNDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
WORDS = (  # of every object
    Key("type", "text", REQUIRED, "a name in the section's own module, or a dotted path"),
    Key("args", "args", {}, "what it is made with"),
)
INSIDE = {  # words of an object beside those
    "optimizer": (Key("params", "text", "*", "a shell-style pattern of the parameters' names, as in `head.*`"),),
    "lr_scheduler": (Key("interval", "text", "epoch", "when it is stepped", choices=("epoch", "step")),),
    "parallel": (Key("timeout_seconds", "number", 1800, "that a process waits for the others", "> 0"),),
    "loss": (Key("weight", "number", 1.0, "of this loss in the sum of several"),),
    "metrics": (Key("name", "text", ABSENT, "what its number is called"),),
}
KEYS = (
    Key("$schema", "text", ABSENT, "`config.schema.json`, by which editors complete and check"),
    Key("extends", "text", ABSENT, "a config that this one changes; `null` removes, another `type` drops `args`"),
    Key("name", "name", REQUIRED, "the experiment's name; runs go to `save_dir/name/run_id/`"),
    Key("seed", "whole", 0, "of weights, dropout, the data's order and every example's transforms", ">= 0"),
    Key("deterministic", "switch", False, "`torch.use_deterministic_algorithms`"),
    Key("device", "text", "auto", "`auto`: the accelerator torch finds (CUDA, ROCm, MPS, XPU), else `cpu`; or a name"),
    Key("parallel", "object", _PARALLEL, "over several devices, from `trainer/parallel.py`: `ddp`, `fsdp`, …"),
    Key("n_gpu", "whole null", None, "older name: 0 is the CPU, more than 1 is `data_parallel`", ">= 0"),
    Key("matmul_precision", "text", "highest", "of float32 products on GPUs", choices=("highest", "high", "medium")),
    Key("cudnn_benchmark", "switch", False, "let cuDNN try for the fastest algorithm"),
    Key("arch", "object", REQUIRED, "the model, from `model/model.py` or by dotted path"),
    Key("data_loader", "object", REQUIRED, "the training data, from `data_loader/data_loaders.py` or by dotted path"),
    Key("valid_data_loader", "object objects null", None, "validation data; names → several; else what is split off"),
    Key("test_data_loader", "object null", None, "test data; without it, the training loader with `training=false`"),
    Key("optimizer", "object objects", REQUIRED, "from `torch.optim`; names → several, each with `params`, a pattern"),
    Key("lr_scheduler", "object objects null", None, "from `torch.optim.lr_scheduler`; `interval`: `epoch` or `step`"),
    Key("loss", "object objects", REQUIRED, "from `model/loss.py`, or a class; names → several, each with `weight`"),
    Key("metrics", "list", [], "from `model/metric.py`: functions (output, target), or objects; `name` renames"),
    Key("trainer", "section", {}, "how it is trained:"),
    Key("trainer.type", "text", "Trainer", "from `trainer/trainer.py` or by dotted path"),
    Key("trainer.args", "args", {}, "more arguments of a Trainer of one's own"),
    Key("trainer.epochs", "whole null", None, "epochs to train; this, `max_steps` or both are needed", ">= 1"),
    Key("trainer.max_steps", "whole null", None, "steps (optimizer updates) to train; the first of both", ">= 1"),
    Key("trainer.len_epoch", "whole null", None, "batches in an epoch, over as many passes as it takes", ">= 1"),
    Key("trainer.save_dir", "text", "saved/", "where runs go"),
    Key("trainer.save_period", "whole", 1, "epochs between kept checkpoints", ">= 1"),
    Key("trainer.save_steps", "whole null", None, "steps between saves of `latest.pth` inside an epoch", ">= 1"),
    Key("trainer.keep_last", "whole", 3, "kept checkpoints; 0 keeps all", ">= 0"),
    Key("trainer.valid_period", "whole", 1, "epochs between validations", ">= 1"),
    Key("trainer.valid_steps", "whole null", None, "steps between validations inside an epoch", ">= 1"),
    Key("trainer.monitor", "monitor", "off", "`min val_loss`, `max val_accuracy`, …: what is best; or `off`"),
    Key("trainer.early_stop", "whole null", 0, "validations without improvement that end the run; 0 never", ">= 0"),
    Key("trainer.min_delta", "number", 0.0, "a smaller improvement is none", ">= 0"),
    Key("trainer.verbosity", "whole", 2, "0 warnings, 1 a line an epoch, 2 everything", ">= 0"),
    Key("trainer.log_step", "whole", 50, "steps between logged training values", ">= 1"),
    Key("trainer.amp", "text", "off", "automatic mixed precision", choices=("off", "bf16", "fp16")),
    Key("trainer.compile", "switch args", False, "`torch.compile` the model; or its arguments"),
    Key("trainer.accumulate", "whole", 1, "batches in a step; `batch_size` × this is the effective batch", ">= 1"),
    Key("trainer.clip_grad_norm", "number null", None, "largest norm of the gradients", "> 0"),
    Key("trainer.ema_decay", "number null", None, "evaluate a moving average of the weights; its decay", "> 0 < 1"),
    Key("trainer.channels_last", "switch", False, "memory format of images and convolutions; faster for most of them"),
    Key("trainer.overfit", "whole null", None, "train and validate on so many batches, to see it learn", ">= 1"),
    Key("trainer.tensorboard", "switch", True, "write TensorBoard files"),
    Key("extra", "anything", ABSENT, "your own"),
)  # fmt: skip
HOMES = {  # where a section's bare names are looked for; in the order in which the sections are made
    "data_loader": "data_loader.data_loaders",
    "valid_data_loader": "data_loader.data_loaders",
    "arch": "model.model",
    "parallel": "trainer.parallel",
    "loss": "model.loss",
    "metrics": "model.metric",
    "optimizer": "torch.optim",
    "lr_scheduler": "torch.optim.lr_scheduler",
    "trainer": "trainer.trainer",
    "test_data_loader": "data_loader.data_loaders",  # which only test.py makes
}
SECTIONS = [name for name in HOMES if name != "trainer"]  # of objects alone


def keys_in(path=""):
    """{name: Key} of what may stand at the top, in `trainer`, or in an object of a section."""
    section = path.partition(".")[0]
    if section in SECTIONS:
        keys = (*WORDS, *INSIDE.get(section, ())) if "args" not in path.split(".") else ()
        return {key.path: key for key in keys}
    return {key.path.rpartition(".")[2]: key for key in KEYS if key.path.rpartition(".")[0] == path}


def problems(config):
    """[(dotted path, what is wrong and what to do)] of what a config has wrong by itself; no object is looked at."""
    found = _problems_in("", config, "Keys of your own go into 'extra'.")
    trainer = config.get("trainer", {})
    if isinstance(trainer, dict):
        found += [*_problems_in("trainer", trainer), *_problems_together(config, trainer)]
    return found


def _problems_in(path, holder, otherwise=""):
    """What is wrong with the keys of a dict."""
    prefix, keys = f"{path}." if path else "", keys_in(path)
    unknown = {name: near(name, keys) or otherwise or hint(name, keys) for name in holder if name not in keys}
    found = [(f"{prefix}{name}", f"unknown. {advice}") for name, advice in unknown.items()]
    for name, key in keys.items():
        if name in holder:
            found += _problems_of(key._replace(path=f"{prefix}{name}"), holder[name])
        elif key.default is REQUIRED and f"'{name}'" not in "".join(unknown.values()):  # not misspelt, but missing
            found.append((f"{prefix}{name}", f"missing. {key.text[0].upper()}{key.text[1:]}."))
    return found


def _problems_of(key, value):
    kinds = key.kinds.split()
    if not any(KINDS[kind][1](value) for kind in kinds):
        wrong = f"{shown(value)} where {' or '.join(KINDS[kind][0] for kind in kinds)} is wanted."
        return _problems_inside(key, value) or [(key.path, wrong)]
    if key.choices and value not in key.choices:
        return [(key.path, f"no '{value}'. {hint(value, key.choices)}")]
    for sign, limit in re.findall(r"([<>]=?) (\S+)", key.bounds) if value is not None else ():
        if not BOUNDS[sign](value, int(limit)):
            return [(key.path, f"{shown(value)}; it has to be {sign} {limit}.")]
    if key.path == "trainer.save_dir" and (why := _why_not_writable(value)):
        return [(key.path, why)]
    return _problems_inside(key, value)


def _why_not_writable(given):
    folder = Path(given).absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    short = all(_is_short(part, 255) for part in folder.parts)
    if given.strip() and short and there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"{folder} can't be made in {there}. Give another folder."


def _problems_inside(key, value):
    """What is wrong inside an object, or inside each in a list or dict of them."""
    names = key.path.split(".")
    wanted = list if key.kinds == "list" else dict
    if names[0] not in SECTIONS or "args" in names or not isinstance(value, wanted):
        return []
    if wanted is dict and looks_like_object(value):
        return _problems_in(key.path, value)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    keys = [(Key(f"{key.path}.{name}", "object", REQUIRED, ""), item) for name, item in items]
    return [line for one, item in keys for line in _problems_of(one, item)]


def _problems_together(config, trainer):
    """What is wrong between keys."""
    if "extends" in config:
        yield "extends", "is followed where it stands in a file; these sections came from none."
    if trainer.get("epochs") is None and trainer.get("max_steps") is None:
        yield "trainer.epochs", "missing. Give epochs, max_steps or both."
    patience = trainer.get("early_stop")
    if type(patience) is int and patience > 0 and trainer.get("monitor", "off") == "off":
        yield "trainer.early_stop", "waits for a number; say which in trainer.monitor, as in 'min val_loss'."
    optimizers, schedules = config.get("optimizer"), config.get("lr_scheduler")
    several, named = names_objects(optimizers), names_objects(schedules)
    if several and schedules and not named:
        yield "lr_scheduler", f"which optimizer is it for? Give each by the name of one: {', '.join(optimizers)}."
    if named and not several:
        yield "lr_scheduler", "there is one optimizer; give one schedule, not several by name."
    for name in schedules if named and several else ():
        if name not in optimizers:
            yield f"lr_scheduler.{name}", f"no such optimizer. {hint(name, optimizers)}"


def looks_like_object(value):
    """Whether a dict is meant as {"type", "args"}, rightly spelt or not, and not as {name: {"type", "args"}}."""
    named = all(isinstance(inner, dict) and _is_object(inner) for inner in value.values())
    return any(name in ("type", "args") or (not named and near(name, ("type", "args"))) for name in value)


def with_defaults(config):
    """The config, complete: each key that is left out has its default, each object is {"type", "args", …}."""
    trainer = config.get("trainer")
    filled = {**spelt_out(config), "trainer": dict(trainer) if isinstance(trainer, dict) else {}}
    for key in KEYS:
        section, _, name = key.path.rpartition(".")
        if key.default not in (REQUIRED, ABSENT):
            (filled["trainer"] if section else filled).setdefault(name, copy.deepcopy(key.default))
    return filled


def spelt_out(config):
    """The config with {"type": NAME, "args": {}} wherever a section has a bare name, or leaves its args out."""
    return {name: _spelt_out(value) if name in SECTIONS else value for name, value in config.items()}


def _spelt_out(value):
    if isinstance(value, list):
        return [_spelt_out(item) for item in value]
    if _is_object(value):
        return {"type": value, "args": {}, **(value if isinstance(value, dict) else {})}
    return {name: _spelt_out(item) for name, item in value.items()} if names_objects(value) else value
