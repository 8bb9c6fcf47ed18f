"""Chain behind a file: its sidecar, those of its inputs, and so on down to the sources."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.data import arrays, catalogue, terms
from gradleak.errors import ArtifactError
from gradleak.runtime.job_records import checksum, path_of

MOST_BYTES = 16 * 2**20  # larger files are not read again: the checksum in their sidecar is trusted


@dataclass(frozen=True)
class Layout:
    """Locations of files, by the beginnings of their paths."""

    data_root: str  # folder of the data sets
    made: tuple[str, ...]  # of files that rules make
    pictured: tuple[str, ...]  # of files that hold images: originals, reconstructions, generators

    def dataset(self, path: str) -> tuple[str, str] | None:
        """Data set and split whose arrays `path` holds; None for another file."""
        place = Path(path)
        name, _, split = place.stem.rpartition("-")
        known = catalogue.CATALOGUE.get(name)
        if place.parent != Path(self.data_root) or place.suffix != ".safetensors":
            return None
        return (name, split) if known is not None and split in known.splits else None

    def is_made(self, path: str) -> bool:
        """Return whether a rule makes `path`, so that a sidecar is expected."""
        return path.startswith(self.made)

    def is_picture(self, path: str) -> bool:
        """Return whether `path` holds images."""
        return path.startswith(self.pictured) or self.dataset(path) is not None


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


def behind(top: str, files: Graph) -> set[str]:
    """Files behind `top`, itself included, among those of a `graph`."""
    return set(graph([top], files.__getitem__))


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
    for path in filter(layout.is_picture, own["input"]):
        below = behind(path, files)
        sources = datasets(below, layout)
        if not sources or unrecorded(below, files, layout):
            return None
        found.update(sources)
    return sorted(found)


def unrecorded(paths: Iterable[str], files: Graph, layout: Layout) -> list[str]:
    """Files made by rules that have no sidecar: older ones, and some of a shared cache."""
    made = [path for path in paths if files[path] is None and layout.is_made(path)]
    return sorted(path for path in made if layout.dataset(path) is None)


def altered(path: str, recorded: str, most_bytes: int = MOST_BYTES) -> bool | None:
    """Return whether a file differs from its sidecar; None for a folder, a gone or a large file."""
    place = Path(path)
    if not place.is_file() or place.stat().st_size > most_bytes:
        return None
    return checksum(place) != recorded


def dataset_entry(path: str, layout: Layout, own: Sidecar) -> dict[str, Any]:
    """Entry of the arrays of a data set; those put there by hand are read for their checksum."""
    pair = layout.dataset(path)
    assert pair is not None
    place, beside = Path(path), arrays.sidecar(path)
    digest = own["sha256"] if own else None
    if digest is None and beside.is_file():
        digest = beside.read_text(encoding="utf-8").split()[0]
    elif digest is None and place.is_file():
        digest = checksum(place)
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
