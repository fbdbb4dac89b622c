"""Config files: JSON or YAML, UTF-8 with or without a byte-order mark, no key twice, no NaN; one may extend another."""

import json
import math
import os
from collections import Counter
from pathlib import Path

from utils import imports
from utils.errors import ConfigError, shown
from utils.nested import leaves, merged, origin_of

TWICE = "\0twice"  # stands in for the value of a key that stands twice, until `_refused` says so


def resolve(path, name=None, above=()):
    """(config, {dotted path: name of the file that set it}, folders) of a file and of what it extends."""
    path = Path(path).absolute()
    content = read(path)
    content.pop("$schema", None)
    below = content.pop("extends", None)
    if below is None:
        config, origins, folders = {}, {}, []
    elif not isinstance(below, str) or not os.path.isfile(path.parent / below):
        where = f"there is no file {path.parent / below}" if isinstance(below, str) else f"{shown(below)} is no path"
        raise ConfigError(f"{path}: extends: {where}. Give the path of a config, relative to this one.")
    elif (path.parent / below).resolve() in (*above, path.resolve()):
        raise ConfigError(f"{path}: extends: '{below}' extends this file in turn. Take one of the two out.")
    else:
        config, origins, folders = resolve(path.parent / below, below, (*above, path.resolve()))
    origins |= dict.fromkeys(dict(leaves(content)), name or path.name)
    made = merged(config, content)
    kept = {leaf: origins.get(leaf) or origin_of(origins, leaf) for leaf, _ in leaves(made)}
    return made, kept, [path.parent, *folders]


def read(path):
    """What the file alone says, a dict."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or f"not UTF-8 text: {error}"
        raise ConfigError(f"{path.absolute()}: {why}. Give a config with -c FILE.") from None
    try:
        yaml = imports.optional("extras.yaml_config", path.absolute()) if path.suffix in (".yaml", ".yml") else None
        content = yaml.read(text, path) if yaml else _json(text, path)
        found = [(place, _refused(value) or _refused(place)) for place, value in leaves(content)]
    except RecursionError:
        raise ConfigError(f"{path.absolute()}: nested too deeply.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path.absolute()}: holds {type(content).__name__}; a config is an object of sections.")
    if wrong := [f"{path.absolute()}: {place}: {why}" for place, why in found if why]:
        raise ConfigError("\n".join(wrong))
    return content


def _refused(value):
    """Why a value can't stand in a config, or nothing."""
    if value == TWICE:
        return "stands twice in one object; keep one of them."
    if isinstance(value, float) and not math.isfinite(value):
        return f"{shown(value)} is not a number that JSON knows; give a finite one."
    if isinstance(value, str) and any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        return f"{value!r} holds half a character; write it whole."
    return ""


def key_and_value(override):
    """(dotted path, value) of a KEY=VALUE from the command line; the value is JSON where it parses, else text."""
    path, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"command line: '{override}' is not KEY=VALUE.")
    if text in ("True", "False", "None"):  # as text all three would mean true
        raise ConfigError(f"command line: {path}: write {'null' if text == 'None' else text.lower()}, not {text}.")
    try:
        value = json.loads(text, object_pairs_hook=_keys_once)
        found = leaves(value, path)
    except (ValueError, RecursionError):
        value, found = text, [(path, text)]
    for place, inside in found:
        if why := _refused(inside):
            raise ConfigError(f"command line: {place}: {why}")
    return path, value


def _json(text, path):
    """What JSON text says, TWICE in the place of a key's second value."""
    try:
        return json.loads(text, object_pairs_hook=_keys_once)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.strip() else ""
        where = f"line {error.lineno}, column {error.colno}: {line.strip()[:80]}"
        raise ConfigError(f"{path.absolute()}: not JSON: {error.msg}, {where}") from None
    except ValueError as error:
        raise ConfigError(f"{path.absolute()}: {error}") from None


def _keys_once(pairs):
    times = Counter(name for name, _ in pairs)
    return {name: value if times[name] == 1 else TWICE for name, value in pairs}
