"""What follows from the paper's own printed numbers: means, differences, percentages, ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from gradleak.claims.model import Claim, Claims, Tolerance
from gradleak.claims.outcome import Outcome, holds
from gradleak.claims.queries import Arithmetic, Range, Relation
from gradleak.errors import ConfigError


def _of(relation: Relation, values: Sequence[float]) -> float:
    """What the numbers of a relation come to."""
    match relation.of:
        case "count":
            return float(len(values))
        case "difference":
            return values[0] - values[1]
        case "increase":
            return 100.0 * (values[1] / values[0] - 1.0)
        case _:
            return sum(values) / len(values)


def _cells(patterns: Sequence[str], claim: Claim, claims: Claims) -> list[Claim]:
    """Claims with a printed number, by their ids; * stands for any part of one."""
    found: list[Claim] = []
    for pattern in patterns:
        some = [
            other
            for other in claims.claims
            if fnmatchcase(other.id, pattern)
            and other.paper_value is not None
            and other.reading == "paper"
        ]
        if not some:
            raise ConfigError(
                f"claim '{claim.id}': no claim with a number of the paper's is called '{pattern}'; "
                f"correct the id."
            )
        found += some
    return found


def _extremes(relation: Relation, cells: Sequence[Claim]) -> tuple[float, float]:
    """Least and largest value of a relation that the rounding of its numbers leaves."""
    if relation.of == "count":
        return len(cells), len(cells)
    ends = [(_number(cell) - cell.rounding, _number(cell) + cell.rounding) for cell in cells]
    # Monotonic in each number, so the ends of the intervals tell.
    falling = relation.of in ("difference", "increase")
    corners = itertools.product(*ends) if falling else zip(*ends, strict=True)
    found = [_of(relation, corner) for corner in corners]
    return min(found), max(found)


def _number(cell: Claim) -> float:
    assert cell.paper_value is not None
    return cell.paper_value


def mismatches(query: Arithmetic, claim: Claim, claims: Claims) -> tuple[list[str], float]:
    """Relations that do not hold, in words, and what the one that fits least comes to.

    Parameters
    ----------
    query, claim, claims
        The relations, the claim that they are of, and its file.

    Raises
    ------
    ConfigError
        If a name is no claim with a number, or a relation has the wrong count of numbers.
    """
    wrong: list[str] = []
    worst = (-1.0, math.nan)
    for relation in query.relations:
        cells = _cells(relation.cells, claim, claims)
        _check(relation, cells, claim)
        equals = claim
        if relation.equals is not None:
            (equals,) = _cells([relation.equals], claim, claims)
        value, stated = _of(relation, [_number(cell) for cell in cells]), _number(equals)
        low, high = _extremes(relation, cells)
        slack = equals.rounding * (1 + 1e-9) + 1e-9
        if high < stated - slack or low > stated + slack:
            wrong.append(_words(relation, cells, value, equals))
        worst = max(worst, (abs(value - stated), value))
    return wrong, worst[1]


def _check(relation: Relation, cells: Sequence[Claim], claim: Claim) -> None:
    needed = {"value": 1, "difference": 2, "increase": 2}.get(relation.of, len(cells))
    if len(cells) != needed:
        raise ConfigError(
            f"claim '{claim.id}': {relation.of} is of {needed} numbers, but cells names "
            f"{len(cells)}; correct it."
        )
    if relation.equals is None and claim.paper_value is None:
        raise ConfigError(f"claim '{claim.id}': nothing to equal; give equals or paper_value.")


def _words(relation: Relation, cells: Sequence[Claim], value: float, equals: Claim) -> str:
    what = {
        "value": "the number",
        "mean": "the mean",
        "difference": "the difference",
        "increase": "the increase in percent",
        "count": "the count",
    }[relation.of]
    shown = ", ".join(f"{cell.statement.rstrip('.')}" for cell in cells[:4])
    more = "" if len(cells) <= 4 else f" and {len(cells) - 4} more"
    return f"{what} of ({shown}{more}) is {value:.6g}, not {_number(equals):g}"


def judge_arithmetic(claim: Claim, claims: Claims) -> Outcome:
    """Judge relations between printed numbers; ours is what the one that fits least comes to."""
    query = claim.query
    assert isinstance(query, Arithmetic)
    wrong, value = mismatches(query, claim, claims)
    n = len(query.relations)
    return Outcome(holds(not wrong), f"{n - len(wrong)} of {n} hold", value, n=n, n_ok=n)


def outside(
    query: Range, claim: Claim, tolerance: Tolerance, claims: Claims
) -> tuple[list[str], int, int]:
    """Cells outside of a range if they are too many, how many lie inside, and how many there are.

    A cell lies inside if its rounding reaches the range.
    """
    assert tolerance.amount is not None
    cells = _cells(query.cells, claim, claims)
    out = [
        cell
        for cell in cells
        if not query.low - cell.rounding <= _number(cell) <= query.high + cell.rounding
    ]
    inside = len(cells) - len(out)
    few = inside < tolerance.amount * len(cells)
    words = f"{inside} of {len(cells)} lie from {query.low:g} to {query.high:g}; not "
    names = ", ".join(cell.statement.rstrip(".") for cell in out)
    return ([words + names] if few else []), inside, len(cells)


def judge_range(claim: Claim, tolerance: Tolerance, claims: Claims) -> Outcome:
    """Judge how many printed numbers lie in a range; ours is their share."""
    query = claim.query
    assert isinstance(query, Range)
    wrong, inside, n = outside(query, claim, tolerance, claims)
    return Outcome(holds(not wrong), f"{inside} of {n} lie in it", inside / n, n=n, n_ok=n)
