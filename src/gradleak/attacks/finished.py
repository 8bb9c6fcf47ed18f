"""Progress of a search, kept until all of it is done: a job that was cut off goes on."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.attacks.base import Arrays, Outcome, Reconstruction
from gradleak.errors import ArtifactError, NumericsError
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import read_tensors, write_tensors

LOG = logging.getLogger("gradleak")
ARRAYS = ("images", "fc_input")
ROWS = ("classes", "counts", "trace")
PLAIN = ("stop", "label", "kind", "failure", "evaluations", "partial")
# Seconds between two times at which a part under way is kept: each writes its tensors.
INTERVAL = 300.0


class Finished:
    """Outcomes of parts of a search, a file each in `folder`.

    `identity` tells a search from others: its inputs, settings and code. It is asked once, when a
    part is found or kept. Files of another search, and damaged ones, count as absent. `earlier` is
    the number of seconds that the parts found had taken.
    """

    def __init__(self, folder: Path, identity: Callable[[], str]) -> None:
        self._folder, self._ask, self._identity = folder, identity, ""
        self.earlier, self._since, self._key = 0.0, time.perf_counter(), ""
        self._before = 0.0  # seconds that earlier jobs spent on the part under way

    def of(self, key: str) -> list[Outcome] | None:
        """Outcomes of the part `key`, None if it is not finished."""
        self._since, self._key, self._before = time.perf_counter(), key, 0.0
        if (kept := self._read(key)) is None:
            return None
        arrays, metadata = kept
        try:
            found = [_unpacked(one, arrays) for one in metadata["outcomes"]]
        except (KeyError, TypeError, ValueError):
            return None
        self.earlier += float(metadata["seconds"])
        LOG.info("%d searches are taken from %s", len(found), self._path(key))
        return found

    def keep(self, key: str, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes of a part, which has taken the time since it was looked for."""
        arrays: dict[str, np.ndarray] = {}
        packed = [_packed(one, arrays) for one in outcomes]
        self._write(key, arrays, {"outcomes": packed})
        for path in self._folder.glob(f"{self._path(key).stem}-*"):
            path.unlink()

    def under_way(self, number: int) -> UnderWay:
        """State of the group `number` of the searches of the part that was last looked for."""
        return UnderWay(self, self._key, f"-{number}")

    def clear(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _own(self) -> str:
        self._identity = self._identity or self._ask()
        return self._identity

    def _path(self, key: str, end: str = "") -> Path:
        stem = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self._folder / f"{stem}{end}.safetensors"

    def _read(self, key: str, end: str = "") -> tuple[Arrays, dict[str, Any]] | None:
        path = self._path(key, end)
        if not path.exists():
            return None
        try:
            arrays, metadata = read_tensors(path)
            known = metadata["identity"] == self._own() and metadata["key"] == key
            if not known or float(metadata["seconds"]) < 0.0:
                return None
            job_records.go_on_after(metadata["spent"])
        except (ArtifactError, KeyError, TypeError, ValueError):
            return None
        return arrays, metadata

    def _write(self, key: str, arrays: Arrays, more: Mapping[str, Any], end: str = "") -> None:
        seconds = self._before + time.perf_counter() - self._since
        self._folder.mkdir(parents=True, exist_ok=True)
        spent = job_records.spent()
        record = {"identity": self._own(), "key": key, "seconds": seconds, "spent": spent, **more}
        write_tensors(self._path(key, end), arrays, record)


class UnderWay:
    """State of some searches in the middle of their steps, in a file beside finished parts."""

    def __init__(self, finished: Finished, key: str, end: str) -> None:
        self._finished, self._key, self._end = finished, key, end
        self._last = time.monotonic()

    def load(self) -> tuple[Arrays, list[str]] | None:
        """Arrays and words of `save`, None if there are none."""
        if (kept := self._finished._read(self._key, self._end)) is None:
            return None
        arrays, metadata = kept
        spent = float(metadata["seconds"])
        # Those of the groups before it are among them.
        self._finished.earlier += spent - self._finished._before
        self._finished._before = spent
        LOG.info("a search goes on after %.0f s", spent)
        return arrays, list(metadata["words"])

    @property
    def is_due(self) -> bool:
        """True if the state was not kept for `INTERVAL` seconds."""
        return time.monotonic() - self._last >= INTERVAL

    def save(self, arrays: Arrays, words: Sequence[str]) -> None:
        """Keep the state instead of the last one."""
        self._finished._write(self._key, arrays, {"words": [*words]}, self._end)
        self._last = time.monotonic()


def _packed(outcome: Outcome, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Fields as JSON values; arrays go into `arrays`, their numbers stand for them."""
    if isinstance(outcome, NumericsError):
        return {"error": str(outcome)}
    assert not outcome.layers  # closed forms have them, which take seconds
    out = {name: getattr(outcome, name) for name in PLAIN}
    out |= {name: [*getattr(outcome, name)] for name in ROWS}
    out["loss"] = outcome.loss if isfinite(outcome.loss) else None
    out["others"] = [_packed(other, arrays) for other in outcome.others]
    for name in ARRAYS:
        if (value := getattr(outcome, name)) is not None:
            out[name] = str(len(arrays))
            arrays[out[name]] = value
    return out


def _unpacked(packed: dict[str, Any], arrays: Arrays) -> Outcome:
    if "error" in packed:
        return NumericsError(packed["error"])
    values = {key: value for key, value in packed.items() if key in PLAIN}
    values |= {name: tuple(packed[name]) for name in ROWS}
    values |= {name: arrays[packed[name]] for name in ARRAYS if name in packed}
    values["loss"] = nan if packed["loss"] is None else packed["loss"]
    values["others"] = tuple(_unpacked(other, arrays) for other in packed["others"])
    return Reconstruction(**values)
