"""Holds the project's shape: who imports whom, how long things are, what an import runs, how files load.

Reads the sources with ast and tokenize and imports nothing of the project. Every checker takes a Project and
yields lines of "file:line: what is wrong: what to do"; the last tests show that each of them can fail.
"""

import ast
import io
import itertools
import os
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Whom a room may import, besides itself. A script may import every room here but extras.
MAY_IMPORT = {
    "utils": set(),
    "logger": {"utils"},
    "parse_config": {"logger", "utils"},
    "base": {"logger", "utils"},
    "trainer": {"base", "utils"},
    "data_loader": {"base", "utils"},
    "model": {"base", "utils"},
    "extras": {"base", "data_loader", "logger", "model", "parse_config", "trainer", "utils"},
}
SCRIPTS = {"compare", "export", "new_project", "predict", "test", "train", "tune"}
SCRIPT_MAY_IMPORT_SCRIPT = {"tune": {"train", "test"}, "export": {"predict"}}
NEVER_IMPORTED = {"benchmarks", "tests"}
FOLDERS = MAY_IMPORT.keys() - {"parse_config"}

# In code lines: not blank, not a comment, not a docstring.
FILE_LINES = 250
FUNCTION_LINES = 40
LOOP_LINES = 25
CORE_LINES = 3000
EXTRAS_LINES = 1200
NOT_CORE = {"data_loader", "model", "extras"}

# A config that is wrong by itself is reported before any of these is loaded.
HEAVY = {"torch", "torchvision", "tensorboard", "wandb", "ray", "onnx", "yaml", "tqdm"}
LOADED_WITHOUT_HEAVY = {"parse_config", "train", "test", "utils", "logger"}
IMPORTED_WHERE_USED = HEAVY - {"torch"} | {"torch.utils.tensorboard", "torch._dynamo"}

# What an assignment may call while a module is imported: calls that only make a value.
MAKES_A_VALUE = {
    *("bytes", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min", "object"),
    *("range", "set", "sorted", "str", "sum", "tuple", "type", "zip"),
    *("classmethod", "property", "staticmethod", "np.float32", "np.float64", "np.int64", "np.uint64"),
    *("Path", "pathlib.Path", "logging.getLogger", "re.compile", "struct.Struct"),
    *("OrderedDict", "collections.OrderedDict", "namedtuple", "collections.namedtuple"),
    *("field", "dataclasses.field", "auto", "enum.auto", "partial", "functools.partial"),
    *("MappingProxyType", "types.MappingProxyType", "NewType", "ParamSpec", "TypeVar"),
}
METHODS_THAT_MAKE_A_VALUE = {"absolute", "format", "join", "joinpath", "resolve", "split"}

UNPICKLES = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load", "dill.loads", "joblib.load"),
    *("pandas.read_pickle", "yaml.unsafe_load", "yaml.full_load"),
}

# Folders at the root without code of the project, and its tests.
NOT_READ = {"data", "runs", "saved", "tests", "wandb"}

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


