"""`python new_project.py FOLDER --from FORK`: a project forked from victoresque/pytorch-template, on this core.

Reads the fork and runs nothing of it before the last step, which imports what its training scripts import.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from base.base_trainer import OLDER_NAMES
from extras.sources import DEFINITION, IMPORT, Source, Sources, attributes, names, own_functions
from utils.errors import ConfigError
from utils.imports import ROOT

CORE = ("base", "logger", "utils", "extras", "parse_config.py", "requirements.txt", ".gitignore")
NOT_OF_EXTRAS = ("migrate.py", "sources.py", "template_functions.txt")
PARSER, OTHER_PARSER = "parse_config.py", "utils/parse_config.py"  # where some forks keep theirs
LOGGER_CONFIG = "logger_config.json"  # read by the template's logger alone
MERGED = ("requirements.txt", ".gitignore")
LEFT_FOLDERS = {".git", "__pycache__", "saved", "wandb", ".venv", "venv", ".ipynb_checkpoints", ".pytest_cache"}
LEFT_FILES = re.compile(r".*\.(pth|pt|ckpt|pyc)")
MOST_BYTES = 50 * 2**20
OPENS = """

# Added: a checkpoint that holds the parser opens with a plain torch.load, as a dict of its sections.
def _sections_of(parser):
    from collections import OrderedDict

    from utils.util import as_plain

    sections = next(value for value in vars(parser).values() if isinstance(value, dict) and "trainer" in value)
    return OrderedDict, (list(as_plain(sections).items()),)


ConfigParser.__reduce__ = _sections_of
"""
READS = """

# Added: a plain torch.load reads numbers of numpy, too.
import numpy  # noqa: E402
import torch  # noqa: E402

