"""Reconstructions made from other reconstructions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradleak.attacks import reconstruction_files, run
from gradleak.attacks.denoise import salt_and_pepper, total_variation

# What is kept of the answer that a new one is made from.
KEPT = ("model", "seed", "batch", "status", "reason", "stop")


def denoise_all(path: str, weight: float) -> run.Results:
    """Denoise every answer of a reconstruction file; those without an image keep their reason."""
    images, records = reconstruction_files.read(path)
    found = {k: np.full_like(v, np.nan) for k, v in images.items() if k.endswith("/images")}
    out = run.Results(found, [], [])
    for record in records:
        key = f"{record['model']}/images"
        place = (record["seed"], record["batch"], record["answer"])
        begin = time.perf_counter()
        if record["status"] == "ok":
            for number, image in enumerate(images[key][place]):
                found[key][(*place, number)] = total_variation(image, weight)
        out.seconds.append(time.perf_counter() - begin)
        out.runs.append(_kept(record, record["answer"], record["kind"]))
    return out


def hybrid_all(paths: Sequence[str]) -> run.Results:
    """H-GAP: for each run the attack whose own choice has the least salt-and-pepper noise.

    The noise is ||x − m(x)|| with m the 3x3 average (R-GAP section 5). An attack that failed
    has no say; where all failed, the run failed.

    Parameters
    ----------
    paths
        Reconstruction files of the same gradients. Runs that not all of them have are left out.
    """
    files = [reconstruction_files.read(path) for path in paths]
    choices = [
        {(r["model"], r["seed"], r["batch"]): r for r in records if r["answer"] == 0}
        for _, records in files
    ]
    shared = [place for place in choices[0] if all(place in other for other in choices[1:])]
    out = run.Results({}, [], [])
    for model, seed, batch in shared:
        begin = time.perf_counter()
        key = f"{model}/images"
        if key not in out.images:
            sizes = [images[key].shape for images, _ in files]
            most = max(size[3] for size in sizes)
            out.images[key] = np.full((*sizes[0][:2], 1, most, *sizes[0][4:]), np.nan)
        found = []
        for number, (images, _) in enumerate(files):
            record = choices[number][model, seed, batch]
            if record["status"] == "ok":
                image = images[key][seed, batch, 0]
                image = image[np.isfinite(image).all(axis=(1, 2, 3))]
                found.append((salt_and_pepper(image), number, image, record))
        if found:
            _, _, image, record = min(found, key=lambda entry: entry[:2])
            out.images[key][seed, batch, 0, : len(image)] = image
        else:
            record = choices[0][model, seed, batch]
        out.seconds.append(time.perf_counter() - begin)
        out.runs.append(_kept(record, 0, "answer"))
    return out


def _kept(record: dict[str, Any], answer: int, kind: str) -> dict[str, Any]:
    kept = {key: record[key] for key in KEPT if key in record}
    return {**kept, "answer": answer, "kind": kind, "label": None, "evaluations": 0, "loss": None}