class Source:
    """One file: its path below the root, its dotted name, its room (for a file at the root, its own name)."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.tree = ast.parse(text, path)
        parts = path.removesuffix(".py").split("/")
        self.is_package = parts[-1] == "__init__"
        self.module = ".".join(parts[:-1] if self.is_package else parts)
        self.room = parts[0]

    def at(self, node):
        return f"{self.path}:{node.lineno}"


class Project:
    """The files of the rooms by dotted name, and beside them every other file that is not a test."""

    def __init__(self, texts):
        sources = [Source(path, text) for path, text in sorted(texts.items())]
        self.everything = sources
        self.rooms = {s.module: s for s in sources if "/" not in s.path or s.room in FOLDERS}
        self.scripts = SCRIPTS | {s.room for s in sources if "/" not in s.path and s.room != "parse_config"}

    def allowed(self, room):
        if room in MAY_IMPORT:
            return MAY_IMPORT[room]
        return MAY_IMPORT.keys() - {"extras"} | SCRIPT_MAY_IMPORT_SCRIPT.get(room, set())


def read_project(root):
    texts = {}
    for folder, subfolders, files in os.walk(root):
        here = Path(folder)
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith((".", "__"))
            and not (here / name / "pyvenv.cfg").exists()
            and not (here == root and name in NOT_READ)
        ]
        for name in files:
            if name.endswith(".py"):
                path = here / name
                texts[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return Project(texts)


# Reading imports


def is_type_checking(test):
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def is_main(test):
    return ast.unparse(test) == "__name__ == '__main__'"


def walk(node, at_import=False):
    """Every node below; with at_import only those that run when the module is imported."""
    children = ast.iter_child_nodes(node)
    if at_import and isinstance(node, FUNCTION):
        children = []
    elif at_import and isinstance(node, ast.If) and (is_type_checking(node.test) or is_main(node.test)):
        children = node.orelse
    for child in children:
        yield child
        yield from walk(child, at_import)


def imports(source, at_import=False):
    """(node, module, name) of every imported name; name is None for a plain `import module`."""
    for node in walk(source.tree, at_import):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = source.module.split(".")
            package = package[: len(package) - node.level + source.is_package]
            origin = [*package, node.module or ""] if node.level else [node.module]
            yield from ((node, ".".join(filter(None, origin)), alias.name) for alias in node.names)


def packages_above(module):
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def modules_imported(project, source):
    """(module, node) for each module of ours that runs, or has to have run, when this one is imported."""
    running = {source.module, *packages_above(source.module)}
    for node, module, name in imports(source, at_import=True):
        named = f"{module}.{name}" in project.rooms
        target = f"{module}.{name}" if named else module
        # A package above this module is already running: naming a neighbour doesn't need it to have finished,
        # taking any other name from it does.
        for needed in [*(above for above in packages_above(target) if above not in running), target]:
            if needed in project.rooms and needed != source.module:
                yield needed, node


# Checkers


def wrong_directions(project):
    ours = MAY_IMPORT.keys() | NEVER_IMPORTED | project.scripts
    for source in project.rooms.values():
        allowed = project.allowed(source.room)
        for node, module, _ in imports(source):
            room = module.split(".")[0]
            if room not in ours or room == source.room or room in allowed:
                continue
            if room == "extras":
                remedy = "reach it by name, with importlib, in the function that needs it"
            elif room in project.scripts:
                remedy = "move what both need into a room"
            else:
                remedy = "pass it in as an argument, or move what both need to a room that both may import"
            may = ", ".join(sorted(allowed)) or "nothing of ours"
            yield f"{source.at(node)}: {source.room} imports {room}, it may import {may}: {remedy}"


def star_imports(project):
    for source in project.rooms.values():
        for node, module, name in imports(source):
            if name == "*":
                yield f"{source.at(node)}: imports everything from {module}: name what is used"


def import_cycles(project):
    graph = {module: dict(modules_imported(project, source)) for module, source in project.rooms.items()}
    finished, path = set(), []

    def visit(module):
        if module in path:
            loop = [*path[path.index(module) :], module]
            places = [project.rooms[a].at(graph[a][b]) for a, b in itertools.pairwise(loop)]
            yield f"{' → '.join(places)}: {' → '.join(loop)} is a circle: move what both need below both"
        elif module not in finished:
            path.append(module)
            for imported in graph[module]:
                yield from visit(imported)
            path.pop()
            finished.add(module)

    for module in graph:
        yield from visit(module)


def code_lines(source):
    """Numbers of the lines with code on them: not blank, not a comment, not (part of) a docstring."""
    docstrings = set()
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION)) and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in docstrings
        if token.type not in LAYOUT and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    text = source.text.split("\n")
    return {number for number in lines if text[number - 1].strip()}


def long_files(project):
    for source in project.rooms.values():
        count = len(code_lines(source))
        if count > FILE_LINES:
            yield f"{source.path}:1: {count} code lines, {FILE_LINES} allowed: split it, or delete an option"


def long_functions(project):
    for source in project.rooms.values():
        lines = code_lines(source)
        loops = {
            method
            for node in ast.walk(source.tree)
            if source.path == "trainer/trainer.py" and isinstance(node, ast.ClassDef) and node.name == "Trainer"
            for method in node.body
            if isinstance(method, FUNCTION) and method.name == "_train_epoch"
        }
        for node in ast.walk(source.tree):
            if isinstance(node, FUNCTION):
                count = len(lines.intersection(range(node.lineno, node.end_lineno + 1)))
                limit = LOOP_LINES if node in loops else FUNCTION_LINES
                remedy = "give the feature a home outside the loop" if node in loops else "name its parts"
                if count > limit:
                    yield f"{source.at(node)}: {node.name} has {count} code lines, {limit} allowed: {remedy}"


def large_rooms(project):
    core = {s.path: len(code_lines(s)) for s in project.rooms.values() if s.room not in NOT_CORE}
    extras = {s.path: len(code_lines(s)) for s in project.rooms.values() if s.room == "extras"}
    for name, counts, limit in (("core", core, CORE_LINES), ("extras", extras, EXTRAS_LINES)):
        total = sum(counts.values())
        if total > limit:
            largest = sorted(counts, key=counts.get, reverse=True)[:3]
            places = ", ".join(f"{path}:1 ({counts[path]})" for path in largest)
            yield f"{places}: {name} has {total} code lines, {limit} allowed: shorten it, or delete an option"


def records(tree):
    """Names of the file's own dataclasses and named tuples: calling one only makes a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            marks = " ".join(ast.unparse(mark) for mark in [*node.decorator_list, *node.bases])
            if "dataclass" in marks or "NamedTuple" in marks:
                yield node.name
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(
            ("namedtuple(", "collections.namedtuple(")
        ):
            yield ast.unparse(node.targets[0])


