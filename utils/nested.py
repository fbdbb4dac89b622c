"""Configs as nested dicts and lists: dotted paths into them, one over another, what differs."""

import copy
import functools

from utils.description import every_key, names_objects
from utils.errors import ConfigError, shown


def at(config, path):
    """What is at a dotted path, in dicts."""
    return functools.reduce(lambda holder, name: holder[name], path.split("."), config)


def is_in(path, other):
    """Whether a dotted path is another one, or inside it."""
    return f"{path}.".startswith(f"{other}.")


def origin_of(origins, path):
    """What set the value there, or anything inside it (the command line first), or what it is part of; or None."""
    inside = [origin for leaf, origin in origins.items() if is_in(leaf, path)]
    around = sorted((leaf for leaf in origins if is_in(path, leaf)), key=len)
    return "command line" if "command line" in inside else next(iter(inside or map(origins.get, around[-1:])), None)


def merged(below, above):
    """`above` over `below`: sections key by key, lists whole; null takes a key away, another `type` the old `args`."""
    if isinstance(below, str) and isinstance(above, dict):
        below = {"type": below}  # a bare name is short for an object
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return below if isinstance(above, str) and isinstance(below, dict) and below.get("type") == above else above
    if (names_objects(above) and "type" in below) or (names_objects(below) and "type" in above):
        return above  # one in the place of several, or the reverse
    if above.get("type", below.get("type")) != below.get("type"):
        below = {name: value for name, value in below.items() if name != "args"}
    made = {name: merged(below.get(name), value) for name, value in above.items()}
    return {name: value for name, value in {**below, **made}.items() if value is not None or name not in below}


def set_value(config, path, value):
    """Set what is at a dotted path; sections that are left out are made, a bare name grows into an object."""
    *above, last = path.split(".")
    holder, here = config, ""
    for name, inside in zip(above, [*above[1:], last]):
        name, here = _key(holder, name, here)
        there = holder[name] if isinstance(holder, list) else holder.get(name)
        if there is None or isinstance(there, bool):  # left out, or a switch that takes arguments
            defaults = {key.path: key.default for key in every_key() if isinstance(key.default, dict)}
            there = holder[name] = copy.deepcopy(defaults.get(here, {}))
        elif isinstance(there, str) and inside in ("type", "args"):
            there = holder[name] = {"type": there, "args": {}}
        holder = there
    holder[_key(holder, last, here)[0]] = value


def _key(holder, name, path):
    """(the key or index that `name` is in `holder`, its dotted path); ConfigError where it can't be one."""
    here = f"{path}.{name}".lstrip(".")
    if isinstance(holder, list) and not (name.isdecimal() and int(name) < len(holder)):
        raise ConfigError(f"command line: {here}: the list has {len(holder)} items, counted from 0.")
    if not isinstance(holder, (dict, list)):
        raise ConfigError(f"command line: {here}: there is only {shown(holder)} before '{name}'.")
    if name in ("type", "args") and ".args" not in path and names_objects(holder):
        raise ConfigError(f"command line: {here}: which of {', '.join(holder)}? Put its name before '{name}'.")
    return int(name) if isinstance(holder, list) else name, here


def leaves(value, path=""):
    """[(dotted path, value)] of whatever has nothing inside; the items of a list are numbered from 0."""
    if not (isinstance(value, (dict, list)) and value):
        return [(path, value)] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for name, item in items for leaf in leaves(item, f"{path}.{name}".lstrip("."))]


def differences(before, after, path=""):
    """[(dotted path, before, after)] of the values that are not equal; None where one has no such key."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [(path, before, after)]
    names = dict.fromkeys([*before, *after])
    pairs = [(f"{path}.{name}".lstrip("."), before.get(name), after.get(name)) for name in names]
    return [found for inner, was, now in pairs for found in differences(was, now, inner)]
