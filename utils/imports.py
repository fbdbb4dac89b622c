"""The import path of a run: the project's root, the working directory, and the folder of the config that was given."""

import importlib
import sys
from contextlib import suppress
from pathlib import Path

from utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
NOTE = ROOT / ".config_folders"  # folders of the configs that this checkout was given with -c
_users: dict[str, None] = {}


class Missing(ConfigError):
    """A module that is not there, and what wants it."""


def add(folders):
    """Put folders on the import path, the first in front, after the project's root."""
    sys.path[:] = dict.fromkeys([str(ROOT), *map(str, folders), *sys.path])
    _users.update(dict.fromkeys(map(str, folders)))


def users_folders():
    """The folders whose modules are the user's own."""
    return list(dict.fromkeys([str(ROOT), *_users]))


def remember(folder):
    """Note that a config in this folder was given here: a resume may import the user's modules from it again."""
    if str(folder) not in known():
        with suppress(OSError), open(NOTE, "a", encoding="utf-8") as file:  # one that is read-only remembers none
            file.write(f"{folder}\n")


def optional(name, wanted_by, package=None):
    """A module that only some configs need: one of another package, or of extras/, which may have been deleted."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        what = f"'{package}', which isn't installed: pip install {package}" if package else f"{name}; bring it back"
        raise Missing(f"{wanted_by} wants {what}.") from None


def extra(module, function, otherwise=lambda *args: None):
    """A function of a module of extras/; where that was deleted, `otherwise`."""
    with suppress(Missing):
        return getattr(optional(f"extras.{module}", ""), function)
    return otherwise


def known():
    return NOTE.read_text(encoding="utf-8").splitlines() if NOTE.exists() else []
