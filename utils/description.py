"""What a config may say, from keys.json: the check, the defaults, the schema and the README's table come from there."""

import copy
import functools
import json
import operator
import os
import re
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
    choices: list[str] = []


def _is_object(value):
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("type"), str))


def names_objects(value):
    """Whether a value is {name: object}, several by name."""
    if not isinstance(value, dict) or looks_like_object(value) or "." in "".join(value):
        return False
    return len(value) > 0 and all(map(_is_object, value.values()))


def _is_monitor(value):
    return isinstance(value, str) and bool(re.fullmatch(r"off|(min|max)\s+\S+", value))


def _is_name(value):
    return isinstance(value, str) and bool(re.fullmatch(r"[^/\\]*[^/\\.][^/\\]*", value)) and _is_short(value)


def _is_short(part, most=200):  # bytes; a file system's 255, less the endings that we add
    return "\0" not in part and len(part.encode(errors="replace")) <= most


KINDS: dict[str, tuple[str, Any]] = {  # what it is called, whether a value is one
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
    "monitor": ("'min NAME', 'max NAME' (as in 'min val_loss') or 'off'", _is_monitor),
    "name": ("a folder's name, short and without slashes,", _is_name),
    "anything": ("anything", lambda value: True),
}
BOUNDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}


@functools.cache
def _table():
    """The keys, and what else may stand in the objects of a section."""
    return json.loads(Path(__file__).with_name("keys.json").read_text(encoding="utf-8"))


@functools.cache
def every_key():
    """Every Key, in the order of the README's table."""
    return [Key(**row) for row in _table()["keys"]]


def words_of(section=None):
    """The Keys of an object of a section; without one, those of every object."""
    rows = _table()["of every object"] if section is None else _table()["of the objects of"].get(section, ())
    return [Key(**row) for row in rows]


def homes():
    """{section: module in which its bare names are looked for}, in the order in which the sections are made."""
    return _table()["homes"]


def sections():
    """Those of objects alone."""
    return [name for name in homes() if name != "trainer"]


def keys_in(path=""):
    """{name: Key} of what may stand at the top, in `trainer`, or in an object of a section."""
    section = path.partition(".")[0]
    if section in sections():
        return {key.path: key for key in (*words_of(), *words_of(section)) if "args" not in path.split(".")}
    return {key.path.rpartition(".")[2]: key for key in every_key() if key.path.rpartition(".")[0] == path}


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
        elif key.default == REQUIRED and f"'{name}'" not in "".join(unknown.values()):  # not misspelt, but missing
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
    if names[0] not in sections() or "args" in names or not isinstance(value, wanted):
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
    for key in every_key():
        section, _, name = key.path.rpartition(".")
        if key.default not in (REQUIRED, ABSENT):
            (filled["trainer"] if section else filled).setdefault(name, copy.deepcopy(key.default))
    return filled


def spelt_out(config):
    """The config with {"type": NAME, "args": {}} wherever a section has a bare name, or leaves its args out."""
    return {name: _spelt_out(value) if name in sections() else value for name, value in config.items()}


def _spelt_out(value):
    if isinstance(value, list):
        return [_spelt_out(item) for item in value]
    if _is_object(value):
        return {"type": value, "args": {}, **(value if isinstance(value, dict) else {})}
    return {name: _spelt_out(item) for name, item in value.items()} if names_objects(value) else value
