"""results/provenance.json: the origin of every figure, table and claim, in one file."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gradleak.config.schema import Config
from gradleak.reporting.provenance_chain import (
    Graph,
    Layout,
    altered,
    behind,
    dataset_entry,
    datasets,
    graph,
    pictures_of,
    unrecorded,
)
from gradleak.runtime.job_records import checksum, commit
from gradleak.runtime.provenance import FOLDERS, TREE, code_hash, versions

FORMAT = 1
# Parts of a rule besides the package.
SOURCES = (
    "Snakefile",
    "workflow/rules/*.smk",
    "workflow/scripts/*.py",
    "papers/**/*.yaml",
)


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
        try:
            own = version(name)
        except PackageNotFoundError:
            continue
        found[name] = {"version": own, "locked": own in pins}
    return found


def amounts(config: Config) -> dict[str, int]:
    """Every name of `scales` with its number at the scale of this run."""
    return dict(config.scales)


def seeds(section: BaseModel | Mapping[str, Any]) -> dict[str, int]:
    """Every `seed`, and every number of `seeds`, by its path in config.yaml."""
    return dict(_seeds(section, ""))


def _seeds(section: Any, where: str) -> Iterator[tuple[str, int]]:
    if isinstance(section, BaseModel):
        section = {key: getattr(section, key) for key in type(section).model_fields}
    if not isinstance(section, Mapping):
        return
    for key, value in section.items():
        path = f"{where}.{key}" if where else str(key)
        if key in ("seed", "seeds") and isinstance(value, int):
            yield path, value
        else:
            yield from _seeds(value, path)


def _artifact(
    path: str,
    own: Mapping[str, Any] | None,
    layout: Layout,
    data: Mapping[str, Any] | None,
) -> dict[str, Any]:
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
        "sha256": own["sha256"],
        "altered": altered(path, own["sha256"]),
        "rule": own["rule"],
        "code": own["params"].get("code"),
        "input": own["input"],
        "commit": own["commit"],
        "changed": own["changed"],
        "host": own["host"],
        "ended": own["ended"],
        "threads": own["threads"],
        "seconds": own["seconds"],
        "cpu_seconds": own["cpu_seconds"],
        "peak_mib": own["peak_mib"],
        "gpu": own.get("gpu"),
    }


def _result(path: str, files: Graph, layout: Layout) -> dict[str, Any]:
    """Entry of one figure or table: its current checksum, and its chain in short."""
    chain = behind(path, files)
    own = files[path]
    digest = checksum(path)
    return {
        "path": path,
        "sha256": digest,
        "altered": digest != own["sha256"] if own else None,
        "rules": sorted({str(found["rule"]) for key in chain if (found := files[key])}),
        "datasets": datasets(chain, layout),
        "pictures_of": pictures_of(path, files, layout),
        "unrecorded": unrecorded(chain, files, layout),
    }


def make(
    results: Iterable[str],
    config: Config,
    layout: Layout,
    *,
    settings: Mapping[str, str],
    lock: str,
) -> dict[str, Any]:
    """Build the contents of results/provenance.json.

    `results` are figures, tables and claims; `settings` are paths of config.yaml and of the files
    that it includes, by their names there; `lock` is the path of requirements.lock. All may lie in
    another folder than the results.
    """
    tops = sorted(results)
    files = graph(tops)
    recorded = [own for own in files.values() if own]
    data = {
        path: dataset_entry(path, layout, own)
        for path, own in sorted(files.items())
        if layout.dataset(path) is not None
    }
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
        "files": {
            name: checksum(path) for name, path in {**settings, "requirements.lock": lock}.items()
        },
        "config": config.model_dump(mode="json"),
        "amounts": amounts(config),
        "seeds": seeds(config),
        "versions": {"python": platform.python_version(), **versions()},
        "packages": installed(Path(lock).read_text(encoding="utf-8")),
        "datasets": list(data.values()),
        "commits": dict(Counter(str(own["commit"]) for own in recorded)),
        "results": [_result(path, files, layout) for path in tops],
        "artifacts": {
            path: _artifact(path, own, layout, data.get(path)) for path, own in files.items()
        },
    }