def calls_at_import(node):
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from calls_at_import(child)


def only_makes_a_value(call, known):
    if ast.unparse(call.func) in known:
        return True
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in METHODS_THAT_MAKE_A_VALUE:
        return False
    receiver = call.func.value
    while isinstance(receiver, ast.Attribute):  # Path(__file__).parent.resolve()
        receiver = receiver.value
    # The receiver's own call, if it is one, is judged by itself.
    return isinstance(receiver, (ast.Constant, ast.Call))


def work_at_import(project):
    for source in project.rooms.values():
        known = MAKES_A_VALUE | set(records(source.tree))
        for node in working_statements(source.tree.body, known):
            what = ast.unparse(node).split("\n")[0]
            yield f"{source.at(node)}: `{what}` runs when the file is imported: move it into a function"


def working_statements(body, known):
    """Statements that are no import, no definition, no docstring and give no plain value a name."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.ClassDef():
                yield from working_statements(node.body, known)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                calls = calls_at_import(node.value) if node.value else []
                yield from (call for call in calls if not only_makes_a_value(call, known))
            case ast.If(orelse=[]) if is_main(node.test):
                pass
            case ast.If(orelse=[]) if is_type_checking(node.test):
                yield from working_statements(node.body, known)
            case ast.Try(finalbody=[]) if all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in node.body):
                yield from working_statements([s for h in node.handlers for s in h.body] + node.orelse, known)
            case _:
                yield node


def names_one_of(packages, module, name):
    for spelled in (module, f"{module}.{name}"):
        if any(spelled == package or spelled.startswith(f"{package}.") for package in packages):
            return spelled
    return None


def heavy_imports_before_the_config_is_read(project):
    starts = [m for m, s in project.rooms.items() if m in LOADED_WITHOUT_HEAVY or s.room == "logger"]
    chains = dict.fromkeys(starts, "")  # module → the imports that lead to it
    waiting = list(starts)
    for module in waiting:  # grows while it is read
        source = project.rooms[module]
        for node, target, name in imports(source, at_import=True):
            found = names_one_of(HEAVY, target, name)
            if found:
                way = chains[module] and f" (by way of {chains[module]})"
                remedy = "import it in the function that needs it"
                yield f"{source.at(node)}: loads {found} at import{way}: {remedy}"
        for imported, node in modules_imported(project, source):
            if imported not in chains:
                chains[imported] = " → ".join(filter(None, [chains[module], source.at(node)]))
                waiting.append(imported)


def optional_packages_imported_early(project):
    for source in project.rooms.values():
        for node, module, name in imports(source, at_import=True):
            found = names_one_of(IMPORTED_WHERE_USED, module, name)
            if found:
                yield f"{source.at(node)}: loads {found} at import: import it in the function that needs it"


def origins(tree):
    """Names that imports give in this file → what they are called where they come from."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
    return names


