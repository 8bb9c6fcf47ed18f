"""Digests of source code that ignore comments, wording and the location of modules.

A digest is taken over a module's syntax tree. Left out are docstrings, code only for type checkers,
import statements, checks that an extra is installed, and text for people: arguments of raised
exceptions and of log calls, messages of assertions, and labels of progress bars. Names imported
from this package are identified by the code they come from, so moving or renaming a module changes
no digest.
"""

import ast
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

# Packages whose modules may move.
PACKAGES = ("gradleak", "gradleak_audit", "papers", "benchmarks")
LOGGERS = ("LOG", "log", "logger")
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
MODULE = "<module>"  # placeholder of a dotted module name in a string, as in registries


class Imported(NamedTuple):
    """One name that an import statement binds."""

    local: str  # name in this module
    module: str  # dotted name of the module after `from`, or of the module itself
    name: str  # imported name; empty for the module itself


class Source(NamedTuple):
    """Digest of one module, apart from what it imports from this package."""

    digest: str  # SHA-256 (hex) of the syntax tree
    imports: tuple[Imported, ...]  # of this package: those used, in order; those exported, sorted


def digest(source: str) -> Source:
    """Digest the text of a module."""
    tree = ast.parse(source)
    _leave_out_unread(tree)
    own, foreign = _imports(tree)
    exported = _exported(tree)
    words = _Words({entry.local for entry in own})
    text = f"{ast.dump(words.visit(tree))}{sorted(foreign)}"
    place = {name: number for number, name in enumerate(words.order)}
    kept = [entry for entry in own if entry.local in place or entry.local in exported]
    kept.sort(key=lambda e: (place.get(e.local, len(place)), e.local, e.name, e.module))
    return Source(hashlib.sha256(text.encode()).hexdigest(), tuple(kept))


def _leave_out_unread(tree: ast.Module) -> None:
    """Remove docstrings and code that only type checkers read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        match node.body:
            case [ast.Expr(value=ast.Constant()), *rest]:
                node.body = rest


def _imports(tree: ast.Module) -> tuple[list[Imported], set[str]]:
    """Names bound by imports of this package, each once, and all other imports as text."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = dict.fromkeys(entry for node in nodes for entry in _bound(node))
    own = [entry for entry in bound if entry.module.partition(".")[0] in PACKAGES]
    return own, {f"{e.module}:{e.name}:{e.local}" for e in bound.keys() - set(own)}


def _exported(tree: ast.Module) -> set[str]:
    """Names that a module re-exports: `import x as x`, and those in ``__all__``."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found |= set(ast.literal_eval(node.value))
    return found


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[Imported]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Imported(alias.asname or alias.name.partition(".")[0], alias.name, "")
    else:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            yield Imported(alias.asname or alias.name, module, alias.name)


class _Words(ast.NodeTransformer):
    """Remove imports and text, and replace imported names by numbers.

    `names` are imported from this package; `order` lists those used, in order of first use.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.order: list[str] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if getattr(node, "body", None) == []:  # left empty
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Leave out; imported names are handled apart."""

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Leave out the check that an extra is installed."""
        match node.value:
            case ast.Call(func=ast.Name(id="require_extra")):
                return None
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func  # the type, without arguments
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Keep only the iterable of progress calls, and only the presence of log calls."""
        match node.func:
            case ast.Name(id="progress" | "Progress"):
                return self.visit(node.args[0]) if node.args else ast.Constant(None)
            case ast.Attribute(value=ast.Name(id=name), attr=level):
                if name in LOGGERS and level in LEVELS:
                    return ast.Constant(None)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._names:
            if node.id not in self.order:
                self.order.append(node.id)
            node.id = f"<{self.order.index(node.id)}>"
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Leave out modules named in strings: registries name classes by module and class."""
        if isinstance(node.value, str) and node.value.startswith(tuple(f"{p}." for p in PACKAGES)):
            module, colon, name = node.value.partition(":")
            if all(part.isidentifier() for part in module.split(".")):
                node.value = f"{MODULE}{colon}{name}"
        return node
