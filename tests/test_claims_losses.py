"""Facts about the losses that R-GAP's claims rest on: each holds somewhere and fails somewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.special import spence

from gradleak.claims.forms.loss import FACTS, MARGINS, Loss, check, roots
from gradleak.claims.forms.paired import Effect
from gradleak.models.losses import BINARY, MarginLoss

AMOUNT = 1e-6


@dataclass(frozen=True)
class Bent(MarginLoss):
    """The logistic loss with another ∂ℓ/∂μ·μ, or another ℓ."""

    name: str = "logistic"
    bend: Callable[[np.ndarray], np.ndarray] | None = None
    level: Callable[[np.ndarray], np.ndarray] | None = None

    def product(self, mu: np.ndarray | float) -> np.ndarray:
        return super().product(mu) if self.bend is None else self.bend(np.asarray(mu))

    def value(self, mu: np.ndarray) -> np.ndarray:
        return super().value(mu) if self.level is None else self.level(mu)


LOGISTIC = MarginLoss("logistic").product
BENT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zero_at_zero": lambda mu: LOGISTIC(mu) + 1e-3,
    "not_monotonic": lambda mu: -mu,
    "falls_before_zero": lambda mu: np.minimum(LOGISTIC(mu), 5.0),
    "not_above_zero_after": lambda mu: LOGISTIC(mu) + 1e-3 * (mu > 10),
    "tends_to_zero": lambda mu: LOGISTIC(mu) - 1e-3,
    "zero_after_one": lambda mu: np.where(mu < 1, -mu, -1e-3),
    "at_most_two": lambda mu: LOGISTIC(mu) * np.cos(mu),
    "twin_larger_before_turn": lambda mu: -mu,
    "equation_11": lambda mu: LOGISTIC(mu) + 1e-3,
}
EVERYWHERE = ("zero_at_zero", "not_monotonic", "falls_before_zero", "not_above_zero_after")
SMOOTH = ("tends_to_zero", "at_most_two", "twin_larger_before_turn")
HOLD = {
    **dict.fromkeys(EVERYWHERE, BINARY),
    **dict.fromkeys(SMOOTH, ("logistic", "exponential")),
    "zero_after_one": ("hinge",),
    "equation_11": ("logistic",),
    "equation_35": (),
}


def test_every_fact_holds_where_it_should() -> None:
    assert HOLD.keys() == FACTS.keys() == BENT.keys() | {"equation_35"}
    for fact, losses in HOLD.items():
        assert check(fact, list(BINARY), AMOUNT)[0] == [n for n in BINARY if n not in losses], fact


@pytest.mark.parametrize("fact", BENT)
def test_facts_about_losses_can_fail(fact: str) -> None:
    assert not FACTS[fact](Bent(bend=BENT[fact]), AMOUNT)[0]


ZERO_AFTER_ONE = {
    "rises before 0": (lambda mu: np.where(mu < 0, mu, np.where(mu < 1, -mu, 0.0)), True),
    "rises before 1": (lambda mu: np.where(mu < 1, np.abs(mu - 0.5) - 0.5, 0.0), False),
    "constant": (np.zeros_like, False),
    "zero after 1.5": (lambda mu: np.where(mu < 1.5, -mu, 0.0), False),
}


@pytest.mark.parametrize(("product", "holds"), ZERO_AFTER_ONE.values(), ids=ZERO_AFTER_ONE.keys())
def test_zero_after_one_is_of_margins_from_0(product: Callable, holds: bool) -> None:
    loss: Any = SimpleNamespace(product=product)
    assert FACTS["zero_after_one"](loss, AMOUNT)[0] == holds


def test_three_margins_of_one_value_are_too_many() -> None:
    cubic: Any = SimpleNamespace(product=lambda mu: mu**3 - 3 * mu)
    assert FACTS["at_most_two"](cubic, AMOUNT) == (False, 3.0)


def test_a_loss_whose_slope_is_equation_35_is_told() -> None:
    """Minus the integral of μ/(1 + e^μ) is μ·log(1 + e^−μ) − Li₂(−e^−μ)."""
    integral = Bent(level=lambda mu: mu * np.logaddexp(0, -mu) - spence(1 + np.exp(-mu)))
    holds, gap = FACTS["equation_35"](integral, AMOUNT)
    assert holds and gap < AMOUNT


def test_no_more_than_two_margins_give_one_value() -> None:
    for name in ("logistic", "exponential"):
        assert check("at_most_two", [name], AMOUNT) == ([], 2.0)
    wrong, most = check("at_most_two", ["hinge"], AMOUNT)
    assert wrong == ["hinge"] and most == 1 + (MARGINS >= 1).sum()
    assert roots(MarginLoss("hinge"), -0.51) == [pytest.approx(0.51)]
    assert roots(MarginLoss("hinge"), 0.0)[:2] == [0.0, 1.0]


@pytest.mark.parametrize("name", ["logistic", "exponential"])
@pytest.mark.parametrize("mu", [-3.01, 0.51, 1.9, 6.3])
def test_margins_of_the_attack_are_all_there_are(name: str, mu: float) -> None:
    loss = MarginLoss(name)
    product = float(loss.product(mu))
    found = roots(loss, product)
    assert len(found) == (1 if mu < 0 else 2)
    np.testing.assert_allclose(found, loss.margins(product), rtol=1e-6)
    assert min(abs(root - mu) for root in found) < 1e-6


def test_the_twin_is_smaller_only_behind_the_turn() -> None:
    wrong, least = check("twin_larger_before_turn", ["logistic"], AMOUNT)
    assert wrong == [] and 1 < least < 1.3
    assert MarginLoss("logistic").turn == pytest.approx(1.278, abs=5e-4)


@pytest.mark.parametrize(("key", "value"), [("fact", "rises"), ("losses", ["square"])])
def test_unknown_facts_and_losses_are_refused(key: str, value: Any) -> None:
    known = {"form": "loss", "fact": next(iter(FACTS)), "losses": list(BINARY)}
    Loss.model_validate(known)
    with pytest.raises(ValidationError, match="is not one of"):
        Loss.model_validate({**known, key: value})


def test_effects_of_nothing_are_refused() -> None:
    pair = {"pairs": [], "among": [{}, {}]}
    with pytest.raises(ValidationError, match="pairs"):
        Effect.model_validate({"form": "effect", "unit": "image", **pair})
