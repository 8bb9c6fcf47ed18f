"""Exponents of the growth that `benchmarks.growth` measured, beside what theory says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from benchmarks.growth_cases import CASES, OK
from benchmarks.kept import Row

Numbers = npt.NDArray[np.float64]
LEVEL = 0.95
ROOM_GIB = 24.0
GROWN_MIB = 100.0  # below, what is done once hides how memory grows
THEORY: Mapping[str, Callable[[Numbers], Numbers]] = {
    "n": lambda n: n,
    "n log n": lambda n: n * np.log(n),
    "n^1.5": lambda n: n**1.5,
    "n^2": lambda n: n**2,
    # Scores of n images for n classes, and weights for each class's 3,072 features.
    "n (n + 3072)": lambda n: n * (n + 3072.0),
    "n^3": lambda n: n**3,
}
MEASURES = ("seconds", "mib")
COLUMNS = (
    *("what", "axis", "per", "measure", "points", "first", "last", "exponent", "low", "high"),
    *("exponent_last", "theory", "exponent_theory", "fits_24_gib"),
)


def slope(n: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Exponent a of values ≈ b n^a by least squares of logarithms, and its interval of 95 %.

    The interval is NaN with two points; all is NaN with fewer.
    """
    if len(n) < 2:
        return math.nan, math.nan, math.nan
    fit: Any = stats.linregress(np.log(n), np.log(values))
    if len(n) == 2:
        return float(fit.slope), math.nan, math.nan
    half = float(stats.t.ppf(0.5 + LEVEL / 2.0, len(n) - 2) * fit.stderr)
    return float(fit.slope), float(fit.slope) - half, float(fit.slope) + half


def theoretical(theory: str, n: Sequence[float]) -> float:
    """Exponent of a formula of `THEORY`, fitted at the same n."""
    return slope(n, THEORY[theory](np.asarray(n, dtype=float)).tolist())[0]


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Exponents of seconds, and of memory above the interpreter's own, over n.

    ``first``, ``last`` are the sizes between which they were fitted, ``exponent_last`` is that of
    the two largest, and ``fits_24_gib`` the size that it takes to 24 GiB.
    """
    rows: list[Row] = []
    for what, case in CASES.items():
        done = table[(table["what"] == what) & (table["status"] == OK)]
        for measure in MEASURES:
            used = done[done[measure] > 0].sort_values("size")
            if len(used) < 2:
                continue
            n, values = used["n"].tolist(), used[measure].tolist()
            theory = case.seconds if measure == "seconds" else case.memory
            row: Row = dict(zip(("exponent", "low", "high"), slope(n, values), strict=True))
            row |= {"what": what, "axis": case.axis, "per": case.per, "measure": measure}
            row |= {"points": len(used), "theory": theory, "exponent_last": _last(n, values)}
            row |= {"first": int(used["size"].iloc[0]), "last": int(used["size"].iloc[-1])}
            row["exponent_theory"] = theoretical(theory, n) if theory else math.nan
            if measure == "mib":
                row["fits_24_gib"] = largest(used)
            rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _last(n: Sequence[float], values: Sequence[float]) -> float:
    return slope(n[-2:], values[-2:])[0]


def largest(used: pd.DataFrame) -> float:
    """Size at which the two largest measured, extrapolated, come to `ROOM_GIB`; NaN if unclear."""
    grown = _last(used["size"].tolist(), used["mib"].tolist())
    last = used.iloc[-1]
    if not grown > 0 or last["mib"] < GROWN_MIB:
        return math.nan
    free = ROOM_GIB * 1024.0 - (last["peak_mib"] - last["mib"])
    return float(np.floor(last["size"] * (free / last["mib"]) ** (1.0 / grown)))
