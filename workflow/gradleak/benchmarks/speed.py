"""Table of speeds: ours against the plain dense way, in one run on one machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gradleak.benchmarks import case as cases
from gradleak.benchmarks.measure import Measurement, measure
from gradleak.metrics.image import mse
from gradleak.security import index_from_ranks

COLUMNS = [
    "what",
    "ours_s",
    "reference_s",
    "ratio",
    "ours_mib",
    "reference_mib",
    "ours_error",
    "reference_error",
    "note",
]
REPEATS = 5
# Ours runs with one thread, as the pipeline's attack jobs do; its matrices are too small for more.
OURS_THREADS = 1


def row(
    what: str,
    ours_s: float,
    reference_s: float,
    note: str,
    **more: float,
) -> dict[str, Any]:
    """One row; `ratio` is reference_s / ours_s, and what is not given stays empty."""
    return {
        "what": what,
        "ours_s": ours_s,
        "reference_s": reference_s,
        "ratio": reference_s / ours_s,
        **more,
        "note": note,
    }


def _pair(ours: Measurement, reference: Measurement) -> dict[str, float]:
    return {"ours_mib": ours.mib, "reference_mib": reference.mib}


def attack_rows(case_path: str, *, threads: int, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """R-GAP from gradient to image, and each of its layer systems, against dense least squares.

    `ours_error` and `reference_error` are the MSE of either image; the note holds the relative
    difference ||ours − reference|| / ||reference|| of the two.
    """
    case = cases.read(case_path)
    ours = measure("rgap", case_path, repeats=repeats, threads=OURS_THREADS)
    layers = measure("rgap_layers", case_path, repeats=repeats, threads=OURS_THREADS)
    reference = measure("dense_rgap", case_path, repeats=1, threads=threads)
    found, plain = ours.arrays["image"], reference.arrays["image"]
    difference = float(np.linalg.norm(found - plain) / np.linalg.norm(plain))
    times = _times(repeats, threads)
    out = [
        row(
            f"R-GAP {case.chain.name}",
            ours.seconds,
            reference.seconds,
            f"numpy.linalg.lstsq of dense U; relative difference {difference:.1e}; {times}",
            **_pair(ours, reference),
            ours_error=mse(case.image, found),
            reference_error=mse(case.image, plain),
        )
    ]
    for layer in case.chain.convolutions:
        name = layer.name
        out.append(
            row(
                f"R-GAP {case.chain.name} {name}",
                layers.layers[name],
                reference.layers[name],
                f"build and solve U of this layer alone; {times}",
            )
        )
    return out


def float32_row(case_path: str, *, threads: int, repeats: int = REPEATS) -> dict[str, Any]:
    """R-GAP with balanced rows against NumPy's least squares of float32 data, as its authors.

    The case holds float32 gradients. Padded pixels are unknowns of the reference, as they are
    of the authors' matrices. The note has the MSE of our solver in their arithmetic.
    """
    case = cases.read(case_path)
    ours = measure("rgap_balanced", case_path, repeats=repeats, threads=OURS_THREADS)
    theirs = measure("rgap_single", case_path, repeats=1, threads=OURS_THREADS)
    reference = measure("dense_single", case_path, repeats=1, threads=threads)
    single = mse(case.image, theirs.arrays["image"])
    return row(
        f"R-GAP {case.chain.name} from float32",
        ours.seconds,
        reference.seconds,
        f"numpy.linalg.lstsq of every dense U in float32, padding included; rgap_float32 takes "
        f"{theirs.seconds:.2f} s, MSE {single:.1e}; {_times(repeats, threads)}",
        **_pair(ours, reference),
        ours_error=mse(case.image, ours.arrays["image"]),
        reference_error=mse(case.image, reference.arrays["image"]),
    )


def rank_rows(case_path: str, *, threads: int, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """c(M) three ways against SVD of dense matrices.

    As it is reported, by numerical ranks only, and from the sizes of the layers alone.
    `ours_error` is the largest difference of a layer's rank from the reference's; from sizes
    alone, the difference of c(M).
    """
    chain = cases.read(case_path).chain
    name = chain.name
    reference = measure("dense_ranks", case_path, repeats=1, threads=threads)
    expected = reference.arrays["ranks"]
    out = []
    for what, task in (("c(M) as reported", "index"), ("numerical ranks", "ranks")):
        ours = measure(task, case_path, repeats=repeats, threads=OURS_THREADS)
        ranks = ours.arrays["ranks"]
        way = "+".join(ours.facts.get("methods", ["LayerSystem.rank"]))
        same = "equal" if np.array_equal(ranks, expected) else "differ"
        note = (
            f"{way} against numpy.linalg.matrix_rank of dense U; ranks {same}: "
            f"{_words(ranks)} and {_words(expected)}; {_times(repeats, threads)}"
        )
        error = float(np.abs(ranks - expected).max())
        measured = _pair(ours, reference)
        out.append(
            row(
                f"{what} {name}",
                ours.seconds,
                reference.seconds,
                note,
                **measured,
                ours_error=error,
            )
        )
    sizes = measure("sizes", case_path, repeats=repeats, threads=OURS_THREADS)
    value, true = sizes.facts["index"], index_from_ranks(chain, expected)
    kind = "exact" if sizes.facts["exact"] else "an upper bound"
    out.append(
        row(
            f"c(M) from sizes {name}",
            sizes.seconds,
            reference.seconds,
            f"no weight or gradient is read; {kind}: {value:g} and {true:g}; "
            f"{_times(repeats, threads)}",
            **_pair(sizes, reference),
            ours_error=abs(value - true),
        )
    )
    return out


def _times(repeats: int, threads: int) -> str:
    return f"best of {repeats} with one thread against one run with {threads}"


def _words(ranks: np.ndarray) -> str:
    return " ".join(str(rank) for rank in ranks)


def summary(rows: list[dict[str, Any]]) -> str:
    """Ratios so far, one line for the log."""
    return "; ".join(f"{row['what']}: {row['ratio']:.1f}" for row in rows)


def table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table with columns `COLUMNS`."""
    return pd.DataFrame(rows, columns=COLUMNS)
