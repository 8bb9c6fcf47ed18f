"""Units of a verdict: one draw is none, images of a batch are one, few batches are few."""

import math

import numpy as np
import pytest
from scipy import stats

from claims_synthetic import (
    CLOSE,
    COMPARE,
    LIMIT,
    OTHER,
    RUNS,
    SHARE,
    WHERE,
    claim,
    claims_file,
    outcome,
    read,
    score,
    verdicts,
)
from gradleak.claims.power import closeness
from gradleak.claims.statement import Statement
from gradleak.claims.statistics import floored, freedom, p_words

EFFECT = {
    "form": "effect", "unit": "image", "pairs": [{"one": WHERE, "other": WHERE}],
    "among": [WHERE, OTHER],
}  # fmt: skip
ALIKE = {"alike": {"rule": "equivalence", "amount": 0.5, "reason": "A test."}}
SIDE = {"table": "acc", "column": "ours"}
LESS = {"less": {**SIDE, "where": {"name": "low"}}, "more": {**SIDE, "where": {"name": "high"}}}


def columns(folder, kind, **more):
    table = [{"name": "low", "ours": 1.0}, {"name": "high", "ours": 2.0}]
    query = {"form": "columns", "comparisons": [LESS]}
    return outcome(folder, query, "same", read(folder, acc=table), kind=kind, **more)


def test_an_order_of_single_values_is_not_judged_without_a_test(tmp_path):
    found = columns(tmp_path, "order")
    assert (found["verdict"], found["ours"]) == ("not judged", 1.0)
    assert found["reason"].startswith("one draw: an order of single values, without a test; 1 of 1")
    # Where nothing is random, one comparison decides.
    assert columns(tmp_path, "exact")["verdict"] == "reproduced"
    assert columns(tmp_path, "definition")["verdict"] == "by definition"
    # What a larger scale lacks comes first.
    reason = columns(tmp_path, "order", needs={"scale": "paper"})["reason"]
    assert reason == "scale: needs at least paper, this is laptop"


def test_parts_of_one_training_each_leave_their_sentence_open(tmp_path):
    whole = {"id": "all", "statement": "It holds everywhere."}
    query = {"form": "columns", "comparisons": [LESS]}
    file = claims_file(tmp_path, [claim(name, query, "same", part_of=whole) for name in "xy"])
    table = [{"name": "low", "ours": 1.0}, {"name": "high", "ours": 2.0}]
    found = verdicts(file, read(tmp_path, acc=table))
    assert set(found["verdict"]) == {"not judged"}
    assert tuple(found.loc["all", ["n", "n_ok"]]) == (2, 0)


def test_one_run_shows_no_order(tmp_path):
    for kind, verdict in (("order", "not judged"), ("exact", "reproduced")):
        evidence = read(tmp_path, [score(WHERE, 0, "mse", 1.0)])
        found = outcome(tmp_path, RUNS, "same", evidence, kind=kind, paper_value=1.0)
        assert found["verdict"] == verdict


def test_a_single_value_says_that_more_runs_would_do(tmp_path):
    evidence = read(tmp_path, [score(WHERE, 0, "mse", 1.0)])
    found = outcome(tmp_path, RUNS, "same", evidence, kind="value", paper_value=3.0)
    assert found["verdict"] == "not judged" and found["reason"] == (
        "one draw: a single value has no spread; not all equal to the paper's value; "
        "two or more runs would give an interval"
    )


def test_a_count_of_several_runs_is_no_single_draw(tmp_path):
    evidence = read(tmp_path, acc=[{"name": "searches", "ours": 0, "n": 20}])
    query = {"form": "column", **SIDE, "where": {}}
    assert outcome(tmp_path, query, "least", evidence)["verdict"] == "not judged"
    found = outcome(tmp_path, {**query, "units": "n"}, "least", evidence)
    assert tuple(found[["verdict", "n", "n_ok"]]) == ("differs", 20, 20)
    assert found["reason"].endswith(", over 20 n")
    found = outcome(tmp_path, {**query, "units": "n", "shared": "one training"}, "least", evidence)
    assert found["reason"].endswith(", over 20 n, one training")


