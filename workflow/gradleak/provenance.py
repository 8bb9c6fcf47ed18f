"""Code hashes and versions: what an artifact was made from.

Snakemake sees a change of a rule's script, not of the package the script imports. Each rule
therefore carries the hash of the modules it runs, taken over their syntax trees, so that a
change of code reruns the rule and its descendants while a comment or a docstring reruns nothing.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import json
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = "gradleak"
ROOT = Path(__file__).resolve().parent
LIBRARIES = (
    "numpy",
    "scipy",
    "pillow",
    "scikit-image",
    "scikit-learn",
    "safetensors",
    "torch",
)
# Their versions too can change what costly rules write.
MORE = ("cma", "pandas", "torchvision")
# Sources, older ones too, above which what is kept of them begins anew.
MOST_KEPT = 5000


@cache
def module_path(module: str) -> Path | None:
    """Path of a module of this package, or None where `module` is something else."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    base = ROOT.joinpath(*parts[1:])
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


def _that_runs(tree: ast.Module) -> ast.Module:
    """A module without docstrings and what only type checkers read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:]
    return tree


class _Sources:
    """Digests and imports of sources by their content, kept where Python keeps compiled ones.

    Parsing all modules takes longer than all else that Snakemake does before its first job, and
    each job that a cluster runs would do it again.
    """

    def __init__(self, folder: Path) -> None:
        version = ".".join(map(str, sys.version_info[:3]))
        self._file = folder / f"provenance-{version}.json"
        # Another way to digest gives other keys.
        self._way = Path(__file__).read_bytes()
        self._known: dict[str, list[Any]] | None = None

    def read(self, path: Path) -> tuple[str, list[str]]:
        """Digest of a module's syntax tree, and all names that it imports."""
        if self._known is None:
            self._known = self._load()
        content = path.read_bytes()
        key = hashlib.sha256(self._way + content).hexdigest()
        if key not in self._known:
            self._known[key] = list(_digest_and_names(content.decode("utf-8")))
            atexit.unregister(self._keep)
            atexit.register(self._keep)
        digest, names = self._known[key]
        return digest, names

    def _load(self) -> dict[str, list[Any]]:
        try:
            found: dict[str, list[Any]] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if len(found) < MOST_KEPT else {}

    def _keep(self) -> None:
        """Write what was read; where that cannot be, the next start takes longer."""
        temporary = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(exist_ok=True)
            temporary.write_text(json.dumps(self._known), encoding="utf-8")
            temporary.replace(self._file)
        except OSError:
            with suppress(OSError):
                temporary.unlink()


def _digest_and_names(source: str) -> tuple[str, list[str]]:
    tree = _that_runs(ast.parse(source))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    own = sorted(name for name in names if name.split(".")[0] == PACKAGE)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), own


_SOURCES = _Sources(ROOT / "__pycache__")


@cache
def _digest_and_imports(path: Path) -> tuple[str, frozenset[str]]:
    digest, names = _SOURCES.read(path)
    return digest, frozenset(name for name in names if module_path(name) is not None)


@cache
def dependencies(module: str) -> tuple[str, ...]:
    """All modules of this package that `module` imports, itself and the indirect ones included.

    Imports within functions count. A module's parent packages count too, since Python runs them.
    """
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        path = module_path(name)
        if name in seen or path is None:
            continue
        seen.add(name)
        if "." in name:
            todo.append(name.rpartition(".")[0])
        todo.extend(_digest_and_imports(path)[1])
    return tuple(sorted(seen))


@cache
def code_hash(*modules: str) -> str:
    """Hash (16 hex digits) of the code that `modules` run, comments and docstrings left out.

    Raises
    ------
    ValueError
        If a name is not a module of this package.
    """
    digest = hashlib.sha256()
    names: set[str] = set()
    for module in modules:
        if module_path(module) is None:
            raise ValueError(f"{module} is not a module of {PACKAGE}.")
        names.update(dependencies(module))
    for name in sorted(names):
        path = module_path(name)
        assert path is not None
        digest.update(f"{name}:{_digest_and_imports(path)[0]};".encode())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of the libraries that numbers depend on."""
    return {library: _version(library) for library in LIBRARIES}


def software() -> dict[str, str]:
    """What equal bytes are promised under: versions of Python (major, minor) and the libraries."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **versions(), **{library: _version(library) for library in MORE}}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


def record(settings: Any, code: str, **more: Any) -> dict[str, Any]:
    """Provenance entry for an artifact's metadata: settings of its case, code hash, versions."""
    return {"settings": settings, "code": code, "versions": versions(), **more}