_kinds = [type(numpy.dtype(kind)) for kind in "fdilqbB?"]
torch.serialization.add_safe_globals([numpy.dtype, numpy.float64(0).__reduce__()[0], *_kinds])
"""
TO_DEVICE = (
    "moved the model to its device, the core's does not: in the script, model = model.to(device) before the optimizer."
)


class Move:
    """One fork on its way into one folder, and what is to be told of it."""

    def __init__(self, fork, folder, keep_base):
        self.fork, self.folder, self.keep_base = fork, folder, keep_base
        self.changed_parser = False
        self.known = set((ROOT / "extras" / "template_functions.txt").read_text().split())
        self.told = {"Carried over": {}, "Changed": {}, "Left to do": {}, "Not copied": {}}

    def tell(self, section, path, what, line=None):
        lines = self.told[section].setdefault((path, what), [])
        lines += [line] if line is not None and line not in lines else []

    def copy(self):
        """Copy the core, then what of the fork lies elsewhere; {path in the fork: whether the core has its own}."""
        ignored = shutil.ignore_patterns("__pycache__", *NOT_OF_EXTRAS)
        kept = self._kept() if self.keep_base else []
        for name in CORE:
            if (ROOT / name).is_file() and name not in kept:
                shutil.copy2(ROOT / name, self.folder / name)
            elif name not in kept:
                shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
        shutil.copy2(ROOT / "LICENSE", self.folder / "LICENSE-core")
        self.tell("Changed", "LICENSE-core", "the licence of the core's files.")
        if (self.fork / OTHER_PARSER).exists() and OTHER_PARSER not in kept:
            (self.folder / OTHER_PARSER).write_text("from parse_config import ConfigParser  # noqa: F401\n")
            self.tell("Changed", OTHER_PARSER, "hands on the core's ConfigParser.")
        found = {}
        for path in self._files():
            there = self.folder / path
            found[path] = there.exists() and path not in ("pyproject.toml", *MERGED)
            if path in MERGED:
                self._merge(path)
            elif not found[path]:
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.fork / path, there)
            elif not path.endswith(".py"):
                self.tell("Not copied", path, "the core has a file of this name.")
            added = OPENS if path in kept else READS if path == "base/__init__.py" and self.keep_base else ""
            if added:
                with open(there, "a", encoding="utf-8") as file:
                    file.write(added)
                self.tell("Changed", path, "kept as it is; for its checkpoints to open with a plain torch.load.")
        return found

    def _kept(self):
        """What of the core the fork's own stands for: its base/, and a ConfigParser that it has changed."""
        for path in (PARSER, OTHER_PARSER):
            if (self.fork / path).is_file():
                node = Source(self.fork, path).definition("ConfigParser")
                self.changed_parser = node is not None and bool(own_functions(node, self.known))
                return ["base", path] if self.changed_parser else ["base"]
        return ["base"]

    def _files(self):
        """Paths of the fork's files, but for those that are left where they are."""
        for here, folders, files in os.walk(self.fork):
            below = Path(here).relative_to(self.fork)
            for name in [name for name in folders if name in LEFT_FOLDERS or (Path(here) / name).is_symlink()]:
                folders.remove(name)
                if name not in (".git", "__pycache__"):
                    self.tell("Not copied", (below / name).as_posix(), "a folder of runs or of tools, or a link.")
            for name in sorted(files):
                path, size = (below / name).as_posix(), os.lstat(os.path.join(here, name)).st_size
                left = LEFT_FILES.fullmatch(name) or (name == LOGGER_CONFIG and not self.changed_parser)
                if left or size > MOST_BYTES or not os.path.isfile(os.path.join(here, name)):
                    why = (
                        "the template's own logger alone reads it."
                        if name == LOGGER_CONFIG
                        else f"{size / 2**20:,.1f} MiB."
                    )
                    self.tell("Not copied", path, why)
                else:
                    yield path

    def _merge(self, path):
        """Our lines, then the fork's; of a package that both name, ours."""
        package = re.compile(r"[\w.-]+")
        ours, theirs = ((at / path).read_text(encoding="utf-8-sig").splitlines() for at in (ROOT, self.fork))
        named = {found[0].lower() for line in ours if (found := package.match(line))}
        new = [line for line in theirs if line not in ours and (package.match(line) or [line])[0].lower() not in named]
        (self.folder / path).write_text("\n".join([*ours, *new, ""]), encoding="utf-8")
        self.tell("Changed", path, f"the core's lines, and {len(new)} of the fork's.")

    def read(self, found):
        """Read both sides before anything is carried, and who of the fork takes what from whom."""
        self.theirs = Sources(self.fork, [path for path in found if path.endswith(".py")])
        self.ours = Sources(self.folder, [p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*.py")])
        self.replaced = [source for source in self.theirs.values() if found[source.path]]
        self.copied = [source for source in self.theirs.values() if not found[source.path]]
        for path, error in self.theirs.unread.items():
            self.tell("Left to do", path, f"can't be read by this Python: {error}")
        self.wanted = set()
        for source in self.copied:
            free = names(source.tree) - source.bound.keys()
            for module, name in source.taken():
                there = self.theirs.exports(module)
                taken = free & there.keys() if name == "*" else {name} & there.keys()
                self.wanted |= {(by, one) for one in taken for by in (module, there[one])}

    def carry(self, source):
        """Give the core's file, in the place of one of the fork's, the names that only that had."""
        there, missing = self.ours[source.module], {}
        for name, by in self.theirs.exports(source.module).items():
            # In a file of the fork's alone: its class stands in the place of the core's.
            own_base = source.module == "base" and self.theirs[by] in self.copied
            if (name in there.bound and not own_base) or not self._matters(source, by, name):
                continue
            if f"{source.module}.{name}" in self.ours and by != source.module + "." + name:
                self.tell("Left to do", source.path, f"{name} is a module of the core; the fork's has to be renamed.")
                continue
            missing.setdefault(by, []).append(name)
        lines = []
        for by, carried in missing.items():
            carried.sort()
            target = self._slice(source, carried) if by == source.module else by
            lines.append(f"from {target} import {', '.join(carried)}  # noqa: E402, E501, F401, I001")
            lines += [f"__all__ += {json.dumps(carried)}  # noqa: E501"] if "__all__" in there.bound else []
            self.tell("Carried over", source.path, f"{', '.join(carried)}, from {target}.")
        if lines:
            with open(self.folder / source.path, "a", encoding="utf-8") as file:
                file.write("\n".join(["", "# Carried over from the fork.", *lines, ""]))

    def _matters(self, source, by, name):
        """Whether a name is to be had: one that is taken from here, or that the fork made up."""
        if {(source.module, name), (by, name)} & self.wanted:
            return True
        nodes = self.theirs[by].bound[name]
        if name.startswith("_") or any(isinstance(node, (*IMPORT, ast.If, ast.Try)) for node in nodes):
            return False
        definitions = [node for node in nodes if isinstance(node, DEFINITION)]
        return not definitions or any(own_functions(node, self.known) for node in definitions)

    def _slice(self, source, carried):
        """Write what binds these names, with all that it needs, into a new module; return that one's name."""
        path = Path(source.path).parent / f"carried_{source.module.rpartition('.')[2]}.py"
        (self.folder / path).write_text(source.excerpt(carried, self.ours[source.module]), encoding="utf-8")
        for node in source.tree.body:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                what = f"`{ast.unparse(node)}` ran at import, and no longer does."
                self.tell("Left to do", source.path, what, node.lineno)
        return path.with_suffix("").as_posix().replace("/", ".")

    def compare(self, source):
        """Tell what the fork has defined differently in a file that the core replaces."""
        there = self.ours["parse_config" if source.path == OTHER_PARSER else source.module]
        for node, what in source.differences(there, self.known):
            is_core = source.module.startswith("base") or source.path in (PARSER, OTHER_PARSER)
            advice = " Or keep the fork's own: --keep-base." if is_core else ""
            self.tell("Left to do", source.path, what + advice, node.lineno)
        trainer = source.definition("BaseTrainer")
        if trainer is not None and re.search(r"model\.to\(self\.device\)", source.text):
            self.tell("Left to do", source.path, f"BaseTrainer {TO_DEVICE}", trainer.lineno)

    def look(self, source):
        """Tell of lines in the fork's own code that won't do, and change those that certainly can't run."""
        for line, what in source.doubtful():
            self.tell("Left to do", source.path, what, line)
        edits = []  # (line, column in bytes) of what gets .from_args behind it
        old, new = (of.definition("base.base_trainer", "BaseTrainer") for of in (self.theirs, self.ours))
        gone = attributes(old) - attributes(new) if old is not None and new is not None else set()
        for node in source.on_self(gone - OLDER_NAMES.keys()):
            what = f"self.{node.attr} was BaseTrainer's, and no longer is there; set it in __init__."
            self.tell("Left to do", source.path, what, node.lineno)
        for node in source.calls("ConfigParser") if self.theirs.parser_reads_arguments() else ():
            if node.keywords or len(node.args) > 2:
                what = "ConfigParser(…) read the command line; write ConfigParser.from_args(args, options)."
                self.tell("Left to do", source.path, what, node.lineno)
            else:
                edits.append((node.lineno, node.func.end_col_offset))
        lines = source.text.split("\n")
        for line, column in sorted(edits, reverse=True):
            self.tell("Changed", source.path, "ConfigParser.from_args(…) in the place of ConfigParser(…).", line)
            text = lines[line - 1].encode()
            lines[line - 1] = (text[:column] + b".from_args" + text[column:]).decode()
        if edits:
            (self.folder / source.path).write_text("\n".join(lines), encoding="utf-8")

    def try_imports(self):
        """Import what each training script imports at its top; yield a line on each."""
        for source in (source for source in self.copied if re.fullmatch(r"train\w*\.py", source.path)):
            code = "\n".join(ast.unparse(node) for node in source.tree.body if isinstance(node, IMPORT))
            words = [sys.executable, "-B", "-c", code]
            done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, errors="replace")
            why = done.stderr.strip().rpartition("\n")[2]
            yield f"{source.path}: " + ("its imports work." if done.returncode == 0 else f"no import: {why}")

    def report(self, tried):
        """The text of MOVED.md."""
        parts = ["# Moved", f"From {self.fork}. Line numbers are those of the fork's files."]
        for section, told in self.told.items():
            lines = [
                f"- {path}{':' if at else ''}{', '.join(map(str, sorted(at)))}: {what}"
                for (path, what), at in told.items()
            ]
            parts += [f"## {section}", "\n".join(lines) or "Nothing."]
        return "\n\n".join([*parts, "## Tried", "\n".join(f"- {line}" for line in tried) or "Nothing.", ""])


def move(fork, folder, keep_base=False):
    """Make `folder` the fork's project on this core, write MOVED.md into it and print it; the fork stays as it is."""
    fork, folder = Path(fork).resolve(), Path(folder).resolve()
    _refuse(fork, folder)
    moved = Move(fork, folder, keep_base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        moved.read(moved.copy())
        for source in moved.replaced:
            moved.carry(source)
            moved.compare(source)
        for source in moved.copied:
            moved.look(source)
        text = moved.report(list(moved.try_imports()))
        (folder / "MOVED.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}; what was begun is in {folder}.") from error
    print(text)


def _refuse(fork, folder):
    if not ((fork / "base" / "base_trainer.py").is_file() and any(fork.glob("train*.py"))):
        why = "is no fork of pytorch-template, which has base/base_trainer.py and train.py."
        raise ConfigError(f"--from {fork}: {why}")
    if (fork / "base" / "trainer_state.py").exists():
        raise ConfigError(f"--from {fork}: is on this core already; copy it.")
    if folder.is_relative_to(fork) or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ConfigError(f"{folder}: is no new or empty folder outside of the fork; give another one.")
