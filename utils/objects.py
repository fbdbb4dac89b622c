"""From a name in a config to the object: a name in its section's module, or else a dotted path."""

import functools
import importlib
import inspect
import os
import types
from traceback import extract_tb

from utils import trust
from utils.description import near
from utils.errors import CheckpointError, ConfigError, Failure


def locate(name, home, place, judge=None):
    """The class or function that `name` stands for.

    home: the section's module, or its dotted path. place: where the name stands, for messages. judge: called with
    (object, dotted path) before it is used, and with (None, module's name) before a module is imported.
    """
    if isinstance(home, str):
        home = importlib.import_module(home)
    if hasattr(home, name):
        found, path = getattr(home, name), f"{home.__name__}.{name}"
    elif "." in name:
        found, path = _by_path(name, place, judge), name
    else:
        public = [n for n, value in vars(home).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(
            f"{place}: no '{name}' in {home.__name__}. {near(name, public)}Give a name from there or a dotted path."
        )
    if isinstance(found, types.ModuleType) or not callable(found):
        raise ConfigError(f"{place}: '{name}' is a {type(found).__name__}; a class or a function is wanted here.")
    if judge is not None:
        judge(found, path)
    return found


def _by_path(name, place, judge):
    parts = name.split(".")
    module, tried = None, ""
    for i in range(1, len(parts)):
        tried = ".".join(parts[:i])
        if judge is not None:
            judge(None, tried)
        try:
            module = importlib.import_module(tried)
        except ModuleNotFoundError as error:
            if error.name and not (tried + ".").startswith(error.name + "."):
                raise ConfigError(
                    f"{place}: '{tried}' needs the module '{error.name}', which isn't installed."
                ) from error
            break
        except Exception as error:
            raise ConfigError(f"{place}: importing '{tried}' raised {type(error).__name__}: {error}") from error
    if module is None:
        raise ConfigError(
            f"{place}: there is no module '{parts[0]}' beside the config, in the working directory, in the project or "
            "among the installed packages."
        )
    found = module
    for part in parts[len(module.__name__.split(".")) :]:
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise ConfigError(
                f"{place}: no '{part}' in '{getattr(found, '__name__', found)}'. {near(part, names)}".rstrip()
            )
        found = getattr(found, part)
    return found


def check_arguments(found, args, kwargs, place, partly=False):
    """Raise a ConfigError that names the argument where `found` would not take these; `partly`: more come later."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        (signature.bind_partial if partly else signature.bind)(*args, **kwargs)
    except TypeError as error:
        raise _argument_error(found, len(args), kwargs, place, error) from error


def _argument_error(found, positional, kwargs, place, error):
    """The ConfigError for a TypeError about arguments, which says of an unexpected one where it stands."""
    owners = inspect.getmro(found) if inspect.isclass(found) else [found]
    parameters = [p for owner in owners[:-1] or owners for p in _parameters(owner)]
    named = dict.fromkeys(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    accepted = list(named)[positional:]
    unknown = next((key for key in kwargs if f"unexpected keyword argument '{key}'" in str(error)), "")
    where, name = f"{place}.args.{unknown}".rstrip("."), getattr(found, "__name__", str(found))
    hint = near(unknown, accepted) if unknown else ""
    problem = str(error).split("() ")[-1]
    return ConfigError(f"{where}: {name} {problem}. {hint}It accepts {', '.join(accepted) or 'none'}.")


def _parameters(found):
    try:
        return inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []


def make(found, args, kwargs, place, call=True):
    """Construct a class or call a function with the arguments; `call=False`: bind a function to them instead."""
    bind = not call and not inspect.isclass(found)
    check_arguments(found, args, kwargs, place, partly=bind)
    if bind:
        return functools.partial(found, *args, **kwargs) if args or kwargs else found
    try:
        return found(*args, **kwargs)
    except Failure:
        raise
    except Exception as error:
        if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
            raise _argument_error(found, len(args), kwargs, place, error) from error
        name, last = getattr(found, "__name__", str(found)), extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}, line {last.lineno}"
        raise ConfigError(f"{place}: building {name} raised {type(error).__name__}: {error} ({where})") from error


def refuse_strangers(place, folders):
    """A `judge` for `locate` that lets a checkpoint's config name only what is safe (see utils.trust)."""

    def judge(found, path):
        if found is None and trust.may_import(path):
            return
        if found is None or not trust.is_allowed(found, path, folders):
            raise CheckpointError(
                f"{place}: the checkpoint's config names '{path}', which a checkpoint may not run.\n"
                "If you know where it comes from, give the config yourself with -c FILE, or add --trust."
            )

    return judge
