"""What a project's Python files define, take from one another, and use that is gone; read with ast, never imported."""

import ast
import hashlib
import re
import symtable

from extras.tables import pairs

DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORT = (ast.Import, ast.ImportFrom)
ASSIGNMENT = (ast.Assign, ast.AnnAssign, ast.AugAssign)


class Source:
    """A file: its text, its tree, {name: the top-level statement that binds it}, and those that define one."""

    def __init__(self, root, path):
        self.path = path
        self.module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.text = (root / path).read_text(encoding="utf-8-sig", errors="replace")
        self.tree = ast.parse(self.text, path)
        self.bound = {name: node for node in self.tree.body for name in bound(node)}
        self.definitions = {name: node for name, node in self.bound.items() if isinstance(node, DEFINITION)}

    def taken(self):
        """(module, name) of all that it imports by name, anywhere in it; '*' for a star."""
        found, package = [], self.path.split("/")[:-1]
        for node in (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found += [(module, alias.name) for alias in node.names]
        return found

    def makes(self, name, known):
        """Whether a public name is of its own making: assigned, or defined as no version of the template did."""
        node = self.bound[name]
        return not name.startswith("_") and (isinstance(node, ASSIGNMENT) or bool(own_functions(node, known)))

    def doubtful(self, gone):
        """(line number, what to know) of lines that won't do, or not everywhere.

        gone: names that a Trainer does not inherit any more.
        """
        for number, line in enumerate(self.text.split("\n"), 1):
            for pattern, advice in pairs("look_for.txt"):
                if found := re.search(pattern, line.partition("#")[0]):
                    yield number, f"`{found.group().strip(' (')}` {advice}"
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and any("Trainer" in ast.unparse(base) for base in node.bases):
                missed = gone - attributes(node)
                for used in (inner for inner in ast.walk(node) if is_on_self(inner) and inner.attr in missed):
                    why = f"self.{used.attr} was BaseTrainer's, and no longer is there; set it in __init__."
                    yield used.lineno, why

    def without(self, core, wanted):
        """Its text, but with what the core's file defines, too, imported from there, and no imports of no use then."""
        rest = [node for node in self.tree.body if getattr(node, "name", None) not in core.bound]
        used = {"annotations", *wanted}.union(*(names(node) for node in rest))
        lines, parts, end = self.text.split("\n"), [], 0
        for node in self.tree.body:
            if node not in rest:
                parts.append(f"from {self.module} import {node.name}")
            elif not isinstance(node, IMPORT) or used.intersection(bound(node)) or not bound(node):  # a star
                parts += lines[min(end, node.lineno - 1) : node.end_lineno]
            end = node.end_lineno
        return "\n".join([f"# What of the fork's {self.path} the core does not have.", *parts, ""])

    def differences(self, core, known):
        """(line number, what) of definitions that the core has, too, and that no version of the template had so."""
        for name in (name for name in self.definitions if name in core.definitions):
            node, ours = self.definitions[name], core.definitions[name]
            have = attributes(ours) if isinstance(ours, ast.ClassDef) else {name}
            own = [one if one in have else f"{one} (the core's has none)" for one in own_functions(node, known)]
            if own:
                yield node.lineno, f"{name}: the fork had its own {', '.join(own)}; now it is the core's."
            if name == "BaseTrainer" and "model.to(self.device)" in self.text:
                yield node.lineno, "BaseTrainer moved the model to its device; now the script has to: model.to(device)."


def exports(sources, module, seen=()):
    """{name: the module that binds it} of what can be imported from one of the sources, through its stars too."""
    if module not in sources or module in seen:
        return {}
    stars = [other for other, name in sources[module].taken() if name == "*"]
    public = [item for other in stars for item in exports(sources, other, (*seen, module)).items() if item[0][0] != "_"]
    return dict(public) | dict.fromkeys(sources[module].bound, module)


def bound(node):
    """The names that a statement binds, in its branches too, but for those of a star import."""
    table = symtable.symtable(ast.unparse(node), "", "exec")
    return [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()]


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
