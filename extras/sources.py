"""What a project's Python files define, take from one another, and use that is gone; read with ast, never imported."""

import ast
import builtins
import hashlib
import re

DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORT = (ast.Import, ast.ImportFrom)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
LOOK_FOR = (  # pattern in a line, what to know about it
    (r"\.cuda\(|\.to\([\"']cuda", "stops on a machine without CUDA; write .to(device)."),
    (r"\bpretrained\s*=\s*True", "is weights='DEFAULT' in today's torchvision."),
    (r"\bnp\.(float|int|bool|object|complex|str)\b", "is gone from numpy; write the name without np."),
    (r"\bnp\.(Inf|Infinity|infty|NaN|NAN)\b", "is gone from numpy 2; write np.inf, np.nan."),
    (r"_data(\.(total|counts|average)\[|\[\w+\]\.values\[)", "stops under pandas 3: take MetricTracker from utils."),
    (r"\btensorboardX\b", "is not needed: the writer is torch.utils.tensorboard's."),
    (r"\btorch\.cuda\.amp\b", "is torch.amp now, with the device's type as its first argument."),
    (r"\blogger\.warn\(", "is gone from Python 3.13; write logger.warning()."),
    (r"\btorchtext\b", "is not built for today's torch."),
    (r"def (split_\w+|_split_sampler)|\b(random_|train_test_)split\(", "is a split of your own: see that it is fixed."),
)  # fmt: skip


class Source:
    """A file: its text, its tree, and {name: the top-level statements that bind it}, '*' being a star import."""

    def __init__(self, root, path):
        self.path, self.is_package = path, path.endswith("__init__.py")
        self.module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.text = (root / path).read_text(encoding="utf-8-sig", errors="replace")
        self.tree = ast.parse(self.text, path)
        self.bound: dict[str, list[ast.stmt]] = {}
        for node in self.tree.body:
            for name in bound(node):
                self.bound.setdefault(name, []).append(node)

    def origin(self, node):
        """The absolute name of the module that an ImportFrom takes from."""
        package = self.module.split(".") if self.is_package else self.module.split(".")[:-1]
        above = package[: len(package) - node.level + 1] if node.level else []
        return ".".join([*above, *filter(None, [node.module])])

    def taken(self):
        """(module, name) of all that it imports by name, anywhere in it; '*' for a star."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom))
        return [(self.origin(node), alias.name) for node in nodes for alias in node.names]

    def definition(self, name):
        return next((node for node in self.bound.get(name, ()) if isinstance(node, DEFINITION)), None)

    def doubtful(self):
        """(line number, what to know) of lines that won't do, or not everywhere."""
        for number, line in enumerate(self.text.split("\n"), 1):
            for pattern, advice in LOOK_FOR:
                if self.path.startswith("base/") and "split" in pattern:
                    continue
                if found := re.search(pattern, line.partition("#")[0]):
                    yield number, f"`{found.group().strip(' (')}` {advice}"

    def on_self(self, names):
        """Attributes of self, of the given names, in classes called a Trainer's that don't set them; by line."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and any("Trainer" in ast.unparse(base) for base in node.bases):
                for inner in ast.walk(node):
                    if is_on_self(inner) and inner.attr in names - attributes(node):
                        found[inner.lineno, inner.value.end_col_offset] = inner
        return [found[place] for place in sorted(found)]

    def excerpt(self, wanted, core):
        """A module of the statements that bind these names, with all that they need; what the core's file defines, too,
        is imported from there."""
        chosen: list[ast.stmt] = []
        borrowed, waiting = set(), list(wanted)
        while waiting:
            name = waiting.pop()
            if name not in wanted and name in core.bound and self.definition(name) is not None:
                borrowed.add(name)
                continue
            new = [node for node in self.bound.get(name, ()) if node not in chosen]
            chosen += new
            waiting += [used for node in new for used in names(node)]
        known = {name for node in chosen for inner in ast.walk(node) for name in bound(inner)} | set(dir(builtins))
        if set().union(*map(names, chosen)) - known - borrowed:
            chosen += [node for node in self.bound.get("*", ()) if node not in chosen]
        chosen.sort(key=lambda node: (getattr(node, "module", "") != "__future__", node.lineno))
        lines, parts = self.text.split("\n"), []
        for node in chosen:
            first = min([node.lineno, *(mark.lineno for mark in getattr(node, "decorator_list", ()))])
            parts.append("\n".join(lines[first - 1 : node.end_lineno]))
        at = sum(part.startswith("from __future__") for part in parts)
        parts[at:at] = [f"from {self.module} import {', '.join(sorted(borrowed))}"] if borrowed else []
        return "\n\n".join([f'"""What only {self.path} of the fork had."""', *parts, ""])

    def differences(self, core, known):
        """(statement, what) of definitions that the core has, too, and that no version of the template had so."""
        for node in (node for node in self.tree.body if isinstance(node, DEFINITION)):
            ours, own = core.definition(node.name), own_functions(node, known)
            if ours is None or not own:
                continue
            if not isinstance(node, ast.ClassDef):
                yield node, f"{node.name} was the fork's own; now the core's."
                continue
            have = attributes(ours) if isinstance(ours, ast.ClassDef) else set()
            if lacking := [name for name in own if name not in have]:
                yield node, f"{node.name} had {', '.join(lacking)}, which the core's has not."
            if changed := [name for name in own if name in have]:
                yield node, f"{node.name}: {', '.join(changed)} differed from the template's; now the core's."

    def calls(self, name):
        """Calls of a function by this bare name."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return [node for node in nodes if isinstance(node.func, ast.Name) and node.func.id == name]


