"""Finished parts of a search, kept until all of it is done: a job that was cut off goes on."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.attacks.base import Outcome, Reconstruction
from gradleak.errors import ArtifactError, NumericsError
from gradleak.runtime.artifacts import read_tensors, write_tensors

LOG = logging.getLogger("gradleak")
ARRAYS = ("images", "fc_input")
ROWS = ("classes", "counts", "trace")
PLAIN = ("stop", "label", "kind", "failure", "evaluations", "partial")


class Finished:
    """Outcomes of parts of a search, a file each in `folder`.

    `identity` tells a search from others: its inputs, settings and code. It is asked once, when a
    part is found or kept. Files of another search, and damaged ones, count as absent. `earlier` is
    the number of seconds that the parts found had taken.
    """

    def __init__(self, folder: Path, identity: Callable[[], str]) -> None:
        self._folder, self._ask, self._identity = folder, identity, ""
        self.earlier, self._since = 0.0, time.perf_counter()

    def of(self, key: str) -> list[Outcome] | None:
        """Outcomes of the part `key`, None if it is not finished."""
        self._since = time.perf_counter()
        path = self._path(key)
        if not path.exists():
            return None
        try:
            arrays, metadata = read_tensors(path)
            if metadata["identity"] != self._own() or metadata["key"] != key:
                return None
            found = [_unpacked(one, arrays) for one in metadata["outcomes"]]
            seconds = float(metadata["seconds"])
        except (ArtifactError, KeyError, TypeError, ValueError):
            return None
        self.earlier += seconds
        LOG.info("%d searches are taken from %s", len(found), path)
        return found

    def keep(self, key: str, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes of a part, which has taken the time since it was looked for."""
        seconds = time.perf_counter() - self._since
        arrays: dict[str, np.ndarray] = {}
        packed = [_packed(one, arrays) for one in outcomes]
        self._folder.mkdir(parents=True, exist_ok=True)
        record = {"identity": self._own(), "key": key, "outcomes": packed, "seconds": seconds}
        write_tensors(self._path(key), arrays, record)

    def clear(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _own(self) -> str:
        self._identity = self._identity or self._ask()
        return self._identity

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


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


def _unpacked(packed: dict[str, Any], arrays: dict[str, np.ndarray]) -> Outcome:
    if "error" in packed:
        return NumericsError(packed["error"])
    values = {key: value for key, value in packed.items() if key in PLAIN}
    values |= {name: tuple(packed[name]) for name in ROWS}
    values |= {name: arrays[packed[name]] for name in ARRAYS if name in packed}
    values["loss"] = nan if packed["loss"] is None else packed["loss"]
    values["others"] = tuple(_unpacked(other, arrays) for other in packed["others"])
    return Reconstruction(**values)
