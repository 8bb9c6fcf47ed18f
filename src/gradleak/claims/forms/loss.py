"""Facts about ∂ℓ/∂μ·μ of the margin losses (R-GAP Figure 1, section 3.1.1, appendices B and H)."""

from collections.abc import Callable
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.optimize import brentq

from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import Form
from gradleak.claims.outcome import Outcome, holds
from gradleak.claims.statement import Statement, Tolerance
from gradleak.models.losses import BINARY, MarginLoss

# μ from −20 to 20, including 0 and 1.
MARGINS = np.arange(-800, 801) / 40.0
PRINTED = -MARGINS / (1.0 + np.exp(MARGINS))  # right-hand side of equations (11) and (35)

# Whether the fact holds, and the number that shows it: a largest gap or a smallest value.
Found = tuple[bool, float]


def zero_at_zero(loss: MarginLoss, amount: float) -> Found:
    """∂ℓ/∂μ·μ is 0 at μ = 0."""
    gap = abs(float(loss.product(0.0)))
    return gap <= amount, gap


def not_monotonic(loss: MarginLoss, amount: float) -> Found:
    """It falls somewhere and rises somewhere; the number is the largest rise of a step."""
    steps = np.diff(loss.product(MARGINS))
    return bool((steps < 0).any() and (steps > 0).any()), float(steps.max())


def falls_before_zero(loss: MarginLoss, amount: float) -> Found:
    """It falls strictly for μ < 0, so that it can be inverted there."""
    steps = np.diff(loss.product(MARGINS[MARGINS <= 0]))
    return bool((steps < 0).all()), float(steps.max())


def not_above_zero_after(loss: MarginLoss, amount: float) -> Found:
    """It is at most 0 for μ ≥ 0."""
    largest = float(loss.product(MARGINS[MARGINS >= 0]).max())
    return largest <= amount, largest


def tends_to_zero(loss: MarginLoss, amount: float) -> Found:
    """Beyond its minimum it rises strictly, stays below 0 and tends to 0."""
    values = loss.product(MARGINS[loss.turn + 0.1 < MARGINS])
    far = abs(float(loss.product(700.0)))
    return bool((np.diff(values) > 0).all() and (values < 0).all()) and far <= amount, far


def zero_after_one(loss: MarginLoss, amount: float) -> Found:
    """It falls from 0 to μ = 1 and is 0 from there on."""
    falling = np.diff(loss.product(MARGINS[(MARGINS >= 0) & (MARGINS < 1)]))
    gap = float(np.abs(loss.product(MARGINS[MARGINS >= 1])).max())
    return bool((falling < 0).all()) and gap <= amount, gap


def roots(loss: MarginLoss, value: float) -> list[float]:
    """Every μ of −20 to 20 with ∂ℓ/∂μ·μ = `value`, from the function alone."""

    def gap(mu: float) -> float:
        return float(loss.product(mu)) - value

    gaps = loss.product(MARGINS) - value
    found = MARGINS[gaps == 0].tolist()
    for place in np.flatnonzero(np.sign(gaps[:-1]) * np.sign(gaps[1:]) < 0):
        root = float(brentq(gap, MARGINS[place], MARGINS[place + 1], xtol=1e-300, rtol=1e-15))
        # A jump across `value`, as of the hinge loss at 1, is not a root.
        if abs(gap(root)) <= 1e-9 * max(1.0, abs(value)):
            found.append(root)
    return sorted(found)


def at_most_two(loss: MarginLoss, amount: float) -> Found:
    """At most two μ give the same value, including 0."""
    values = {float(value) for value in loss.product(MARGINS[::10])}
    most = max(len(roots(loss, value)) for value in values)
    return most <= 2, float(most)


def twin_larger_before_turn(loss: MarginLoss, amount: float) -> Found:
    """The other μ of the same value is larger for 0 < μ < turn, and smaller beyond the turn.

    The number is the smallest μ̃/μ before the turn. Within 0.1 of the turn the two are too close to
    be distinguished on the grid.
    """

    def ratio(mu: float) -> float:
        return max(roots(loss, float(loss.product(mu))), key=lambda root: abs(root - mu)) / mu

    before = np.array([*map(ratio, MARGINS[(MARGINS > 0) & (loss.turn - 0.1 > MARGINS)])])
    behind = np.array([*map(ratio, MARGINS[loss.turn + 0.1 < MARGINS])])
    return bool((before > 1).all() and (behind < 1).all()), float(before.min())


def equation_11(loss: MarginLoss, amount: float) -> Found:
    """∂ℓ/∂μ·μ = −μ/(1 + e^μ)."""
    gap = float(np.abs(loss.product(MARGINS) - PRINTED).max())
    return gap <= amount, gap


def equation_35(loss: MarginLoss, amount: float) -> Found:
    """∂ℓ/∂μ = −μ/(1 + e^μ), compared with finite differences of ℓ."""
    step = 1e-5
    slope = (loss.value(MARGINS + step) - loss.value(MARGINS - step)) / (2 * step)
    gap = float(np.abs(slope - PRINTED).max())
    return gap <= amount, gap


FACTS: dict[str, Callable[[MarginLoss, float], Found]] = {
    fact.__name__: fact
    for fact in (
        *(zero_at_zero, not_monotonic, falls_before_zero, not_above_zero_after, tends_to_zero),
        *(zero_after_one, at_most_two, twin_larger_before_turn, equation_11, equation_35),
    )
}


def check(fact: str, losses: list[str], amount: float) -> tuple[list[str], float]:
    """Losses that violate one of `FACTS` by over `amount`, and the largest number that shows it."""
    found = {name: FACTS[fact](MarginLoss(name), amount) for name in losses}
    wrong = [name for name, (holds, _) in found.items() if not holds]
    # + 0.0 turns -0.0 into 0.0.
    return wrong, max(number for _, number in found.values()) + 0.0


class Loss(Form):
    """A fact about the margin losses themselves (R-GAP Figure 1), one of `FACTS`."""

    form: Literal["loss"]
    fact: str
    losses: list[str] = Field(min_length=1)
    rules = ("absolute",)
    words = "the number that decides, from the loss's formula: a gap, a rise or a count"

    @model_validator(mode="after")
    def _known(self) -> Self:
        for key, given, known in (("fact", [self.fact], FACTS), ("losses", self.losses, BINARY)):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(
                    f"{key} '{unknown[0]}' is not one of {', '.join(known)}; use one of these"
                )
        return self

    def judge(self, claim: Statement, tolerance: Tolerance, evidence: Evidence) -> Outcome:
        """Judge a fact about the losses; our number is the one that shows it."""
        wrong, number = check(self.fact, self.losses, tolerance.limit)
        words = f"{'does not hold' if wrong else 'holds'} for {', '.join(wrong or self.losses)}"
        n = len(self.losses)
        return Outcome(holds(not wrong), words, number, n=n, n_ok=n)

    def found_in(self) -> list[str]:
        """See `Form.found_in`."""
        return ["gradleak.models.losses"]
