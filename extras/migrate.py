"""`python new_project.py FOLDER --from FORK`: a project forked from victoresque/pytorch-template, on this core.

Reads the fork and runs nothing of it before the last step, which imports what its training scripts import.
"""

import ast
import filecmp
import re
import shutil
import subprocess
import sys
from pathlib import Path

from base.base_trainer import OLDER_NAMES
from extras.sources import IMPORT, Source, attributes, exports, names, own_functions
from extras.tables import text
from utils.errors import ConfigError
from utils.imports import ROOT

CORE = ("base", "logger", "utils", "extras", "parse_config.py", "requirements.txt", ".gitignore")
PARSER, OTHER_PARSER = "parse_config.py", "utils/parse_config.py"  # where some forks keep theirs
PARSER_CALL = re.compile(r"(?<!class )\bConfigParser(?=\(\w+(,\s*[^,=]+)?\))")  # with one argument or two, by position
LEFT = re.compile(r"\.git|__pycache__|saved|wandb|\.?venv|\.ipynb_checkpoints|\.pytest_cache|.*\.(pth|pt|ckpt|pyc)")
OWN = ("migrate.py", "sources.py", "template_functions.txt", "look_for.txt", "added_to_*.txt")  # nothing of a fork's
MOST_BYTES = 50 * 2**20


