"""Checking a paper's sentences against the paper's own tables."""

from __future__ import annotations

import math

import pandas as pd

from gradleak.claims import arithmetic
from gradleak.claims.model import Claim, Claims
from gradleak.claims.queries import (
    Arithmetic,
    Close,
    Column,
    Columns,
    Compare,
    Equal,
    Estimates,
    Limit,
    Printed,
    Range,
    Runs,
    Side,
    Where,
)
from gradleak.claims.values import HIGHER_IS_BETTER

IGNORED = ("result",)
METRIC = "mse"
PEAK = 255.0


def _key(where: Where) -> dict[str, str | list[str]]:
    return {
        key: [str(item) for item in value] if isinstance(value, list) else str(value)
        for key, value in where.items()
        if key not in IGNORED
    }


def printed_runs(claims: Claims, metric: str = METRIC) -> pd.DataFrame:
    """List the paper's printed values of a metric: a row per cell with its selection.

    `value`, `cell` and `text` stand beside it. What a cell says of a batch (its best image, say)
    is no such value.
    """
    rows = []
    for claim in claims.claims:
        query = claim.query
        if claim.cell is None or claim.paper_value is None or not isinstance(query, Runs):
            continue
        if query.metric == metric and query.of != "batches" and claim.reading == "paper":
            text = f"{claim.cell.row}, {claim.cell.column}: {claim.shown}"
            rows.append(
                {**_key(query.where), "value": claim.paper_value, "cell": claim.id, "text": text}
            )
    return pd.DataFrame(rows)


def _select(printed: pd.DataFrame, where: Where) -> pd.DataFrame:
    """Cells of a selection; none if a selected value is not in the paper's table."""
    found = printed
    for key, wanted in _key(where).items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if key not in found:
            return printed.iloc[:0]
        found = found[found[key].isin(values)]
        if not set(values) <= set(found[key]):
            return printed.iloc[:0]
    return found


def _names(found: pd.DataFrame) -> pd.Series:
    """Which image a cell is about; a mean over images is about none."""
    return found["name"] if "name" in found else pd.Series("", index=found.index)


def _per_image(found: pd.DataFrame) -> dict[str, tuple[float, str]]:
    """Mean value and joined text for each image."""
    if found.empty:
        return {}
    return {
        str(name): (float(cells["value"].mean()), "; ".join(cells["text"]))
        for name, cells in found.groupby(_names(found))
    }


def _compare(query: Compare, printed: pd.DataFrame) -> list[str]:
    wrong = []
    for pair in query.comparisons:
        better = _per_image(_select(printed, {**query.where, **pair.better}))
        than = _per_image(_select(printed, {**query.where, **pair.than}))
        sign = -1 if query.metric in HIGHER_IS_BETTER else 1
        for name in sorted(better.keys() & than.keys()):
            if sign * better[name][0] > sign * than[name][0]:
                wrong.append(f"{better[name][1]} against {than[name][1]}")
    return wrong


def _close(query: Close, amount: float, printed: pd.DataFrame) -> list[str]:
    one = _per_image(_select(printed, {**query.where, **query.one}))
    other = _per_image(_select(printed, {**query.where, **query.other}))
    wrong = []
    for name in sorted(one.keys() & other.keys()):
        a, b = one[name][0], other[name][0]
        if query.measure == "log":
            a, b = (math.log10(max(value, 1e-30)) for value in (a, b))
        gap = {"alike": abs(a - b), "not_better": b - a, "not_worse": a - b}[query.one_is]
        if gap > amount:
            wrong.append(f"{one[name][1]} against {other[name][1]}")
    return wrong


def _limit(query: Limit, rule: str, amount: float, printed: pd.DataFrame) -> list[str]:
    found = _select(printed, query.where)
    if query.best_of == "attack":
        groups = found.groupby([found["model"], _names(found)])["value"]
        higher = query.metric in HIGHER_IS_BETTER
        found = found.loc[groups.idxmax() if higher else groups.idxmin()]
    wrong = found["value"] > amount if rule == "at_most" else found["value"] < amount
    return list(found.loc[wrong, "text"])


def _side(side: Side, claims: Claims) -> Claim | None:
    for claim in claims.claims:
        query = claim.query
        if claim.paper_value is None or claim.reading == "ours" or not isinstance(query, Column):
            continue
        same = (query.table, query.column, query.total) == (side.table, side.column, side.total)
        if same and _key(query.where) == _key(side.where):
            return claim
    return None


