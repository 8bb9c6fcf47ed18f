"""results/provenance.json: the origin of every figure, table and claim, in one file.

The chain behind a file is its sidecar, those of its inputs, and so on down to the sources.
"""

import hashlib
import json
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gradleak.config.schema import Config
from gradleak.data import arrays, catalogue, terms
from gradleak.errors import ArtifactError
from gradleak.runtime.job_records import checksum, commit, path_of
from gradleak.runtime.provenance import FOLDERS, TREE, code_hash, versions

FORMAT = 1
MOST_BYTES = 16 * 2**20  # larger files are not read again: the checksum in their sidecar is trusted
# Parts of a rule besides the package.
SOURCES = (
    "Snakefile", "workflow/Snakefile", "workflow/rules/*.smk", "workflow/scripts/*.py",
    "papers/**/*.yaml",
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Locations of files, by the beginnings of their paths."""

    data_root: str  # folder of the data sets
    made: tuple[str, ...]  # of files that rules make, so that a sidecar is expected
    pictured: tuple[str, ...]  # of files that hold images: originals, reconstructions, generators

    def dataset(self, path: str) -> tuple[str, str] | None:
        """Data set and split whose arrays `path` holds; None for another file."""
        place = Path(path)
        name, _, split = place.stem.rpartition("-")
        known = catalogue.CATALOGUE.get(name)
        if place.parent != Path(self.data_root) or place.suffix != ".safetensors":
            return None
        return (name, split) if known is not None and split in known.splits else None


Sidecar = Mapping[str, Any] | None
Graph = Mapping[str, Sidecar]


def sidecar(path: str) -> dict[str, Any] | None:
    """Read the sidecar of an artifact; None without one, `ArtifactError` if it is damaged."""
    place = path_of(path)
    if not place.is_file():
        return None
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        if found["artifact"] != path:
            return None  # a file of that name in another folder
        return {**found, "input": [str(entry) for entry in found["input"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{place} is damaged ({type(error).__name__}: {error}); delete it and {path}, and ask "
            "Snakemake for that again."
        ) from error


def graph(tops: Iterable[str], read: Callable[[str], Sidecar] = sidecar) -> dict[str, Sidecar]:
    """Every file behind `tops`, themselves included, with what `read` gives for it."""
    found: dict[str, Sidecar] = {}
    todo = list(tops)
    while todo:
        path = todo.pop()
        if path not in found:
            found[path] = read(path)
            todo.extend((found[path] or {}).get("input", ()))
    return found


def behind(tops: Iterable[str], files: Graph) -> set[str]:
    """Files behind `tops`, themselves included, among those of a `graph`."""
    return set(graph(tops, files.__getitem__))


def datasets(paths: Iterable[str], layout: Layout) -> list[str]:
    """Ids of the data sets whose arrays are among `paths`, sorted."""
    return sorted({pair[0] for path in paths if (pair := layout.dataset(path))})


def pictures_of(top: str, files: Graph, layout: Layout) -> list[str] | None:
    """Ids of the data sets whose images a figure may show: those behind images among its inputs.

    None if unknown: a sidecar is missing, or images come from no known data set.
    """
    own = files[top]
    if own is None:
        return None
    found: set[str] = set()
    for path in own["input"]:
        if not path.startswith(layout.pictured) and layout.dataset(path) is None:
            continue
        below = behind([path], files)
        sources = datasets(below, layout)
        if not sources or unrecorded(below, files, layout):
            return None
        found.update(sources)
    return sorted(found)


def unrecorded(paths: Iterable[str], files: Graph, layout: Layout) -> list[str]:
    """Files made by rules that have no sidecar: older ones, and some of a shared cache."""
    made = [path for path in paths if files[path] is None and path.startswith(layout.made)]
    return sorted(path for path in made if layout.dataset(path) is None)


def altered(path: str, recorded: str) -> bool | None:
    """Return whether a file differs from its sidecar; None for a folder, a gone or a large file."""
    place = Path(path)
    if not place.is_file() or place.stat().st_size > MOST_BYTES:
        return None
    return checksum(place) != recorded


def dataset_entry(path: str, layout: Layout, own: Sidecar) -> dict[str, Any]:
    """Entry of the arrays of a data set; those put there by hand are read for their checksum."""
    pair = layout.dataset(path)
    assert pair is not None
    beside = arrays.sidecar(path)
    digest = own["sha256"] if own else None
    if digest is None and beside.is_file():
        digest = beside.read_text(encoding="utf-8").split()[0]
    elif digest is None and Path(path).is_file():
        digest = checksum(path)
    return {
        "dataset": pair[0],
        "split": pair[1],
        "path": path,
        "by_hand": arrays.is_by_hand(path),
        "made_by": own["rule"] if own else None,
        "sha256": digest,
        "shareable": terms.of(pair[0]).shareable,
        "terms": terms.of(pair[0]).reason,
    }


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
    names = (
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for package, folder in FOLDERS.items()
        for path in (folder / package).rglob("*.py")
    )
    return code_hash(*sorted(names))


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
        made = path.startswith(layout.made) if data is None else not data["by_hand"]
        digest = data["sha256"] if data else None
        if data is None and not made and Path(path).exists():
            digest = checksum(path)
        return {"made": made, "recorded": False, "sha256": digest, "input": []}
    return {
        "made": True,
        "recorded": True,
        "altered": altered(path, own["sha256"]),
        "code": own["params"].get("code"),
        "gpu": own.get("gpu"),
        **{key: own[key] for key in COPIED},
    }


def _result(path: str, files: Graph, layout: Layout) -> dict[str, Any]:
    """Entry of one figure or table: its current checksum, and its chain in short."""
    below, own, digest = behind([path], files), files[path], checksum(path)
    return {
        "path": path,
        "sha256": digest,
        "altered": digest != own["sha256"] if own else None,
        "rules": sorted({str(found["rule"]) for key in below if (found := files[key])}),
        "datasets": datasets(below, layout),
        "pictures_of": pictures_of(path, files, layout),
        "unrecorded": unrecorded(below, files, layout),
    }


def make(
    results: Iterable[str], config: Config, layout: Layout, *, settings: dict[str, str], lock: str
) -> dict[str, Any]:
    """Build the contents of results/provenance.json.

    `results` are figures, tables and claims; `settings` are paths of config.yaml and of the files
    that it includes, by their names there; `lock` is the path of requirements.lock.
    """
    tops = sorted(results)
    files = graph(tops)
    held = [path for path in sorted(files) if layout.dataset(path) is not None]
    data = {path: dataset_entry(path, layout, files[path]) for path in held}
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
        "files": {n: checksum(p) for n, p in {**settings, "requirements.lock": lock}.items()},
        "config": config.model_dump(mode="json"),
        "amounts": dict(config.scales),
        "seeds": seeds(config),
        "versions": {"python": platform.python_version(), **versions()},
        "packages": installed(Path(lock).read_text(encoding="utf-8")),
        "datasets": list(data.values()),
        "commits": dict(Counter(str(own["commit"]) for own in files.values() if own)),
        "results": [_result(path, files, layout) for path in tops],
        "artifacts": {p: _artifact(p, own, layout, data.get(p)) for p, own in files.items()},
    }


def of_rule(results: Iterable[str], given: Any, params: Any) -> dict[str, Any]:
    """`make` with the inputs and parameters of one of the rules that tell where results come from.

    `given` has ``config``, ``included`` and ``lock``; `params` has the names of the ``included``,
    the ``resolved`` config as JSON, and the fields of a `Layout`.
    """
    config = Config.model_validate_json(params.resolved)
    layout = Layout(params.data_root, tuple(params.made), tuple(params.pictured))
    included = dict(zip(params.included, given.included, strict=True))
    settings = {"config.yaml": given.config, **included}
    return make(map(str, results), config, layout, settings=settings, lock=given.lock)
