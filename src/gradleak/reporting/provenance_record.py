"""results/provenance.json: the origin of every figure, table and claim, in one file."""

import hashlib
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gradleak.config.schema import Config
from gradleak.reporting import provenance_chain as chain
from gradleak.reporting.provenance_chain import Graph, Layout, Sidecar
from gradleak.runtime.job_records import checksum, commit
from gradleak.runtime.provenance import FOLDERS, TREE, code_hash, versions

FORMAT = 1
# Parts of a rule besides the package.
SOURCES = ("Snakefile", "workflow/rules/*.smk", "workflow/scripts/*.py", "papers/**/*.yaml")


def machine() -> dict[str, Any]:
    """Kind of machine, since digits may differ between kinds (docs/determinism.md)."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": name[1].strip() if name else platform.processor(),
        "cores": os.cpu_count(),
    }


def package_code() -> str:
    """Hash of all packages, comments and docstrings left out."""
    places = (
        path.relative_to(folder).with_suffix("")
        for package, folder in FOLDERS.items()
        for path in (folder / package).rglob("*.py")
    )
    names = (".".join(place.parts) for place in places)
    return code_hash(*sorted(name.removesuffix(".__init__") for name in names))


def digest_of(patterns: Iterable[str], folder: Path) -> str:
    """SHA-256 of names and contents of files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        digest.update(f"{path.relative_to(folder).as_posix()}:{checksum(path)};".encode())
    return digest.hexdigest()


def installed(lock: str) -> dict[str, dict[str, Any]]:
    """Installed version of each package of a lock, and whether the lock has it."""
    wanted: dict[str, set[str]] = {}
    for name, pin in re.findall(r"^([a-z0-9][\w.-]*)==([^\s;\\]+)", lock, re.MULTILINE):
        wanted.setdefault(name, set()).add(pin)
    found = {}
    for name, pins in wanted.items():
        with suppress(PackageNotFoundError):
            found[name] = {"version": version(name), "locked": version(name) in pins}
    return found


def seeds(section: BaseModel | Mapping[str, Any], where: str = "") -> dict[str, int]:
    """Every `seed`, and every number of `seeds`, by its path in config.yaml."""
    found: dict[str, int] = {}
    entries = section.items() if isinstance(section, Mapping) else section
    for key, value in entries:
        path = f"{where}.{key}" if where else str(key)
        if key in ("seed", "seeds") and isinstance(value, int):
            found[path] = value
        elif isinstance(value, BaseModel | Mapping):
            found |= seeds(value, path)
    return found


COPIED = (
    "sha256", "rule", "input", "commit", "changed", "host", "ended", "threads", "seconds",
    "cpu_seconds", "peak_mib",
)  # fmt: skip


def _artifact(path: str, own: Sidecar, layout: Layout, data: Sidecar) -> dict[str, Any]:
    """Entry of one file of the chain, from its sidecar and, for a data set, its entry `data`."""
    if own is None:
        made = layout.is_made(path) if data is None else not data["by_hand"]
        digest = data["sha256"] if data else None
        if data is None and not made and Path(path).exists():
            digest = checksum(path)
        return {"made": made, "recorded": False, "sha256": digest, "input": []}
    return {
        "made": True,
        "recorded": True,
        "altered": chain.altered(path, own["sha256"]),
        "code": own["params"].get("code"),
        "gpu": own.get("gpu"),
        **{key: own[key] for key in COPIED},
    }


def _result(path: str, files: Graph, layout: Layout) -> dict[str, Any]:
    """Entry of one figure or table: its current checksum, and its chain in short."""
    below = chain.behind(path, files)
    own = files[path]
    digest = checksum(path)
    return {
        "path": path,
        "sha256": digest,
        "altered": digest != own["sha256"] if own else None,
        "rules": sorted({str(found["rule"]) for key in below if (found := files[key])}),
        "datasets": chain.datasets(below, layout),
        "pictures_of": chain.pictures_of(path, files, layout),
        "unrecorded": chain.unrecorded(below, files, layout),
    }


def make(
    results: Iterable[str], config: Config, layout: Layout, *, settings: dict[str, str], lock: str
) -> dict[str, Any]:
    """Build the contents of results/provenance.json.

    `results` are figures, tables and claims; `settings` are paths of config.yaml and of the files
    that it includes, by their names there; `lock` is the path of requirements.lock.
    """
    tops = sorted(results)
    files = chain.graph(tops)
    recorded = [own for own in files.values() if own]
    sources = {**settings, "requirements.lock": lock}
    arrays = [path for path in sorted(files) if layout.dataset(path) is not None]
    data = {path: chain.dataset_entry(path, layout, files[path]) for path in arrays}
    return {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "machine": machine(),
        **commit(),
        "images": config.images,
        "scale": config.scale,
        "device": config.device,
        "code": package_code(),
        "workflow": digest_of(SOURCES, TREE),
        "files": {name: checksum(path) for name, path in sources.items()},
        "config": config.model_dump(mode="json"),
        "amounts": dict(config.scales),
        "seeds": seeds(config),
        "versions": {"python": platform.python_version(), **versions()},
        "packages": installed(Path(lock).read_text(encoding="utf-8")),
        "datasets": list(data.values()),
        "commits": dict(Counter(str(own["commit"]) for own in recorded)),
        "results": [_result(path, files, layout) for path in tops],
        "artifacts": {p: _artifact(p, own, layout, data.get(p)) for p, own in files.items()},
    }
