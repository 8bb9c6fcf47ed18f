"""Reconstructions made from other reconstructions."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gradleak.attacks import run
from gradleak.attacks.denoise import total_variation


def denoise_all(path: str, weight: float) -> run.Results:
    """Denoise every image of a reconstruction file; runs without an image keep their reason."""
    images, records = run.read(path)
    empty = {k: np.full_like(v, np.nan) for k, v in images.items() if k.endswith("/image")}
    out = run.Results(empty, [], [])
    for record in records:
        key, place = f"{record['model']}/image", (record["seed"], record["batch"])
        begin = time.perf_counter()
        if record["status"] == "ok":
            out.images[key][place] = total_variation(images[key][place], weight)
        out.seconds.append(time.perf_counter() - begin)
        kept: dict[str, Any] = {k: v for k, v in record.items() if k not in ("layers", "label")}
        out.runs.append(kept)
    return out
