"""From a name in a config to the object: a name in its section's module, or else a dotted path."""

import functools
import importlib
import inspect
import os
from traceback import extract_tb

from utils import description, imports, trust
from utils.errors import ArgumentError, CheckpointError, ConfigError, Failure, first_line, near, shown

ELSEWHERE = ("torch.nn", "data_loader.datasets")  # where a bare name is often meant to be found
FUNCTIONS = ("loss", "metrics")  # of these sections a function is wanted itself, not what it returns


def locate(name, home, place, judge=lambda found, path: None):
    """The class or function that `name` stands for.

    home: the section's module, or its dotted path. place: where the name stands, for messages. judge: called with
    (object, dotted path) before it is used, and with (None, module's name) before a module is imported.
    """
    home = _imported(home, place) if isinstance(home, str) else home
    holder, names, path = home, [name], f"{home.__name__}.{name}"
    if "." in name:  # the longest module that it begins with, and the names behind that
        parts, path = name.split("."), name
        for i in range(1, len(parts)):
            judge(None, ".".join(parts[:i]))
            module = _imported(".".join(parts[:i]), place)
            if module is None:
                break
            holder, names = module, parts[i:]
        if names == [name]:
            where = "beside the config, in the working directory, in the project, or installed"
            raise ConfigError(f"{place}: no module '{parts[0]}' {where}. Mend the name, or pip install {parts[0]}.")
    found = attribute(holder, names, place)
    if not callable(found):
        raise ConfigError(f"{place}: '{name}' is a {type(found).__name__}; a class or a function is wanted here.")
    judge(found, path)
    return found