class Move:
    """One fork on its way into one folder, and what is to be told of it."""

    def __init__(self, fork, folder):
        self.fork, self.folder = fork, folder
        self.known = set(text("template_functions.txt").split())
        self.theirs = {}  # {dotted name: Source} of the fork
        self.gone = set()  # what the fork's BaseTrainer gave its heirs, and the core's does not
        self.told = {}  # {(section, path, what): numbers of lines}

    def tell(self, section, path, what, *lines):
        self.told.setdefault((section, path, what), set()).update(lines)

    def append(self, path, text):
        with open(self.folder / path, "a", encoding="utf-8") as file:
            file.write(text)

    def copy(self):
        """Copy the fork, and read its modules."""
        shutil.copytree(self.fork, self.folder, ignore=self._left, dirs_exist_ok=True)
        for path in sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.py")):
            try:
                source = Source(self.folder, path)
                self.theirs[source.module] = source
            except (SyntaxError, ValueError) as error:
                self.tell("Left to do", path, f"can't be read by this Python: {error}")

    def _left(self, here, found):
        """Of the names in a folder of the fork, those that are not copied."""
        left = []
        for path in (Path(here, name) for name in sorted(found)):
            is_here = path.is_file() or (path.is_dir() and not path.is_symlink())
            if LEFT.fullmatch(path.name) or not is_here or path.lstat().st_size > MOST_BYTES:
                left.append(path.name)
                if path.name not in (".git", "__pycache__"):
                    here_in = path.relative_to(self.fork).as_posix()
                    self.tell("Not copied", here_in, "of runs or of tools, a checkpoint, a link, or above 50 MiB.")
        return left

    def lay(self, keep_base):
        """Lay the core over the copy, but for what is kept of the fork's own: its base, a parser that it changed."""
        parsers = [source for source in self.theirs.values() if source.path in (PARSER, OTHER_PARSER)]
        changed = [s.path for s in parsers if own_functions(s.definitions.get("ConfigParser"), self.known)]
        added = {"base/__init__.py": "added_to_base.txt", **dict.fromkeys(changed, "added_to_parser.txt")}
        kept = {path: text(name) for path, name in added.items()} if keep_base else {}
        ignored = shutil.ignore_patterns("__pycache__", *OWN)
        for path in (path for path in CORE if not kept.keys() & {path, f"{path}/__init__.py"}):
            if (ROOT / path).is_dir():
                shutil.copytree(ROOT / path, self.folder / path, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy2(ROOT / path, self.folder / path)
        shutil.copy2(ROOT / "LICENSE", self.folder / "LICENSE-core")
        if OTHER_PARSER not in kept and (self.fork / OTHER_PARSER).exists():
            (self.folder / OTHER_PARSER).write_text("from parse_config import ConfigParser  # noqa: F401\n")
            self.tell("Changed", OTHER_PARSER, "hands on the core's ConfigParser.")
        for path in (path for path in ("requirements.txt", ".gitignore") if (self.fork / path).exists()):
            self._merge(path)
        sources = self.theirs.values()
        self.copied = [s for s in sources if filecmp.cmp(self.fork / s.path, self.folder / s.path, shallow=False)]
        self.replaced = [s for s in sources if s not in self.copied]
        for path, added in kept.items():
            self.append(path, added)
            self.tell("Changed", path, "added to, for the checkpoints of what is kept to open with a plain torch.load.")

    def _merge(self, path):
        """Behind the core's lines, put the fork's; of a package that both name, the core's stays."""
        package = re.compile(r"[\w.-]+|.*")
        ours, theirs = ((at / path).read_text(encoding="utf-8-sig").splitlines() for at in (ROOT, self.fork))
        named = {package.match(line)[0].lower() for line in ours}
        new = [line for line in theirs if package.match(line)[0].lower() not in named]
        self.append(path, "".join(f"{line}\n" for line in new))
        self.tell("Changed", path, f"the core's lines, and {len(new)} of the fork's.")

    def wanted(self):
        """(module that binds it, name) of what the fork's own modules import; of a star, what they use."""
        for source in self.copied:
            for module, name in source.taken():
                there = exports(self.theirs, module)
                taken = names(source.tree) - source.bound.keys() if name == "*" else {name}
                yield from ((there[one], one) for one in taken & there.keys())

    def carry(self, source, core, wanted):
        """Give the core's file, in the place of one of the fork's, the names that only that had."""
        missing = {}
        for name, by in sorted(exports(self.theirs, source.module).items()):
            # In a file of the fork's alone: its class stands in the place of the core's.
            own_base = source.module == "base" and self.theirs[by] in self.copied
            is_missed = (by, name) in wanted or self.theirs[by].makes(name, self.known)
            if not is_missed or (name in core.bound and not own_base):
                continue
            if by != f"{source.module}.{name}" and ROOT.joinpath(*source.module.split("."), f"{name}.py").exists():
                self.tell("Left to do", source.path, f"{name} is a module of the core; the fork's has to be renamed.")
            else:
                missing.setdefault(by, []).append(name)
        for by, carried in missing.items():
            target, listed = by, ", ".join(carried)
            if by == source.module:
                path = Path(source.path).with_name(f"carried_{source.module.rpartition('.')[2]}.py")
                (self.folder / path).write_text(source.without(core, carried), encoding="utf-8")
                target = ".".join(path.with_suffix("").parts)
            line = f"from {target} import {listed}  # noqa: E402, E501, F401, I001"
            self.append(source.path, f"\n# Carried over from the fork.\n{line}\n")
            if "__all__" in core.bound:
                self.append(source.path, f"__all__ += {carried}  # noqa: E501\n")
            self.tell("Carried over", source.path, f"{listed}, from {target}.")

    def compare(self, source, core):
        """Tell what the fork has defined differently in a file that the core replaces."""
        for line, what in source.differences(core, self.known):
            self.tell("Left to do", source.path, what, line)
        if "BaseTrainer" in source.definitions.keys() & core.definitions.keys():
            theirs, ours = (attributes(of.definitions["BaseTrainer"]) for of in (source, core))
            self.gone = theirs - ours - OLDER_NAMES.keys()

    def look(self, source):
        """Tell of lines in the fork's own code that won't do; change calls of a parser that read the command line."""
        for line, what in source.doubtful(self.gone):
            self.tell("Left to do", source.path, what, line)
        lines = [source.text.count("\n", 0, call.start()) + 1 for call in PARSER_CALL.finditer(source.text)]
        parsers = (of for of in self.replaced if "ConfigParser" in of.definitions)
        if lines and any("def __init__(self, args," in of.text for of in parsers):
            changed = PARSER_CALL.sub("ConfigParser.from_args", source.text)
            (self.folder / source.path).write_text(changed, encoding="utf-8")
            self.tell("Changed", source.path, "ConfigParser.from_args(…) in the place of ConfigParser(…).", *lines)

    def try_imports(self):
        """Import what each training script imports at its top, and tell how that went."""
        for source in (source for source in self.copied if re.fullmatch(r"train\w*\.py", source.path)):
            code = "\n".join(ast.unparse(node) for node in source.tree.body if isinstance(node, IMPORT))
            words = [sys.executable, "-B", "-c", code]
            done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, errors="replace")
            why = done.stderr.strip().rpartition("\n")[2]
            self.tell("Tried", source.path, f"no import: {why}" if done.returncode else "its imports work.")

    def report(self):
        """The text of MOVED.md."""
        parts = ["# Moved", f"From {self.fork}. Line numbers are the fork's. --keep-base keeps base/ and its parser."]
        for section in ("Carried over", "Changed", "Left to do", "Not copied", "Tried"):
            told = [(path, sorted(at), what) for (where, path, what), at in self.told.items() if where == section]
            lines = [f"- {path}{':' if at else ''}{', '.join(map(str, at))}: {what}" for path, at, what in told]
            parts += [f"## {section}", "\n".join(lines) or "Nothing."]
        return "\n\n".join([*parts, ""])


def move(fork, folder, keep_base=False):
    """Make `folder` the fork's project on this core, write MOVED.md into it and print it; the fork stays as it is."""
    fork, folder = Path(fork).resolve(), Path(folder).resolve()
    _refuse(fork, folder)
    moved = Move(fork, folder)
    moved.copy()
    moved.lay(keep_base)
    wanted = set(moved.wanted())
    for source in moved.replaced:
        core = Source(ROOT, PARSER if source.path == OTHER_PARSER else source.path)
        moved.carry(source, core, wanted)
        moved.compare(source, core)
    for source in moved.copied:
        moved.look(source)
    moved.try_imports()
    (folder / "MOVED.md").write_text(moved.report(), encoding="utf-8")
    print(moved.report())


def _refuse(fork, folder):
    if not ((fork / "base" / "base_trainer.py").is_file() and any(fork.glob("train*.py"))):
        raise ConfigError(f"--from {fork}: is no fork of pytorch-template, with base/base_trainer.py and train.py.")
    if (fork / "base" / "trainer_state.py").exists():
        raise ConfigError(f"--from {fork}: is on this core already; copy it.")
    if folder.is_relative_to(fork) or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ConfigError(f"{folder}: is no new or empty folder outside of the fork; give another one.")
