"""Forms of claims that FedKL needs: estimates, arithmetic on cells, metrics without weights."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.special import spence

from claims_synthetic import claim, claims_file, read, score
from gradleak.claims import Evidence, evaluate
from gradleak.claims.forms.loss import FACTS, MARGINS, check, roots
from gradleak.claims.forms.paired import Effect
from gradleak.errors import ConfigError
from gradleak.models.losses import BINARY, MarginLoss


def _accuracies(**values):
    return [{"name": name, "ours": v, "error": e} for name, (v, e) in values.items()]


def _less(less, more):
    sides, column = {"less": less, "more": more}, {"table": "acc", "column": "ours"}
    return {key: {**column, "where": {"name": name}} for key, name in sides.items()}


def _told(folder, rows, tolerance="above", *pairs):
    query = {"form": "estimates", "comparisons": [_less(*pair) for pair in pairs or [("a", "b")]]}
    claims = claims_file(folder, [claim("c", query, tolerance)])
    return evaluate(claims, read(folder, [], acc=rows), "real", "laptop").iloc[0]


@pytest.mark.parametrize(
    ("tolerance", "pairs", "verdict"),
    [
        ("above", [("low", "high")], "reproduced"),
        ("above", [("high", "low")], "differs"),
        ("above", [("low", "near")], "not judged"),
        ("above", [("low", "near"), ("high", "low")], "differs"),
        ("above", [("low", "high"), ("low", "near")], "not judged"),
        ("close", [("near", "low")], "reproduced"),
        ("close", [("high", "low")], "differs"),
        ("close", [("rough", "low")], "not judged"),
    ],
)
def test_estimates_are_told_apart_or_not(tmp_path, tolerance, pairs, verdict):
    rows = _accuracies(low=(80, 0.5), near=(81, 0.5), high=(90, 0.5), rough=(82, 2))
    found = _told(tmp_path, rows, tolerance, *pairs)
    assert found["verdict"] == verdict
    if verdict == "not judged":
        assert found["reason"].startswith("scale: not told apart")
    if len(pairs) == 1:
        by = {row["name"]: row["ours"] for row in rows}
        assert found["ours"] == by[pairs[0][1]] - by[pairs[0][0]]
        assert found["low"] < found["ours"] < found["high"]


def test_an_interval_is_that_of_a_difference(tmp_path):
    found = _told(tmp_path, _accuracies(a=(80, 0.3), b=(81, 0.4)))
    assert found["high"] - found["ours"] == pytest.approx(1.959964 * 0.5)


def test_an_estimate_is_one_row(tmp_path):
    with pytest.raises(ConfigError, match=r"claim 'c': table acc has 2 rows for name a"):
        _told(tmp_path, _accuracies(a=(1, 1), b=(2, 1)) * 2)


def _grid(values):
    column = {"id": "v", "column": "V", "metric": "mse", "decimals": 1, "tolerance": "twofold"}
    column["query"] = {"form": "runs", "metric": "mse", "where": {"attack": "a"}}
    rows = [
        {"id": f"r{k}", "row": f"R{k}", "where": {"model": f"m{k}"}, "values": [value]}
        for k, value in enumerate(values)
    ]
    head = {"id": "g", "table": "t", "locator": "x", "kind": "value"}
    return {**head, "statement": "{row}: {value}.", "columns": [column], "rows": rows}


def _related(folder, relation, **more):
    query = {"form": "arithmetic", "relations": [relation]}
    claims = claims_file(folder, [claim("c", query, "same", **more)], grids=[_grid([10, 30, 20.1])])
    return evaluate(claims, Evidence(), "real", "laptop").set_index("id").loc["c"]


@pytest.mark.parametrize(
    ("relation", "more", "ours", "verdict"),
    [
        ({"of": "increase", "cells": ["g.r0.v", "g.r1.v"]}, {"paper_value": 200}, 200, True),
        ({"of": "increase", "cells": ["g.r0.v", "g.r1.v"]}, {"paper_value": 190}, 200, False),
        ({"of": "mean", "cells": ["g.r0.v", "g.r1.v"], "equals": "g.r2.v"}, {}, 20, True),
        ({"of": "mean", "cells": ["g.*.v"], "equals": "g.r1.v"}, {}, 60.1 / 3, False),
        ({"of": "difference", "cells": ["g.r1.v", "g.r2.v"]}, {"paper_value": 9.8}, 9.9, True),
        ({"of": "difference", "cells": ["g.r1.v", "g.r2.v"]}, {"paper_value": 9.7}, 9.9, False),
        ({"of": "value", "cells": ["g.r2.v"]}, {"paper_value": 20.5, "decimals": 0}, 20.1, True),
        ({"of": "value", "cells": ["g.r2.v"]}, {"paper_value": 20.5}, 20.1, False),
        ({"of": "value", "cells": ["g.r2.v"]}, {"paper_value": 21, "decimals": 0}, 20.1, False),
        ({"of": "count", "cells": ["g.*"]}, {"paper_value": 3}, 3, True),
    ],
)
def test_printed_numbers_follow_from_others_within_rounding(
    tmp_path, relation, more, ours, verdict
):
    found = _related(tmp_path, relation, **more)
    assert found["ours"] == pytest.approx(ours)
    assert found["verdict"] == ("reproduced" if verdict else "refuted")
    assert verdict or "the paper's own table" in found["reason"]
    assert f"{int(verdict)} of 1 hold" in found["reason"]


@pytest.mark.parametrize(
    ("relation", "more", "words"),
    [
        ({"of": "value", "cells": ["g.r9.v"]}, {"paper_value": 1}, "is called 'g.r9.v'"),
        ({"of": "value", "cells": ["g.*"]}, {"paper_value": 1}, "value is of 1 numbers, but"),
        ({"of": "value", "cells": ["g.r0.v"]}, {}, "give equals or paper_value"),
    ],
)
def test_relations_that_cannot_be_are_refused(tmp_path, relation, more, words):
    with pytest.raises(ConfigError, match=words):
        _related(tmp_path, relation, **more)


@pytest.mark.parametrize(("high", "verdict"), [(25, "reproduced"), (15, "refuted")])
def test_numbers_in_a_range(tmp_path, high, verdict):
    query = {"form": "range", "cells": ["g.*"], "low": 5, "high": high}
    claims = claims_file(tmp_path, [claim("c", query, "half")], grids=[_grid([10, 30, 20])])
    found = evaluate(claims, Evidence(), "real", "laptop").set_index("id").loc["c"]
    assert (found["verdict"], found["n"]) == (verdict, 3)
    assert found["ours"] == pytest.approx(2 / 3 if high == 25 else 1 / 3)


WHERE = {"result": "r", "model": "m", "attack": "a"}


@pytest.mark.parametrize(
    ("failed", "verdict", "reason"),
    [
        (0, "not judged", "scale: one image has no interval"),
        (1, "differs", "1 of 2 runs failed and are not in the mean"),
    ],
)
def test_the_mean_of_one_image_has_no_interval(tmp_path, failed, verdict, reason):
    rows = [score(WHERE, 0, "ssim", 0.5)]
    rows += [score(WHERE, 1, "ssim", None, status="failed", reason="diverged")] * failed
    query = {"form": "runs", "where": WHERE, "metric": "ssim"}
    claims = claims_file(tmp_path, [claim("c", query, "twofold", kind="value", paper_value=0.5)])
    found = evaluate(claims, read(tmp_path, rows), "real", "laptop").iloc[0]
    assert (found["verdict"], found["reason"], found["ours"]) == (verdict, reason, 0.5)


def test_a_metric_without_weights_is_not_judged(tmp_path):
    rows = [score(WHERE, k, "ssim", 0.5) for k in range(3)]
    lacking = {"status": "not_available", "reason": "VGG-16 is missing; put it there"}
    rows += [score(WHERE, k, "lpips_vgg", None, **lacking) for k in range(3)]
    rows += [score(WHERE, 3, "ssim", None, status="failed", reason="diverged")]
    query = {"form": "runs", "where": WHERE}
    entries = [
        claim(name, {**query, "metric": name}, "twofold", kind="value", paper_value=0.5)
        for name in ("lpips_vgg", "ssim", "lpips_alex")
    ]
    claims = claims_file(tmp_path, entries)
    found = evaluate(claims, read(tmp_path, rows), "real", "laptop").set_index("id")
    assert found.loc["lpips_vgg", "verdict"] == "not judged"
    assert found.loc["lpips_vgg", "reason"] == "weights: VGG-16 is missing; put it there"
    assert tuple(found.loc["ssim", ["n", "n_ok"]]) == (4, 3)


def test_printed_values_of_any_metric_are_held_against_sentences(tmp_path):
    grid = _grid([0.2, 0.6])
    grid["columns"][0] |= {"metric": "ssim"}
    grid["columns"][0]["query"] |= {"metric": "ssim"}
    query = {"form": "compare", "metric": "ssim", "unit": "image", "where": {"attack": "a"}}
    one, two = {"model": "m0"}, {"model": "m1"}
    worse = claim("worse", {**query, "comparisons": [{"better": one, "than": two}]}, "test")
    better = claim("better", {**query, "comparisons": [{"better": two, "than": one}]}, "test")
    apart = {**worse, "id": "apart", "apart": True}
    claims = claims_file(tmp_path, [worse, better, apart], grids=[grid])
    found = evaluate(claims, Evidence(), "real", "laptop").set_index("id")
    assert found.loc["worse", "verdict"] == "refuted"
    assert found.loc["better", "verdict"] == found.loc["apart", "verdict"] == "not judged"


AMOUNT = 1e-6


@dataclass(frozen=True)
class Bent(MarginLoss):
    """The logistic loss with another ∂ℓ/∂μ·μ, or another ℓ."""

    name: str = "logistic"
    bend: Callable[[np.ndarray], np.ndarray] | None = None
    level: Callable[[np.ndarray], np.ndarray] | None = None

    def product(self, mu):
        return super().product(mu) if self.bend is None else self.bend(np.asarray(mu))

    def value(self, mu):
        return super().value(mu) if self.level is None else self.level(mu)


LOGISTIC = MarginLoss("logistic").product
BENT = {
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


def test_every_fact_holds_where_it_should():
    assert HOLD.keys() == FACTS.keys() == BENT.keys() | {"equation_35"}
    for fact, losses in HOLD.items():
        assert check(fact, list(BINARY), AMOUNT)[0] == [n for n in BINARY if n not in losses], fact


@pytest.mark.parametrize("fact", BENT)
def test_facts_about_losses_can_fail(fact):
    assert not FACTS[fact](Bent(bend=BENT[fact]), AMOUNT)[0]


ZERO_AFTER_ONE = {
    "rises before 0": (lambda mu: np.where(mu < 0, mu, np.where(mu < 1, -mu, 0.0)), True),
    "rises before 1": (lambda mu: np.where(mu < 1, np.abs(mu - 0.5) - 0.5, 0.0), False),
    "constant": (np.zeros_like, False),
    "zero after 1.5": (lambda mu: np.where(mu < 1.5, -mu, 0.0), False),
}


@pytest.mark.parametrize(("product", "holds"), ZERO_AFTER_ONE.values(), ids=ZERO_AFTER_ONE.keys())
def test_zero_after_one_is_of_margins_from_0(product, holds):
    loss = SimpleNamespace(product=product)
    assert FACTS["zero_after_one"](loss, AMOUNT)[0] == holds


def test_three_margins_of_one_value_are_too_many():
    cubic = SimpleNamespace(product=lambda mu: mu**3 - 3 * mu)
    assert FACTS["at_most_two"](cubic, AMOUNT) == (False, 3.0)


def test_a_loss_whose_slope_is_equation_35_is_told():
    """Minus the integral of μ/(1 + e^μ) is μ·log(1 + e^−μ) − Li₂(−e^−μ)."""
    integral = Bent(level=lambda mu: mu * np.logaddexp(0, -mu) - spence(1 + np.exp(-mu)))
    holds, gap = FACTS["equation_35"](integral, AMOUNT)
    assert holds and gap < AMOUNT


def test_no_more_than_two_margins_give_one_value():
    for name in ("logistic", "exponential"):
        assert check("at_most_two", [name], AMOUNT) == ([], 2.0)
    wrong, most = check("at_most_two", ["hinge"], AMOUNT)
    assert wrong == ["hinge"] and most == 1 + (MARGINS >= 1).sum()
    assert roots(MarginLoss("hinge"), -0.51) == [pytest.approx(0.51)]
    assert roots(MarginLoss("hinge"), 0.0)[:2] == [0.0, 1.0]


@pytest.mark.parametrize("name", ["logistic", "exponential"])
@pytest.mark.parametrize("mu", [-3.01, 0.51, 1.9, 6.3])
def test_margins_of_the_attack_are_all_there_are(name, mu):
    loss = MarginLoss(name)
    product = float(loss.product(mu))
    found = roots(loss, product)
    assert len(found) == (1 if mu < 0 else 2)
    np.testing.assert_allclose(found, loss.margins(product), rtol=1e-6)
    assert min(abs(root - mu) for root in found) < 1e-6


def test_the_twin_is_smaller_only_behind_the_turn():
    wrong, least = check("twin_larger_before_turn", ["logistic"], AMOUNT)
    assert wrong == [] and 1 < least < 1.3
    assert MarginLoss("logistic").turn == pytest.approx(1.278, abs=5e-4)


def test_effects_of_nothing_are_refused():
    pair = {"pairs": [], "among": [{}, {}]}
    with pytest.raises(ValidationError, match="pairs"):
        Effect.model_validate({"form": "effect", "unit": "image", **pair})