def unsafe_loads(project):
    for source in project.everything:
        names = origins(source.tree)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                remedy = unsafe_load(node, names, source.tree)
                if remedy:
                    yield f"{source.at(node)}: `{ast.unparse(node)}` may run code from the file: {remedy}"


def unsafe_load(call, names, tree):
    """What to do instead, or None where the call is safe."""

    def full_name(node):
        first, dot, rest = ast.unparse(node).partition(".")
        return names.get(first, first) + dot + rest

    function = full_name(call.func)
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    if function in {"torch.load", "torch.serialization.load"}:
        safe = "weights_only" in arguments and ast.unparse(arguments["weights_only"]) == "True"
        return None if safe else "say weights_only=True"
    if function in UNPICKLES:
        return "keep it as JSON, or read it with torch.load(..., weights_only=True)"
    if function == "numpy.load" and "allow_pickle" in arguments:
        return "leave out allow_pickle"
    if function in {"yaml.load", "yaml.load_all"}:
        loader = arguments.get("Loader", call.args[1] if len(call.args) > 1 else None)
        safe = {"yaml.SafeLoader", "yaml.CSafeLoader"}
        own = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and node.bases and all(full_name(b) in safe for b in node.bases)
        }
        return None if loader is not None and full_name(loader) in safe | own else "give it yaml.SafeLoader"
    return None


# The project


@pytest.fixture(scope="module")
def project():
    return read_project(ROOT)


def assert_none(problems):
    problems = list(problems)
    assert not problems, "\n" + "\n".join(problems)


def test_imports_follow_the_direction_of_the_rooms(project):
    assert_none(wrong_directions(project))


def test_no_module_imports_itself_by_way_of_others(project):
    assert_none(import_cycles(project))


def test_every_imported_name_is_named(project):
    assert_none(star_imports(project))


def test_no_file_is_longer_than_its_budget(project):
    assert_none(long_files(project))


def test_no_function_is_longer_than_its_budget(project):
    assert_none(long_functions(project))


def test_core_and_extras_stay_within_their_budgets(project):
    assert_none(large_rooms(project))


def test_importing_a_module_does_no_work(project):
    assert_none(work_at_import(project))


def test_a_config_is_read_before_torch_is_loaded(project):
    assert_none(heavy_imports_before_the_config_is_read(project))


def test_optional_packages_are_imported_where_they_are_used(project):
    assert_none(optional_packages_imported_early(project))


def test_no_file_that_is_loaded_can_run_code(project):
    assert_none(unsafe_loads(project))


# The checkers: each finds its fault, at its line, and leaves the nearest innocent case alone


def lines_of(count):
    return "x = 1\n" * count


def function_of(count, name="f", indent=""):
    return f"{indent}def {name}(self):\n" + f"{indent}    self.x = 1\n" * (count - 1)