def test_each_of_the_units_behind_a_value_has_to_agree(tmp_path):
    query = {"form": "column", **SIDE, "where": {}, "units": "trainings", "ends": ["low", "high"]}
    row = {"name": "net", "ours": 1.5, "trainings": 2}
    for ends, verdict in (((1.1, 1.9), "reproduced"), ((0.9, 2.1), "differs")):
        evidence = read(tmp_path, acc=[row | dict(zip(("low", "high"), ends, strict=True))])
        found = outcome(tmp_path, query, "most", evidence, kind="value")
        assert tuple(found[["verdict", "ours", "n"]]) == (verdict, 1.5, 2)
        assert tuple(found[["low", "high"]]) == ends
        assert found["reason"].endswith(", over 2 trainings")
    # In a table of earlier versions a value is one.
    evidence = read(tmp_path, acc=[{"name": "net", "ours": 1.5}])
    found = outcome(tmp_path, query, "most", evidence, kind="value")
    assert found["reason"].startswith("one draw: a single value has no spread")


def test_estimates_tell_of_how_many_trainings_they_are(tmp_path):
    rows = [
        {"name": name, "ours": ours, "error": 0.5, "tested": 2000, "trainings": count}
        for name, ours, count in (("low", 80, 2), ("high", 85, 3))
    ]
    found = estimated(tmp_path, rows)
    assert found["reason"].endswith("over 2000 test images, 2 trainings each")
    found = estimated(tmp_path, [{**rows[0], "trainings": 1}, rows[1]])
    assert found["reason"].endswith("over 2000 test images, one training each")


def estimated(folder, rows, **query):
    """Outcome of a comparison of two rows: name, value, error, and columns of counts."""
    query = {"form": "estimates", "comparisons": [LESS], **query}
    return outcome(folder, query, "test", read(folder, acc=rows))


def test_estimates_count_test_images_and_tell_of_one_training(tmp_path):
    rows = [
        {"name": "low", "ours": 80, "error": 0.5, "n": 3, "tested": 2000},
        {"name": "high", "ours": 82, "error": 0.5, "n": 1, "tested": 5000},
    ]
    found = estimated(tmp_path, rows)
    assert tuple(found[["verdict", "n", "n_ok"]]) == ("reproduced", 2000, 2000)
    assert found["reason"].endswith("over 2000 test images, one training each")
    p = 2 * stats.norm.sf(2 / math.hypot(0.5, 0.5))
    assert found["p"] == pytest.approx(p)
    unknown = [{key: row[key] for key in ("name", "ours", "error")} for row in rows]
    found = estimated(tmp_path, unknown)
    assert found["reason"] == "data: table acc has no column 'tested'"


@pytest.mark.parametrize(("gap", "verdict"), [(2.4, "reproduced"), (1.9, "not told apart")])
def test_few_batches_are_tested_with_students_t(tmp_path, gap, verdict):
    batches, error = 10, 1.0
    # The table's error is such that 1.96 of it is half of Student's interval.
    widened = error * stats.t.ppf(0.975, batches - 1) / stats.norm.ppf(0.975)
    rows = [
        {"name": "low", "ours": 0, "error": 0.0, "batches": batches},
        {"name": "high", "ours": gap, "error": widened, "batches": batches},
    ]
    found = estimated(tmp_path, rows, unit="batch")
    assert found["verdict"] == verdict and found["n"] == 10
    assert found["p"] == pytest.approx(2 * stats.t.sf(gap / error, 9))
    half = error * stats.t.ppf(0.975, 9)
    assert tuple(found[["low", "high"]]) == pytest.approx((gap - half, gap + half))
    assert "over 10 batches" in found["reason"] and "training" not in found["reason"]


def test_draws_are_few_and_one_is_none(tmp_path):
    rows = [
        {"name": "low", "ours": 10, "error": 1.0, "n": 4},
        {"name": "high", "ours": 13, "error": 1.0, "n": 4},
    ]
    found = estimated(tmp_path, rows, unit="draw")
    # Welch's degrees of freedom: of two means of four, 6.
    assert found["p"] == pytest.approx(2 * stats.t.sf(3 / math.sqrt(2), 6))
    assert tuple(found[["verdict", "n"]]) == ("not told apart", 4)
    for more in ({"unit": "draw", "units": 1}, {"unit": "batch", "units": 1}):
        found = estimated(tmp_path, rows, **more)
        assert (found["verdict"], found["ours"], found["n"]) == ("not judged", 3.0, 1)
        assert found["reason"].startswith("one draw: two or more ") and math.isnan(found["low"])


