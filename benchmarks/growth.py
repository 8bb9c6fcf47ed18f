"""Growth of time and memory with an image's side, a network's depth, a batch, a number of jobs.

Each measurement has a process of its own, and is kept as it ends. A size of which the sizes before
it predict more time or memory than allowed is not run; its row has the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.growth_cases import (
    ALONE,
    CASES,
    COLUMNS,
    FAILED,
    LARGE,
    LONG,
    NUMBERS,
    OK,
    POWER,
    WORDS,
    Case,
)
from benchmarks.growth_fits import GROWN_MIB, theoretical
from benchmarks.kept import Kept, Row
from benchmarks.runner import measure
from gradleak.errors import ArtifactError

LEAST = 1e-3  # seconds or MiB, of what is extrapolated
# Below, theory tells how a value goes on: what is done once hides how it grows.
GROWN = {"cpu_s": 0.0, "mib": GROWN_MIB}


def plan(sizes: Mapping[str, Sequence[int]]) -> list[tuple[str, int]]:
    """Cases with sizes by axis, all at their smallest size first."""
    ranked = []
    for what, case in CASES.items():
        own = sorted({*sizes[case.axis], *case.more})[: 1 if what == ALONE else None]
        ranked += [(place, what, size) for place, size in enumerate(own)]
    return [(what, size) for _, what, size in sorted(ranked, key=lambda one: one[0])]


def growth(folder: Path, amounts: Mapping[str, Any]) -> pd.DataFrame:
    """Measure all cases; the table, sorted by case and size.

    `folder` keeps what is done. `amounts`: ``sizes`` by axis, ``seconds`` of CPU time and ``gib``
    that a measurement may take at most.
    """
    kept = Kept(folder / "measurements.csv", COLUMNS, ("what", "size"), NUMBERS)
    for what, size in plan(amounts["sizes"]):
        key = {"what": what, "size": str(size)}
        if not kept.has(key):
            known = [row for row in kept.rows if row["what"] == what]
            told = {"axis": CASES[what].axis, "per": CASES[what].per}
            found = _row(what, size, known, amounts)
            kept.add({**dict.fromkeys(WORDS, ""), **key, **told, **found})
    return table(kept.rows)


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows in the order of `CASES`, then by size."""
    order = {what: place for place, what in enumerate(CASES)}
    # The size of this workflow is the number of jobs that it was found to have.
    own = [row["what"] == ALONE and row["status"] == OK for row in rows]
    sized = [row | {"size": row["n"]} if one else row for row, one in zip(rows, own, strict=True)]
    sorted_rows = sorted(sized, key=lambda row: (order[row["what"]], int(row["size"])))
    kinds = {"size": int, **dict.fromkeys(NUMBERS, float)}
    return pd.DataFrame(sorted_rows, columns=list(COLUMNS)).astype(kinds)


def _row(what: str, size: int, known: Sequence[Row], amounts: Mapping[str, Any]) -> Row:
    """Measure a case at a size, unless that would take too much."""
    case = CASES[what]
    ahead = predict(case, size, known)
    if refusal := beyond(ahead, amounts):
        return refusal
    given = {"size": size, "warm": case.warm, "limit": amounts["seconds"]}
    try:
        found = measure("growth_task:run", name=case.task, options=dict(case.options), **given)
    except ArtifactError as error:
        # The process ended by itself, for instance for lack of memory.
        return {"status": FAILED, "reason": str(error), **ahead}
    if found["status"] != OK:
        return {key: found[key] for key in ("status", "reason")} | ahead
    found["mib"] = max(found["peak_mib"] - found["base_mib"], 0.0)
    return {key: found[key] for key in COLUMNS if key in found} | ahead


def predict(case: Case, size: int, known: Sequence[Row]) -> Row:
    """CPU seconds and peak MiB of a size, from the two largest measured before it; or nothing."""
    done = [row for row in known if row["status"] == OK and int(row["size"]) < size]
    done = sorted(done, key=lambda row: int(row["size"]))[-2:]
    if not done:
        return {}
    last = done[-1]
    seconds = _extrapolated(case, size, done, "cpu_s", case.seconds)
    mib = _extrapolated(case, size, done, "mib", case.memory)
    if case.bound:
        module, _, function = case.bound.partition(":")
        bound: Callable[[int], float] = getattr(import_module(f"benchmarks.{module}"), function)
        mib = min(mib, bound(size))
    return {"predicted_s": seconds, "predicted_mib": last["peak_mib"] - last["mib"] + mib}


def _extrapolated(case: Case, size: int, done: Sequence[Row], column: str, theory: str) -> float:
    """Value at a size of a power of sizes through two rows, or of theory through one."""
    last, power = done[-1], POWER.get(case.axis, 1.0)
    value, ratio = max(last[column], LEAST), size / int(last["size"])
    if len(done) == 2 and done[0][column] >= GROWN[column]:
        steps = math.log(int(last["size"]) / int(done[0]["size"]))
        slope = math.log(value / max(done[0][column], LEAST)) / steps
    else:
        slope = power * theoretical(theory or "n", [last["n"], last["n"] * ratio**power])
    # What is done once hides growth at small sizes; nothing shrinks.
    return float(value * ratio ** max(slope, 0.0))


def beyond(ahead: Row, amounts: Mapping[str, Any]) -> Row | None:
    """Row of a size that is not run for what it would take; None if it is run."""
    if not ahead:
        return None
    seconds, gib = ahead["predicted_s"], ahead["predicted_mib"] / 1024.0
    if seconds > amounts["seconds"]:
        why = f"Smaller sizes predict {seconds:.0f} s of CPU time, above the limit of "
        return {"status": LONG, "reason": f"{why}{amounts['seconds']:g} s.", **ahead}
    if gib > amounts["gib"]:
        why = f"Smaller sizes predict {gib:.1f} GiB, above the limit of {amounts['gib']:g} GiB."
        return {"status": LARGE, "reason": why, **ahead}
    return None