FAULTS = [
    (wrong_directions, {"utils/a.py": "\nimport logger"}, "utils/a.py:2"),
    (wrong_directions, {"utils/a.py": "def f():\n    from logger.b import c"}, "utils/a.py:2"),
    (wrong_directions, {"logger/a.py": "from base import BaseModel"}, "logger/a.py:1"),
    (wrong_directions, {"parse_config.py": "import base"}, "parse_config.py:1"),
    (wrong_directions, {"base/a.py": "import parse_config"}, "base/a.py:1"),
    (wrong_directions, {"trainer/a.py": "from model.metric import accuracy"}, "trainer/a.py:1"),
    (wrong_directions, {"model/a.py": "if TYPE_CHECKING:\n    import data_loader"}, "model/a.py:2"),
    (wrong_directions, {"data_loader/a.py": "import train"}, "data_loader/a.py:1"),
    (wrong_directions, {"test.py": "import train"}, "test.py:1"),
    (wrong_directions, {"tune.py": "import predict"}, "tune.py:1"),
    (wrong_directions, {"train.py": "def f():\n    import extras.pipeline"}, "train.py:2"),
    (wrong_directions, {"extras/a.py": "import train"}, "extras/a.py:1"),
    (wrong_directions, {"utils/a.py": "from tests import tools"}, "utils/a.py:1"),
    (wrong_directions, {"my_script.py": "import another", "another.py": ""}, "my_script.py:1"),
    (star_imports, {"utils/__init__.py": "from .util import *"}, "utils/__init__.py:1"),
    (import_cycles, {"utils/a.py": "import utils.b", "utils/b.py": "\nfrom . import a"}, "utils/b.py:2"),
    (import_cycles, {"base/__init__.py": "from .a import A", "base/a.py": "from base import B"}, "base/a.py:1"),
    (import_cycles, {"base/__init__.py": "import base.a", "base/a.py": "from . import B"}, "base/a.py:1"),
    (long_files, {"model/a.py": lines_of(251)}, "model/a.py:1"),
    (long_functions, {"train.py": "\n" + function_of(41)}, "train.py:2"),
    (long_functions, {"utils/a.py": "class A:\n" + function_of(41, indent="  ")}, "utils/a.py:2"),
    (
        long_functions,
        {"trainer/trainer.py": "class Trainer:\n" + function_of(26, "_train_epoch", "  ")},
        "trainer/trainer.py:2",
    ),
    (large_rooms, {f"utils/a{i}.py": lines_of(250) for i in range(13)}, "utils/a0.py:1 (250)"),
    (large_rooms, {f"extras/a{i}.py": lines_of(250) for i in range(5)}, "extras/a0.py:1 (250)"),
    (work_at_import, {"utils/a.py": "import sys\nsys.path.append('x')"}, "utils/a.py:2"),
    (work_at_import, {"utils/a.py": "x = [open(p) for p in ('a', 'b')]"}, "utils/a.py:1"),
    (work_at_import, {"utils/a.py": "x = re.compile(read())"}, "utils/a.py:1"),
    (work_at_import, {"utils/a.py": "x = read().split()"}, "utils/a.py:1"),
    (work_at_import, {"utils/a.py": "x: int = 1 + input()"}, "utils/a.py:1"),
    (work_at_import, {"model/a.py": "class A:\n    x = torch.zeros(3)"}, "model/a.py:2"),
    (work_at_import, {"train.py": "if x:\n    y = 1"}, "train.py:1"),
    (work_at_import, {"train.py": "for x in y:\n    z = x"}, "train.py:1"),
    (work_at_import, {"train.py": "try:\n    main()\nexcept E:\n    pass"}, "train.py:1"),
    (work_at_import, {"train.py": "try:\n    import a\nexcept ImportError:\n    main()"}, "train.py:4"),
    (heavy_imports_before_the_config_is_read, {"parse_config.py": "import torch.nn as nn"}, "parse_config.py:1"),
    (heavy_imports_before_the_config_is_read, {"logger/a.py": "class A:\n    import tqdm"}, "logger/a.py:2"),
    (
        heavy_imports_before_the_config_is_read,
        {"train.py": "\nfrom utils.a import x", "utils/a.py": "from .b import y", "utils/b.py": "\nimport yaml"},
        "utils/b.py:2: loads yaml at import (by way of train.py:2 → utils/a.py:1)",
    ),
    (
        heavy_imports_before_the_config_is_read,
        {"test.py": "import base.a", "base/__init__.py": "import torch", "base/a.py": ""},
        "base/__init__.py:1",
    ),
    (optional_packages_imported_early, {"model/a.py": "from torchvision import ops"}, "model/a.py:1"),
    (optional_packages_imported_early, {"base/a.py": "from torch.utils import tensorboard"}, "base/a.py:1"),
    (optional_packages_imported_early, {"base/a.py": "import torch._dynamo.config"}, "base/a.py:1"),
    (optional_packages_imported_early, {"base/a.py": "try:\n    import wandb\nexcept E:\n    pass"}, "base/a.py:2"),
    (unsafe_loads, {"benchmarks/a.py": "import torch\ntorch.load(p)"}, "benchmarks/a.py:2"),
    (unsafe_loads, {"utils/a.py": "import torch\ntorch.load(p, weights_only=False)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "from torch import load\nload(p, **options)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "import torch as t\nt.load(p, weights_only=x)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "def f():\n    import pickle\n    pickle.load(p)"}, "utils/a.py:3"),
    (unsafe_loads, {"utils/a.py": "from pickle import Unpickler as U\nU(p)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "import numpy as np\nnp.load(p, allow_pickle=True)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "import yaml\nyaml.load(p)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "import yaml\nyaml.load(p, Loader=yaml.FullLoader)"}, "utils/a.py:2"),
    (unsafe_loads, {"utils/a.py": "import yaml\nclass L(yaml.Loader): pass\nyaml.load(p, L)"}, "utils/a.py:3"),
]


@pytest.mark.parametrize(("checker", "texts", "place"), FAULTS, ids=[checker.__name__ for checker, _, _ in FAULTS])
def test_each_checker_finds_its_fault(checker, texts, place):
    problems = list(checker(Project(texts)))
    assert len(problems) == 1, problems
    assert place in problems[0]


INNOCENT = """
=== train.py
from parse_config import ConfigParser
def main():
    import torch
    import torchvision
    from trainer import Trainer
if __name__ == "__main__":
    main()
=== tune.py
def f():
    import test
    from train import main
=== export.py
from predict import load_model
=== predict.py
import importlib
def load_model():
    importlib.import_module("extras.pipeline")
=== parse_config.py
import utils
from logger.a import b
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
=== base/__init__.py
from .base_model import BaseModel
__all__ = ["BaseModel"]
=== base/base_model.py
import torch
from base import other
=== base/other.py
def f():
    from base import BaseModel
=== extras/__init__.py
=== extras/a.py
from extras import b
from trainer import Trainer
=== extras/b.py
=== logger/a.py
from utils.values import P
=== utils/__init__.py
def __getattr__(name):
    from .heavy import x
=== utils/values.py
from __future__ import annotations
try:
    import a
except ImportError:
    a = None
ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger(__name__)
WORDS = "a b".split()
later = lambda: open("a")
class Key(NamedTuple):
    name: str
    type: type = int
KEYS = [Key("a"), Key("b", str)]
BY_NAME = {key.name: key for key in KEYS}
P = namedtuple("P", "x")
p = P(1)
=== utils/heavy.py
import torch
import torch.utils.data
=== utils/load.py
import torch
def f():
    import yaml
    class L(yaml.SafeLoader):
        pass
    torch.load(p, weights_only=True)
    json.load(p)
    yaml.load(p, Loader=L)
    yaml.load(p, yaml.CSafeLoader)
    yaml.safe_load(p)
=== benchmarks/b.py
import train, extras.a
from utils import *
main()
"""


def innocent_project():
    texts = dict(part.split("\n", 1) for part in INNOCENT.split("=== ")[1:])
    loop, function = function_of(LOOP_LINES, "_train_epoch", "  "), function_of(FUNCTION_LINES, "g", "  ")
    texts["trainer/trainer.py"] = "class Trainer:\n" + loop + function
    texts["model/long.py"] = '"""A docstring.\n\nMore of it.\n"""\n# comment\n\n' + lines_of(FILE_LINES)
    texts["benchmarks/long.py"] = function_of(FILE_LINES + 1)
    return Project(texts)


@pytest.mark.parametrize(
    "checker", dict.fromkeys(checker for checker, _, _ in FAULTS), ids=lambda checker: checker.__name__
)
def test_no_checker_finds_a_fault_in_an_innocent_project(checker):
    assert_none(checker(innocent_project()))


def test_a_code_line_is_not_blank_nor_comment_nor_docstring():
    text = '''"""One.

Two."""
# three

def f():  # code
    """Not code."""
    """A second string is code,

    of three lines, one blank."""
    return [
        1,
        # not code

    ]

class A: "a docstring behind code"
'''
    assert sorted(code_lines(Source("a.py", text))) == [6, 8, 10, 11, 12, 15, 17]


def test_a_project_without_any_room_has_no_faults(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("import torch\ntorch.load(1)\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.py").write_text("not python")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "env" / "a.py").write_text("not python")
    for checker, _, _ in FAULTS:
        assert_none(checker(read_project(tmp_path)))