def _imported(name, place):
    """The module of that name; None where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or (name + ".").startswith(error.name + "."):
            return None
        wanted = error.name.partition(".")[0]
        why = f"'{name}' wants '{wanted}', which isn't installed: pip install {wanted}."
        raise ConfigError(f"{place}: {why}") from error
    except Exception as error:
        why = f"importing '{name}' raised {type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"{place}: {why}") from error


def attribute(holder, names, place):
    """The attribute of an attribute … of `holder`, by its names."""
    for name in names:
        if not hasattr(holder, name):
            modules = [n for n in dir(holder) if inspect.ismodule(inspect.getattr_static(holder, n))]
            others = [n for n in dir(holder) if not n.startswith("_") and n not in modules]
            advice = near(name, modules + others) or f"It has {', '.join(others[:8])}, …; or give a dotted path."
            for known in ELSEWHERE if hasattr(holder, "__file__") else ():
                if hasattr(_imported(known, place), name):
                    advice = f"Did you mean '{known}.{name}'?"
            raise ConfigError(f"{place}: no '{name[:80]}' in {name_of(holder)}. {advice}")
        holder = getattr(holder, name)
    return holder


def parameters_of(found):
    """{name: inspect.Parameter}; those of a function that takes anything for what has no signature."""
    try:
        return inspect.signature(found).parameters
    except (TypeError, ValueError):  # as some built-in functions
        return inspect.signature(lambda *args, **kwargs: None).parameters


def with_names(parameters):
    return [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def known_to(found):
    """{name: inspect.Parameter} of what `found` takes, and its bases as far as **kwargs pass it on."""
    parameters: dict[str, inspect.Parameter] = {}
    for owner in inspect.getmro(found)[:-1] if inspect.isclass(found) else [found]:
        own = parameters_of(owner)
        parameters = {**own, **parameters}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
            break
    return {parameter.name: parameter for parameter in with_names(parameters)}


def make(found, args, kwargs, path, place, call=True):
    """Construct a class or call a function with the arguments; `call=False`: bind a function to them instead."""
    bind = not call and not inspect.isclass(found)
    imports.extra("arguments", "check")(found, args, kwargs, path, place, bind)  # without it the constructor speaks
    if bind:
        return functools.partial(found, *args, **kwargs) if args or kwargs else found
    try:
        return found(*args, **kwargs)
    except ArgumentError as error:
        argument, _, why = str(error).partition(": ")
        raise ConfigError(f"{place(f'{path}.args.{argument}')}: {why}") from error
    except Failure:
        raise
    except Exception as error:
        frames = extract_tb(error.__traceback__)
        last = next((f for f in reversed(frames[1:]) if "-packages" not in f.filename), frames[-1])  # the user's own
        said = ", ".join(f"{name}={shown(value, 30)}" for name, value in kwargs.items())
        where = f"{os.path.basename(last.filename)}, line {last.lineno}"
        why = f"{name_of(found)}({said}) raised {type(error).__name__}: {first_line(error)} ({where})"
        raise ConfigError(f"{place(path)}: {why}") from error


def name_of(found):
    return getattr(found, "__name__", type(found).__name__)


class Maker:
    """Makes what a config's sections describe: finds each name, makes the objects in its arguments, then itself.

    place(path): where a dotted path stands, for messages. judge(path, …): may refuse what is named there; see `locate`.
    What a section gave goes into `built`, off which {"from": "section.attribute"} is read.
    """

    def __init__(self, place, judge):
        self.place, self.judge = place, judge
        self.built = {}
        self.dataset = None  # an argument of the object whose others are being made

    def locate(self, spec, home, path):
        """The class or function that a spec names; home: where a bare name is looked for, None: the section's own."""
        home = description.homes().get(path.partition(".")[0], "builtins") if home is None else home
        kind, path = (spec, path) if isinstance(spec, str) else (spec["type"], f"{path}.type")
        found = locate(kind, home, self.place(path), functools.partial(self.judge, path))
        if path.startswith("optimizer"):
            from utils.optim import lean

            found = lean(found)
        return found

    def make(self, spec, home, path, args=(), kwargs=None):
        """What the spec, a list of specs or {name: spec} describes; args and kwargs are the code's own."""
        if isinstance(spec, list):
            return [self.make(item, home, f"{path}.{i}", args, kwargs) for i, item in enumerate(spec)]
        if isinstance(spec, dict) and "type" not in spec:
            return {name: self.make(item, home, f"{path}.{name}", args, kwargs) for name, item in spec.items()}
        found = self.locate(spec, home, path)
        spec = {} if isinstance(spec, str) else spec
        given, outside = {}, self.dataset
        for name, value in sorted(spec.get("args", {}).items(), key=lambda item: item[0] != "dataset"):
            given[name] = self._value(value, home, f"{path}.args.{name}")
            self.dataset = given[name] if name == "dataset" else self.dataset
        first = next(iter(parameters_of(found)), "")
        if path.endswith("sampler") and first in {"dataset", "data_source"} - given.keys() and self.dataset is not None:
            given[first] = self.dataset  # the one beside it
        self.dataset = outside
        if twice := sorted(given.keys() & (kwargs or {}).keys()):
            raise ConfigError(f"{self.place(f'{path}.args.{twice[0]}')}: is given by the code; leave it out.")
        return self.finish(found, args, {**given, **(kwargs or {})}, path, spec.get("name"))

    def finish(self, found, args, kwargs, path, name):
        """Make one object from arguments that are made; in `args` of another, a function is wanted itself, too."""
        is_argument = "args" in path.split(".")
        is_measure = path.partition(".")[0] in FUNCTIONS and not is_argument
        made = make(found, args, kwargs, path, self.place, call=not (is_argument or is_measure))
        return _called(made, name or name_of(found)) if is_measure else made

    def _value(self, value, home, path):
        """An argument's value: objects in it are made first, {"from": "data_loader.x"} is read off what was made."""
        if isinstance(value, list):
            return [self._value(item, home, f"{path}.{i}") for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        words = {"type", "args"}
        if value.keys() <= words and isinstance(value.get("type"), str) and isinstance(value.get("args", {}), dict):
            return self.make(value, home, path)
        if value.keys() == {"from"}:
            return self.read_off(str(value["from"]), path)
        if value.keys() & words and all(name in words or near(name, words) for name in value):
            why = f'{shown(value)}. An object is written {{"type": NAME, "args": {{}}}}.'
            raise ConfigError(f"{self.place(path)}: {why}")
        return {name: self._value(item, home, f"{path}.{name}") for name, item in value.items()}

    def read_off(self, source, path):
        """The attribute that `source`, "section.attribute", names."""
        section, *names = source.split(".")
        if section not in self.built:
            there = near(section, self.built) or f"There is {', '.join(self.built) or 'nothing'}."
            raise ConfigError(f"{self.place(path)}: '{source}': {section} is not made before this. {there}")
        if any(name.startswith("_") for name in names):
            raise ConfigError(f"{self.place(path)}: '{source}': a name that begins with _ is not for others.")
        return attribute(self.built[section], names, self.place(path))


def _called(made, name):
    """A metric or loss that says by its `__name__` what its number is called."""
    if getattr(made, "__name__", None) != name:
        if inspect.isroutine(made):  # its own name is not ours to change
            made = functools.partial(made)
        made.__name__ = name
    return made


def refuse_stranger(place, folders, found, path):
    """Refuse what a checkpoint's config may not name (see utils.trust); found, path: as `locate` gives them."""
    allowed = trust.may_import(path) if found is None else "__" not in path and trust.is_allowed(found, path, folders)
    if not allowed:
        way = "If you know where it comes from, give the config yourself with -c FILE, or add --trust."
        why = f"the checkpoint's config names '{path}', which a checkpoint may not run.\n{way}"
        raise CheckpointError(f"{place}: {why}")
