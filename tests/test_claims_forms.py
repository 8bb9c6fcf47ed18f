"""Forms of claims that FedKL needs: estimates, arithmetic on cells; facts about losses."""

from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.special import spence

from claims_synthetic import claim, claims_file, outcome, read, score, verdicts
from gradleak.claims.forms.loss import FACTS, MARGINS, check, roots
from gradleak.claims.forms.paired import Effect
from gradleak.errors import ConfigError
from gradleak.models.losses import BINARY, MarginLoss


def _told(folder, rows, tolerance, *pairs):
    """Outcome of comparisons of accuracies, of which each row has a name, a value and an error."""
    names = ("name", "ours", "error")
    table = [dict(zip(names, row, strict=True)) | {"tested": 2000} for row in rows]
    side = {"table": "acc", "column": "ours"}
    less = [
        {key: {**side, "where": {"name": n}} for key, n in zip(("less", "more"), pair, strict=True)}
        for pair in pairs
    ]
    query = {"form": "estimates", "comparisons": less}
    return outcome(folder, query, tolerance, read(folder, acc=table))


@pytest.mark.parametrize(
    ("tolerance", "pairs", "verdict"),
    [
        ("test", [("low", "high")], "reproduced"),
        ("test", [("high", "low")], "differs"),
        ("test", [("low", "near")], "not told apart"),
        ("test", [("low", "near"), ("high", "low")], "differs"),
        ("test", [("low", "high"), ("low", "near")], "not told apart"),
        ("close", [("near", "low")], "reproduced"),
        ("close", [("high", "low")], "differs"),
        ("close", [("rough", "low")], "not told apart"),
    ],
)
def test_estimates_are_told_apart_or_not(tmp_path, tolerance, pairs, verdict):
    rows = [("low", 80, 0.3), ("near", 80.9, 0.4), ("high", 90, 0.4), ("rough", 82, 2)]
    found = _told(tmp_path, rows, tolerance, *pairs)
    assert found["verdict"] == verdict
    if len(pairs) == 1:
        one, other = ({name: rest for name, *rest in rows}[name] for name in pairs[0])
        # The interval is that of a difference.
        half = 1.959964 * np.hypot(one[1], other[1])
        expected = other[0] - one[0]
        limits = (expected, expected - half, expected + half)
        assert tuple(found[["ours", "low", "high"]]) == pytest.approx(limits)


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
    return outcome(folder, query, "same", grids=[_grid([10, 30, 20.1])], **more)


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


def test_what_cannot_be_asked_is_refused(tmp_path):
    for relation, more, words in (
        ({"of": "value", "cells": ["g.r9.v"]}, {"paper_value": 1}, "is called 'g.r9.v'"),
        ({"of": "value", "cells": ["g.*"]}, {"paper_value": 1}, "value is of 1 numbers, but"),
        ({"of": "value", "cells": ["g.r0.v"]}, {}, "give equals or paper_value"),
    ):
        with pytest.raises(ConfigError, match=words):
            _related(tmp_path, relation, **more)
    with pytest.raises(ConfigError, match=r"claim 'c': table acc has 2 rows for name a"):
        _told(tmp_path, [("a", 1, 1), ("b", 2, 1)] * 2, "test", ("a", "b"))
    with pytest.raises(ValidationError, match="pairs"):
        Effect.model_validate({"form": "effect", "unit": "image", "pairs": [], "among": [{}, {}]})


@pytest.mark.parametrize(("high", "verdict"), [(25, "reproduced"), (15, "refuted")])
def test_numbers_in_a_range(tmp_path, high, verdict):
    query = {"form": "range", "cells": ["g.*"], "low": 5, "high": high}
    found = outcome(tmp_path, query, "half", grids=[_grid([10, 30, 20])])
    assert (found["verdict"], found["n"]) == (verdict, 3)
    assert found["ours"] == pytest.approx(2 / 3 if high == 25 else 1 / 3)


WHERE = {"result": "r", "model": "m", "attack": "a"}


def test_the_mean_of_one_image_has_no_interval(tmp_path):
    good = score(WHERE, 0, "ssim", 0.5)
    lost = score(WHERE, 1, "ssim", None, status="failed", reason="diverged")
    query = {"form": "runs", "where": WHERE, "metric": "ssim"}
    for rows, verdict, reason in (
        ([good], "not judged", "scale: one image has no interval"),
        ([good, lost], "differs", "1 of 2 runs failed and are not in the mean"),
    ):
        more = {"kind": "value", "paper_value": 0.5}
        found = outcome(tmp_path, query, "twofold", read(tmp_path, rows), **more)
        assert tuple(found[["verdict", "reason", "ours"]]) == (verdict, reason, 0.5)