def _columns(query: Columns, claims: Claims) -> list[str]:
    wrong = []
    for pair in query.comparisons:
        equal = isinstance(pair, Equal)
        sides = (pair.one, pair.other) if isinstance(pair, Equal) else (pair.less, pair.more)
        one, other = (_side(side, claims) for side in sides)
        if one is None or other is None or one.paper_value is None or other.paper_value is None:
            continue
        gap = other.paper_value - one.paper_value
        if gap != 0 if equal else gap <= 0:
            wrong.append(f"{one.statement} {other.statement}")
    return wrong


def _estimates(query: Estimates, amount: float, claims: Claims) -> list[str]:
    """Comparisons whose printed numbers differ by less than `amount`."""
    wrong = []
    for pair in query.comparisons:
        less, more = (_side(side, claims) for side in (pair.less, pair.more))
        if less is None or more is None or less.paper_value is None or more.paper_value is None:
            continue
        if more.paper_value - less.paper_value < amount:
            wrong.append(f"{more.statement} {less.statement}")
    return wrong


def psnr_mismatches(claims: Claims, grid: str) -> tuple[list[str], int]:
    """Cells of a grid whose printed PSNR is not that of the printed MSE, within rounding.

    The test is whether the intervals that both roundings leave for the MSE,
    ``255²/10^(PSNR/10)``, overlap. Returns the cells' texts and the number of cells looked at.
    """
    cells: dict[tuple[str, str], dict[str, Claim]] = {}
    for claim in claims.claims:
        if claim.cell is None or claim.paper_value is None or claim.cell.grid != grid:
            continue
        place = cells.setdefault((claim.cell.row, claim.cell.column), {})
        place[claim.cell.metric] = claim
    wrong = []
    for (row, column), found in cells.items():
        mse, psnr = found["mse"], found["psnr_255"]
        assert mse.paper_value is not None and psnr.paper_value is not None
        low, high = (
            PEAK**2 / 10 ** ((psnr.paper_value + sign * psnr.rounding) / 10) for sign in (1, -1)
        )
        if high < mse.paper_value - mse.rounding or low > mse.paper_value + mse.rounding:
            wrong.append(f"{row}, {column}: {mse.paper_value:.4f}, {psnr.paper_value:.4f}")
    return wrong, len(cells)


def contradictions(claim: Claim, claims: Claims) -> list[str]:
    """Cells of the paper's own tables that contradict a sentence; empty where none does.

    A comparison is contradicted by an image for which the order is the other way round (equal
    printed values contradict nothing), closeness and limits by a cell beyond the amount. Our own
    stricter readings are not the paper's sentences, so nothing contradicts them.

    Parameters
    ----------
    claim
        A claim of any form; cells without `contradicted_by`, our own readings and forms without a
        counterpart in a table give an empty list, and so do sentences about other runs.
    claims
        The file it comes from, with the paper's tables as grids.
    """
    if claim.reading == "ours":
        return []
    if claim.contradicted_by:
        return [claim.contradicted_by]
    if claim.cell is not None or claim.apart:
        return []
    query, tolerance = claim.query, claims.tolerances[claim.tolerance]
    if isinstance(query, Columns):
        return _columns(query, claims)
    if isinstance(query, Estimates):
        return _estimates(query, tolerance.amount or 0.0, claims)
    if isinstance(query, Printed):
        return psnr_mismatches(claims, query.grid)[0]
    if isinstance(query, Arithmetic):
        return arithmetic.mismatches(query, claim, claims)[0]
    if isinstance(query, Range):
        return arithmetic.outside(query, claim, tolerance, claims)[0]
    metric = getattr(query, "metric", METRIC)
    printed = printed_runs(claims, metric)
    if printed.empty:
        return []
    if isinstance(query, Compare):
        return _compare(query, printed)
    if isinstance(query, Close) and metric not in HIGHER_IS_BETTER:
        assert tolerance.amount is not None
        return _close(query, tolerance.amount, printed)
    if isinstance(query, Limit):
        assert tolerance.amount is not None
        return _limit(query, tolerance.rule, tolerance.amount, printed)
    return []