def test_degrees_of_freedom_are_those_of_the_means_that_vary():
    assert freedom([(0.0, 10), (2.0, 10)]) == 9
    assert freedom([(1.0, 5), (1.0, 5)]) == pytest.approx(8)
    assert freedom([(0.0, 10), (0.0, 10)]) == math.inf


def test_a_p_value_has_a_floor(tmp_path):
    assert (floored(0.0), floored(1e-300), floored(0.03)) == (1e-16, 1e-16, 0.03)
    assert math.isnan(floored(math.nan))
    assert (p_words(1e-20), p_words(0.0312), p_words(0.0)) == (
        "p < 1e-16",
        "p = 0.031",
        "p < 1e-16",
    )
    same = [score(where, k, "mse", 0.1) for where in (WHERE, OTHER) for k in range(6)]
    file = claims_file(tmp_path, [claim("c", CLOSE, "alike")], tolerances=ALIKE)
    found = verdicts(file, read(tmp_path, same)).loc["c"]
    assert (found["verdict"], found["p"], found["holm"]) == ("reproduced", 1e-16, 2e-16)
    many = [score(WHERE, k, "mse", 0.1) for k in range(60)]
    found = outcome(tmp_path, LIMIT, "most", read(tmp_path, many))
    assert found["p"] == 1e-16 and "p < 1e-16" in found["reason"]


def shared(batches, images=6):
    """Runs of two attacks on images that share a batch; the second attack is clearly worse."""
    spread = np.linspace(0, 0.01, images)
    return [
        score(where, images * batch + k, "mse", value + spread[k] + 0.001 * batch, batch=batch)
        for where, value in ((WHERE, 0.1), (OTHER, 0.6))
        for batch in range(batches)
        for k in range(images)
    ]


@pytest.mark.parametrize(
    ("query", "tolerance"),
    [
        (COMPARE, "test"), (CLOSE, "wide"), (LIMIT, "most"), (SHARE, "most"), (EFFECT, "test")
    ],
)  # fmt: skip
def test_images_of_a_batch_share_a_gradient_and_are_one(tmp_path, query, tolerance):
    tolerances = {"wide": {"rule": "equivalence", "amount": 1, "reason": "A test."}}

    def judged(batches):
        file = claims_file(tmp_path, [claim("c", query, tolerance)], tolerances=tolerances)
        return verdicts(file, read(tmp_path, shared(batches))).loc["c"]

    found = judged(1)
    assert (found["verdict"], found["reason"]) == (
        "not judged", "one draw: one batch; 5 batches can reach a p-value of 0.05"
    )  # fmt: skip
    assert judged(4)["reason"].startswith("scale: 4 batches cannot reach")
    found = judged(5)
    assert found["verdict"] == "reproduced" and "5 batches" in found["reason"]
    # Our number is shown where too few batches leave it unjudged.
    if query["form"] not in ("share", "effect"):
        assert math.isfinite(judged(1)["ours"])


def test_images_of_batches_of_their_own_are_units(tmp_path):
    rows = [score(w, k, "mse", v) for w, v in ((WHERE, 0.1), (OTHER, 0.6)) for k in range(6)]
    found = outcome(tmp_path, COMPARE, "test", read(tmp_path, rows))
    assert found["verdict"] == "reproduced" and "over 6 images" in found["reason"]


@pytest.mark.parametrize(
    ("decimals", "ours", "near"), [(None, 0.0, "as printed"), (4, 4e-5, "as printed"),
                                   (None, 1e-9, ""), (2, 1125.0, ""), (2, -1.0, "")],
)  # fmt: skip
def test_nothing_is_a_factor_from_0(decimals, ours, near):
    zero = Statement(id="c", statement="c.", paper_value=0.0, decimals=decimals)
    assert closeness(zero, ours, "mse") == near
    # A difference of sign from another number is one.
    assert closeness(zero.model_copy(update={"paper_value": 0.5}), -0.5, "mse") == "beyond"