def test_printed_values_of_any_metric_are_held_against_sentences(tmp_path):
    grid = _grid([0.2, 0.6])
    grid["columns"][0] |= {"metric": "ssim"}
    grid["columns"][0]["query"] |= {"metric": "ssim"}
    query = {"form": "compare", "metric": "ssim", "unit": "image", "where": {"attack": "a"}}
    one, two = {"model": "m0"}, {"model": "m1"}
    worse = claim("worse", {**query, "comparisons": [{"better": one, "than": two}]}, "test")
    better = claim("better", {**query, "comparisons": [{"better": two, "than": one}]}, "test")
    apart = {**worse, "id": "apart", "apart": True}
    found = verdicts(claims_file(tmp_path, [worse, better, apart], grids=[grid]))["verdict"]
    assert list(found[["worse", "better", "apart"]]) == ["refuted", "not judged", "not judged"]


AMOUNT = 1e-6
LOGISTIC = MarginLoss("logistic").product
# A fact, a function in place of ∂ℓ/∂μ·μ (of ℓ for equation (35)), and whether the fact holds of it.
# Minus the integral of μ/(1 + e^μ) is μ·log(1 + e^−μ) − Li₂(−e^−μ).
CASES = [
    ("zero_at_zero", lambda mu: LOGISTIC(mu) + 1e-3, False),
    ("not_monotonic", lambda mu: -mu, False),
    ("falls_before_zero", lambda mu: np.minimum(LOGISTIC(mu), 5.0), False),
    ("not_above_zero_after", lambda mu: LOGISTIC(mu) + 1e-3 * (mu > 10), False),
    ("tends_to_zero", lambda mu: LOGISTIC(mu) - 1e-3, False),
    ("zero_after_one", lambda mu: np.where(mu < 1, -mu, -1e-3), False),
    ("zero_after_one", lambda mu: np.where(mu < 0, mu, np.where(mu < 1, -mu, 0.0)), True),
    ("zero_after_one", lambda mu: np.where(mu < 1, np.abs(mu - 0.5) - 0.5, 0.0), False),
    ("zero_after_one", np.zeros_like, False),
    ("zero_after_one", lambda mu: np.where(mu < 1.5, -mu, 0.0), False),
    ("at_most_two", lambda mu: LOGISTIC(mu) * np.cos(mu), False),
    ("twin_larger_before_turn", lambda mu: -mu, False),
    ("equation_11", lambda mu: LOGISTIC(mu) + 1e-3, False),
    ("equation_35", lambda mu: mu * np.logaddexp(0, -mu) - spence(1 + np.exp(-mu)), True),
]
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
    assert HOLD.keys() == FACTS.keys() == {fact for fact, *_ in CASES}
    for fact, losses in HOLD.items():
        assert check(fact, list(BINARY), AMOUNT)[0] == [n for n in BINARY if n not in losses], fact


@pytest.mark.parametrize(("fact", "function", "holds"), CASES)
def test_facts_about_losses_can_fail(fact, function, holds):
    loss = SimpleNamespace(product=function, value=function, turn=MarginLoss("logistic").turn)
    assert FACTS[fact](loss, AMOUNT)[0] == holds


def test_no_more_than_two_margins_give_one_value():
    for name in ("logistic", "exponential"):
        assert check("at_most_two", [name], AMOUNT) == ([], 2.0)
    wrong, most = check("at_most_two", ["hinge"], AMOUNT)
    assert wrong == ["hinge"] and most == 1 + (MARGINS >= 1).sum()
    assert roots(MarginLoss("hinge"), -0.51) == [pytest.approx(0.51)]
    assert roots(MarginLoss("hinge"), 0.0)[:2] == [0.0, 1.0]
    cubic = SimpleNamespace(product=lambda mu: mu**3 - 3 * mu)
    assert FACTS["at_most_two"](cubic, AMOUNT) == (False, 3.0)
    # The twin is smaller behind the turn only.
    wrong, least = check("twin_larger_before_turn", ["logistic"], AMOUNT)
    assert wrong == [] and 1 < least < 1.3


@pytest.mark.parametrize("name", ["logistic", "exponential"])
@pytest.mark.parametrize("mu", [-3.01, 0.51, 1.9, 6.3])
def test_margins_of_the_attack_are_all_there_are(name, mu):
    loss = MarginLoss(name)
    product = float(loss.product(mu))
    found = roots(loss, product)
    assert len(found) == (1 if mu < 0 else 2)
    np.testing.assert_allclose(found, loss.margins(product), rtol=1e-6)
    assert min(abs(root - mu) for root in found) < 1e-6
