"""The import path of a run: the project's root, the working directory, and the folder of the config that was given."""

import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTE = ROOT / ".config_folders"  # folders of the configs that this checkout was given with -c
_users: dict[str, None] = {}


def add(folders):
    """Put folders on the import path, the first in front, after the project's root."""
    for folder in [*reversed(folders), ROOT]:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
    _users.update(dict.fromkeys(map(str, folders)))


def users_folders():
    """The folders whose modules are the user's own."""
    return list(dict.fromkeys([str(ROOT), *_users]))


def remember(folder):
    """Note that a config in this folder was given here: a resume may import the user's modules from it again."""
    if str(folder) not in known():
        with (
            suppress(OSError),
            open(NOTE, "a", encoding="utf-8") as file,
        ):  # a checkout that is read-only remembers none
            file.write(f"{folder}\n")


def known():
    return NOTE.read_text(encoding="utf-8").splitlines() if NOTE.exists() else []
