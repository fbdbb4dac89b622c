"""Whether the arguments that a config gives are those that a class or a function takes; told before it is called."""

import inspect

from utils.errors import ConfigError, hint, near, shown
from utils.objects import known_to, name_of, parameters_of, with_names


def check(found, args, kwargs, path, place, partly=False, given=()):
    """ConfigError that names every argument which `found` would not take, or lacks; `partly`: more come later.

    path: where in the config the object stands. place(path): the words for it. given: names that the code will give.
    """
    parameters = parameters_of(found)
    kinds = [parameter.kind for parameter in parameters.values()]
    taken = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(args)]
    if len(taken) < len(args) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        why = f"{name_of(found)} takes {len(taken)} arguments, and it is called with {len(args)}."
        raise ConfigError(f"{place(path)}: {why}")
    known, swallows, wrong = known_to(found), inspect.Parameter.VAR_KEYWORD in kinds, {}
    if not swallows and (refused := [name for name in given if name not in known]):
        why = f"{name_of(found)} does not take {', '.join(refused)}, which the code gives; add **kwargs to it."
        raise ConfigError(f"{place(path)}: {why}")
    taken += given
    known = {name: parameter for name, parameter in known.items() if name not in taken}
    for name, value in kwargs.items():
        if name in taken:
            wrong[name] = "is given by the code; leave it out."
        elif name not in known and not (swallows and _may_be_swallowed(found, name, known)):
            wrong[name] = f"{name_of(found)} has no such argument. {hint(name, known)}"
        elif name in known and (wanted := _wanted(known[name], value)):
            wrong[name] = f"{shown(value)} where {wanted} is wanted."
    told = " ".join(wrong.values())  # an argument that was misspelt is not missing, too
    for parameter in with_names(parameters) if not partly else ():
        name = parameter.name
        if parameter.default is parameter.empty and name not in (*taken, *kwargs) and f"'{name}'" not in told:
            wrong[name] = f"missing. {name_of(found)} needs it."
    if wrong:
        raise ConfigError("\n".join(f"{place(f'{path}.args.{name}')}: {why}" for name, why in wrong.items()))


_SWITCHES = ("true", "false", "yes", "no", "on", "off", "none", "null")  # which would all count as true
_WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def _wanted(parameter, value):
    """What a parameter wants, by its annotation or its default, where it can't be this text or this fraction."""
    kind = getattr(parameter.annotation, "__name__", parameter.annotation)
    if isinstance(parameter.default, bool):
        kind = "bool" if str(value).lower() in _SWITCHES else None
    wrong = isinstance(value, str) or (isinstance(value, float) and kind == "int")
    return _WANTED.get(kind) if wrong and not isinstance(parameter.default, str) else None


def _may_be_swallowed(found, name, known):
    """Whether a **kwargs is there for this name; not if it is nearly that of an argument."""
    makers = [vars(owner).get("__init__") for owner in found.__mro__] if inspect.isclass(found) else [found]
    codes = [getattr(inspect.unwrap(maker), "__code__", None) for maker in makers if maker is not None]
    if any(name in code.co_consts for code in codes if code is not None):  # as in kwargs.pop("name")
        return True
    return not near(name, known, cutoff=0.8)