class Sources(dict):
    """{dotted name: Source} of a project's files; `unread`: {path: why} of those that this Python can't parse."""

    def __init__(self, root, paths):
        super().__init__()
        self.unread = {}
        for path in paths:
            try:
                source = Source(root, path)
                self[source.module] = source
            except (SyntaxError, ValueError) as error:
                self.unread[path] = error

    def exports(self, module, seen=()):
        """{name: the module that binds it} of what can be imported from a module, through its stars too."""
        found, source = {}, self.get(module)
        if source is None or module in seen:
            return found
        for node in source.bound.get("*", ()):
            public = self.exports(source.origin(node), (*seen, module)).items()
            found |= {name: by for name, by in public if not name.startswith("_")}
        return found | {name: module for name in source.bound if name != "*"}

    def definition(self, module, name):
        return self[module].definition(name) if module in self else None

    def parser_reads_arguments(self):
        """Whether ConfigParser(args, options) reads the command line, as in 2019-04; later from_args does."""
        for module in ("parse_config", "utils.parse_config"):
            parser = self.definition(module, "ConfigParser")
            for node in parser.body if parser is not None else ():
                if getattr(node, "name", "") == "__init__":
                    return [argument.arg for argument in node.args.args][1:2] == ["args"]
        return False


def bound(node):
    """The names that a statement binds, those in its branches too; '*' for a star import."""
    if isinstance(node, DEFINITION):
        return [node.name]
    if isinstance(node, IMPORT):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, COMPREHENSION):
        return []
    own = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
    return own + [name for child in ast.iter_child_nodes(node) for name in bound(child)]


def names(node):
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def is_on_self(node):
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def attributes(node):
    """Names that a class gives its instances: methods, class attributes, and what it sets on self."""
    found = {name for inner in node.body for name in bound(inner)}
    return found | {i.attr for i in ast.walk(node) if is_on_self(i) and isinstance(i.ctx, ast.Store)}


def own_functions(node, known):
    """Names of the functions of a definition, by their digests, that are not among the known ones."""
    functions = node.body if isinstance(node, ast.ClassDef) else [node]
    return [one.name for one in functions if isinstance(one, DEFINITION[:2]) and digest(one) not in known]


def digest(function):
    """Six digits that stand for a function but for its docstring, comments and layout, in every Python."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return hashlib.sha256((function.name + _shape(function.args) + _shape(body)).encode()).hexdigest()[:6]


def _shape(node):
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
        kept = (f"{name}={_shape(value)}" for name, value in fields if name not in ("ctx", "kind", "type_comment"))
        return f"{type(node).__name__}({','.join(kept)})"
    return f"[{','.join(map(_shape, node))}]" if isinstance(node, list) else repr(node)
