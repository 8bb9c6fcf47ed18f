"""Code hashes and versions that an artifact depends on.

Snakemake does not see changes of the package that a script imports. Each rule therefore carries a
hash of its script and of the modules it runs (`gradleak.runtime.code_digest`): a change of code
reruns the rule and its descendants; a comment, a reworded message, or a moved module does not.
"""

import atexit
import hashlib
import json
import os
import platform
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gradleak import _HOMES
from gradleak.runtime import code_digest
from gradleak.runtime.code_digest import Imported, Source

PACKAGE = "gradleak"
ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT.parents[1]  # root of the source tree, which a wheel does not have
# Where Python finds the packages of this project.
FOLDERS = dict.fromkeys(("gradleak", "gradleak_audit"), ROOT.parent)
FOLDERS |= dict.fromkeys(("papers", "benchmarks"), TREE)
# Modules for messages, start and end of jobs, and their cost; no number depends on them. The
# package itself only re-exports.
TOLD = "signals", "progress", "provenance", "job", "job_records"
TELLING = frozenset([f"{PACKAGE}.errors", *(f"{PACKAGE}.runtime.{name}" for name in TOLD)])
# Entries of PYTHONPATH for processes that are to import the same packages.
PYTHON_PATH = (str(ROOT.parent), str(TREE))
# Digest of a module without code.
EMPTY = code_digest.digest("").digest
LIBRARIES = ("numpy", "scipy", "pillow", "scikit-image", "scikit-learn", "safetensors", "torch")
# Other libraries whose versions can change the output of costly rules.
MORE = ("cma", "pandas", "torchvision")
MOST_KEPT = 5000  # number of sources, older ones included, above which the cache starts anew


@cache
def module_path(module: str) -> Path | None:
    """Path of a module of this project; None for any other module."""
    parts = module.split(".")
    if parts[0] not in FOLDERS:
        return None
    base = FOLDERS[parts[0]].joinpath(*parts)
    paths = (base / "__init__.py", base.with_suffix(".py"))
    return next((path for path in paths if path.is_file()), None)


class _Sources:
    """Digests of sources by content, cached where Python keeps compiled files.

    Parsing all modules takes longer than all else that Snakemake does before its first job.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"provenance-{platform.python_version()}.json"
        # Another digest algorithm gives other keys.
        self._way = Path(code_digest.__file__).read_bytes()

    def read(self, path: Path) -> Source:
        """Digest of a module, and the names of this package that it uses."""
        content = path.read_bytes()
        key = hashlib.sha256(self._way + content).hexdigest()
        if key not in self._known:
            self._known[key] = list(code_digest.digest(content.decode("utf-8")))
            atexit.unregister(self._keep)
            atexit.register(self._keep)
        digest, imports = self._known[key]
        return Source(digest, tuple(Imported(*entry) for entry in imports))

    @cached_property
    def _known(self) -> dict[str, list[Any]]:
        try:
            found: dict[str, list[Any]] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if len(found) < MOST_KEPT else {}

    def _keep(self) -> None:
        temporary = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(exist_ok=True)
            temporary.write_text(json.dumps(self._known), encoding="utf-8")
            temporary.replace(self._file)
        except OSError:
            with suppress(OSError):
                temporary.unlink()


_source = cache(_Sources(ROOT / "__pycache__").read)


def _module_of(entry: Imported) -> tuple[str, str]:
    """Module and original name of an imported name; the module itself if it is one."""
    inner = f"{entry.module}.{entry.name}"
    return (inner, "") if entry.name and module_path(inner) else (entry.module, entry.name)


@cache
def _digest(path: Path) -> str:
    """Digest of one file: its own code, and the module behind each imported name."""
    source = _source(path)
    parts = [source.digest]
    for entry in source.imports:
        module, name = _module_of(entry)
        # Modules that only print messages may be reworded.
        place = None if module in TELLING else module_path(module)
        parts.append(f"{name}:{_source(place).digest if place else ''}")
    return hashlib.sha256(";".join(parts).encode()).hexdigest()


@cache
def dependencies(module: str) -> tuple[str, ...]:
    """All modules of this project that `module` runs, itself and indirect ones included.

    Imports within functions count, and a module's parent packages, since Python runs them. A module
    that is only imported, or used in messages alone, does not count. One that uses the package
    itself may call any of its functions, which are imported on first use.
    """
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        path = module_path(name)
        if name in seen or path is None:
            continue
        seen.add(name)
        todo.append(name.rpartition(".")[0])
        imports = [_module_of(entry) for entry in _source(path).imports]
        todo.extend(inner for inner, _ in imports)
        if (PACKAGE, "") in imports:
            todo.extend(_HOMES.values())
    return tuple(sorted(seen))


@cache
def code_hash(*modules: str, script: Path | None = None) -> str:
    """Hash (16 hex digits) of code, ignoring messages and the names and places of modules.

    It is taken over the sorted digests of everything that runs: `modules` of this project
    (ValueError for any other) with their dependencies, and a `script` without them.
    """
    for module in modules:
        if module_path(module) is None:
            raise ValueError(f"{module} is not a module of this project.")
    names = {name for module in modules for name in dependencies(module)} - TELLING - {PACKAGE}
    paths = [*filter(None, map(module_path, names)), *([script] if script else [])]
    digests = sorted(_digest(path) for path in paths if _source(path).digest != EMPTY)
    return hashlib.sha256(";".join(digests).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of the libraries that numbers depend on."""
    return {library: _version(library) for library in LIBRARIES}


def software() -> dict[str, str]:
    """Versions under which equal bytes are promised: Python (major, minor) and the libraries."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **versions(), **{library: _version(library) for library in MORE}}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"
