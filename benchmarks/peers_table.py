"""Means and intervals of the comparison with peers, over images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.peers_cases import OURS, Case
from benchmarks.peers_runs import ABSENT, OK
from gradleak.claims.statistics import interval_of_mean

COLUMNS = (
    "case", "tool", "version", "method", "status", "n", "n_ok",
    "psnr", "psnr_low", "psnr_high", "ssim", "ssim_low", "ssim_high", "right",
    "seconds", "iterations", "best", "ahead", "ahead_low", "ahead_high", "reason",
    "images", "budget",
)  # fmt: skip
# A method that takes more than so many budgets is not compared with others as if at equal time.
LATE = 1.5
Row = dict[str, Any]


def table(
    runs: pd.DataFrame, cases: Sequence[Case], absent: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """Summary of runs, with the columns of `benchmarks.peers`.

    Parameters
    ----------
    runs
        A row for each attack, with the fields of `peers_runs.Runs`.
    cases
        In the order of the table; those without runs are left out, except for absent tools.
    absent
        Why a tool is not installed, by its name.

    Returns
    -------
    DataFrame
        A row for each case, tool and method.
    """
    rows: list[Row] = []
    for case in cases:
        of_case = runs[runs["case"] == case.name]
        best = _best(of_case)
        for tool, methods in case.methods.items():
            for method in methods:
                own = of_case[(of_case["tool"] == tool) & (of_case["method"] == method)]
                row: Row = {"case": case.name, "tool": tool, "method": method}
                if len(own):
                    rows.append(row | _summary(own) | _ahead(own, best, case))
                elif tool in (absent or {}):
                    rows.append(row | {"status": ABSENT, "reason": (absent or {})[tool]})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _summary(own: pd.DataFrame) -> Row:
    fine = own[own["status"] == OK]
    out: Row = {"n": len(own), "n_ok": len(fine), "version": own["version"].iloc[-1]}
    out |= {key: own[key].iloc[-1] for key in ("images", "budget")}
    out["status"] = OK if len(fine) else own["status"].iloc[-1]
    reasons = own.loc[own["status"] != OK, "reason"]
    out["reason"] = reasons.iloc[-1] if len(reasons) else ""
    for key in ("psnr", "ssim"):
        out |= _mean(key, fine[key])
    out |= {key: fine[key].mean() for key in ("seconds", "iterations")}
    out["right"] = fine["right"].sum() if fine["right"].notna().any() else np.nan
    return out


def _mean(name: str, values: pd.Series) -> Row:
    low, high = interval_of_mean(values, log=False)
    return {name: values.mean(), f"{name}_low": low, f"{name}_high": high}


def _best(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of our best method: that of the highest mean PSNR among those in time."""
    ours = runs[(runs["tool"] == OURS) & (runs["status"] == OK)]
    means = ours.groupby("method")[["psnr", "seconds", "budget"]].mean()
    in_time = means.loc[means["seconds"] <= LATE * means["budget"], "psnr"].dropna()
    return ours[ours["method"] == in_time.idxmax()] if len(in_time) else ours.iloc[:0]


def _ahead(own: pd.DataFrame, best: pd.DataFrame, case: Case) -> Row:
    """Lead of our best method over this one, on the images that both gave."""
    if case.infers or not len(best):
        return {"best": ""}
    first = best.iloc[0]
    is_best = own["tool"].iloc[0] == OURS and own["method"].iloc[0] == first["method"]
    pairs = best.set_index("image")["psnr"] - own[own["status"] == OK].set_index("image")["psnr"]
    found = {} if is_best else _mean("ahead", pairs.dropna())
    return {"best": is_best, **found}
