"""What a verdict needs: a window that can refuse, tests to both sides, and a finding to compare."""

import math

import numpy as np
import pytest

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
from gradleak.claims import statistics, tally
from gradleak.claims.power import Window, closeness, needed, printed_range
from gradleak.claims.statement import Statement, Tolerance
from gradleak.errors import ConfigError


def printed(value, decimals=None, spread=0.0):
    """A number as a paper prints it."""
    return Statement(id="c", statement="c.", paper_value=value, decimals=decimals, spread=spread)


def scores(values, metric="mse", where=WHERE):
    return [score(where, place, metric, value) for place, value in enumerate(values)]


def judged(folder, values, tolerance="prediction", metric="mse", **more):
    query = {**RUNS, "metric": metric}
    evidence = read(folder, scores(values, metric))
    return outcome(folder, query, tolerance, evidence, kind="value", **more)


@pytest.mark.parametrize(
    ("metric", "low", "high", "wide", "words"),
    [
        ("mse", 1.0, 9.9, False, "factor 9.9"),
        ("mse", 1.0, 10.2, True, "factor 10.2"),
        ("psnr", 20.0, 29.9, False, "9.9 dB"),
        ("psnr", 20.0, 30.1, True, "10.1 dB"),
        ("ssim", 0.05, 0.9, False, "0.05 to 0.9"),
        ("ssim", -0.01, 0.2, True, "-0.01 to 0.2"),
        ("lpips_alex", 0.0, 0.2, True, "0 to 0.2"),
        ("accuracy", 9.0, 80.0, False, "factor 8.89"),
        ("accuracy", -1.0, 80.0, True, "without limit"),
    ],
)
def test_a_window_is_too_wide_if_hardly_any_value_would_miss_it(metric, low, high, wide, words):
    window = Window(printed(0.1), metric, low, high)
    assert (window.too_wide, str(window)) == (wide, words)


def test_the_papers_rounding_and_spread_widen_the_window():
    # ± of an error is a factor: v ± v reaches from half to twice, and not to 0.
    assert printed_range(printed(1.1e-6, spread=1.1e-6), "mse") == (0.55e-6, 2.2e-6)
    assert printed_range(printed(20.0, spread=3.0), "psnr") == (17.0, 23.0)
    near = Window(printed(1.1e-6, spread=1.1e-6), "mse", 1e-10, 2e-10)
    assert not near.holds
    assert Window(printed(2.0), "mse", 1.0, 5.0).width == 5
    assert Window(printed(2.0, spread=2.0), "mse", 1.0, 5.0).width == pytest.approx(20)
    low, high = Window(printed(20.0, spread=3.0), "psnr", 18.0, 21.0).ends
    assert (low, high) == (15.0, 24.0)


def test_what_all_rounds_to_the_printed_number_has_no_need_of_a_narrow_interval():
    zero = printed(0.0, decimals=4)
    assert Window(zero, "mse", 1e-14, 4e-5).rounds and not Window(zero, "mse", 1e-14, 4e-5).too_wide
    assert Window(zero, "mse", 1e-14, 6e-5).too_wide


@pytest.mark.parametrize(
    ("values", "tolerance", "paper", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.05], "prediction", 1.2, "reproduced"),
        ([1.0, 1.1, 0.9, 1.05], "prediction", 3.0, "exceeds"),
        ([1.0, 30.0, 0.1, 3.0], "prediction", 1.2, "not judged"),
        ([1.0, 30.0, 0.1, 3.0], "prediction", 1e9, "exceeds"),
        ([1.0], "prediction", 1.0, "not judged"),
    ],
)
def test_a_number_is_reproduced_only_if_it_could_have_failed(
    tmp_path, values, tolerance, paper, verdict
):
    found = judged(tmp_path, values, tolerance, paper_value=paper)
    assert found["verdict"] == verdict
    wide = verdict == "not judged"
    assert wide == found["reason"].startswith(("too wide: ", "scale: one run"))
    if len(values) > 1:
        assert found["window"].startswith("factor ")


def test_a_wide_window_says_how_many_runs_would_do(tmp_path):
    draws = 10 ** np.linspace(-0.3, 0.3, 6)
    found = judged(tmp_path, draws, paper_value=1.0)
    n = int(found["reason"].partition("n = ")[2].split()[0])
    assert found["verdict"] == "not judged" and n > 6
    rule = Tolerance(rule="prediction", reason="x")
    # As many draws of that spread do, and one fewer do not.
    window = Window(printed(1.0), "mse", 0.1, 10.0)
    assert needed(draws, window, rule) == n
    factors = []
    for count in (n - 1, n):
        half = (
            statistics.stats.t.ppf(0.975, count - 1)
            * np.log10(draws).std(ddof=1)
            * math.sqrt(1 + 1 / count)
        )
        factors.append(10 ** (2 * half))
    assert factors[1] <= 10 < factors[0]
    assert needed(10.0 ** np.array([0, 3, -3.0]), window, rule) is None
    assert needed(np.array([1.0]), window, rule) is None


@pytest.mark.parametrize(
    ("ours", "paper", "metric", "near"),
    [
        (0.05123, 0.0512, "mse", "as printed"), (0.055, 0.0512, "mse", "10 %"),
        (0.042, 0.0512, "mse", "25 %"), (0.1, 0.0512, "mse", "factor 2"),
        (0.5, 0.0512, "mse", "factor 10"), (0.6, 0.0512, "mse", "beyond"),
        (20.4, 20.0, "psnr", "10 %"), (17.2, 20.0, "psnr", "factor 2"),
        (31, 20.0, "psnr", "beyond"),
        (0.46, 0.5, "ssim", "10 %"), (-0.1, 0.5, "ssim", "beyond"),
        (math.nan, 0.5, "ssim", ""),
    ],
)  # fmt: skip
def test_closeness_is_a_ratio_of_errors(ours, paper, metric, near):
    assert closeness(printed(paper, decimals=4 if metric == "mse" else 2), ours, metric) == near
    assert closeness(Statement(id="c", statement="c."), 1.0, "mse") == ""


ONE = [0.1, 0.11, 0.09, 0.1, 0.12, 0.1]
TREND = {
    "form": "trend", "metric": "mse", "sign": "positive", "missing": "failed",
    "points": [{"x": x, "where": {**WHERE, "model": f"m{x}"}} for x in range(4)],
}  # fmt: skip
UP, DOWN = [1.0, 1.1, 1.2, 1.3, 1.2, 1.1], [0.01, 0.02, 0.01, 0.03, 0.02, 0.01]
MIXED = [0.05, 0.2, 0.05, 0.2, 0.05, 0.2]


@pytest.mark.parametrize(
    ("query", "tolerance", "holds", "fails", "neither"),
    [
        (COMPARE, "test", (ONE, UP), (ONE, DOWN), (ONE, MIXED)),
        (CLOSE, "alike", (ONE, ONE), (ONE, UP), (ONE, [0.1, 0.5, 0.1, 0.4, 0.1, 0.1])),
        (LIMIT, "most", (ONE, ONE), ([3.0] * 6, ONE), ([1, 3, 1, 3, 1, 3], ONE)),
        (SHARE, "most", (ONE, UP), (UP, ONE), (ONE, ONE)),
    ],
)
def test_runs_that_cannot_tell_are_not_told_apart(
    tmp_path, query, tolerance, holds, fails, neither
):
    verdict = {"reproduced": holds, "differs": fails, "not told apart": neither}
    for name, (one, other) in verdict.items():
        rows = scores(one) + scores(other, where=OTHER)
        tolerances = {"alike": {"rule": "equivalence", "amount": 0.05, "reason": "A test."}}
        tolerances |= {
            "test": {"rule": "alpha", "reason": "A test."},
            "most": {"rule": "at_most", "amount": 2, "reason": "A test."},
        }
        claims = claims_file(tmp_path, [claim("c", query, tolerance)], tolerances=tolerances)
        found = verdicts(claims, read(tmp_path, rows)).loc["c"]
        assert found["verdict"] == name, (query["form"], found["reason"])
        assert (found["p"] < 0.05) == (name != "not told apart")
        assert found["window"] and found["evidence"] == "r"


@pytest.mark.parametrize(
    ("rising", "verdict"),
    [(1, "reproduced"), (-1, "differs"), (0, "not told apart")],
)
def test_a_trend_to_neither_side(tmp_path, rising, verdict):
    rng, rows = np.random.default_rng(0), []
    for x in range(4):
        values = 5 + rising * x + rng.normal(0, 0.3, 6)
        rows += scores(values, where={**WHERE, "model": f"m{x}"})
    found = outcome(tmp_path, TREND, "test", read(tmp_path, rows))
    assert found["verdict"] == verdict
    assert (found["low"] < 0 < found["high"]) == (verdict == "not told apart")


def test_holm_adjusts_for_the_number_of_tests():
    p = np.array([0.04, 0.001, 0.02, 0.5])
    assert statistics.adjusted(p) == pytest.approx([0.08, 0.004, 0.06, 0.5])
    assert statistics.adjusted(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]


def test_tests_of_the_paper_and_of_ours_are_counted_apart(tmp_path):
    rows = scores(ONE) + scores(UP, where=OTHER)
    entries = [claim(f"c{k}", COMPARE, "test", whose=w) for k, w in enumerate(["paper"] * 3)]
    entries.append(claim("ours", COMPARE, "test", whose="ours"))
    frame = verdicts(claims_file(tmp_path, entries), read(tmp_path, rows))
    p = frame.loc["ours", "p"]
    assert frame.loc["ours", "p"] == pytest.approx(1 / 64)
    assert frame.loc["ours", "holm"] == 2 * p
    # Twice, since the opposite was asked as well.
    assert frame.loc["c0", "holm"] == pytest.approx(3 * 2 * p)
    assert tally.of_tests(frame.reset_index().query("whose == 'paper'")) == {
        "tests": 3, "hold": 3, "hold_holm": 0, "fail": 0, "fail_holm": 0
    }  # fmt: skip


def test_one_batch_is_one_value_of_its_best_image(tmp_path):
    rows = [score(WHERE, place, "ssim", 0.5, batch=0) for place in range(6)]
    query = {**RUNS, "metric": "ssim", "of": "batches", "take": "max"}
    for paper in (0.5, 0.9):
        more = {"kind": "value", "paper_value": paper}
        found = outcome(tmp_path, query, "same", read(tmp_path, rows), **more)
        assert found["verdict"] == "not judged" and "a single value" in found["reason"]


def test_a_tolerance_that_is_too_wide_by_itself_is_named(tmp_path):
    more = {"tolerances": {"wide": {"rule": "mean", "factor": 4, "reason": "A test."}}}
    entry = claim("c", RUNS, "wide", kind="value", paper_value=1.0)
    file = claims_file(tmp_path, [entry], **more)
    found = verdicts(file, read(tmp_path, scores([1.0, 1.001, 0.999]))).loc["c"]
    assert found["verdict"] == "not judged"
    assert "the tolerance and the paper's ± alone are as wide" in found["reason"]


def test_several_comparisons_are_contradicted_with_care(tmp_path):
    third = {**WHERE, "attack": "c"}
    pairs = [{"better": WHERE, "than": OTHER}, {"better": WHERE, "than": third}]
    rows = scores(UP[:5]) + scores(ONE[:5], where=OTHER) + scores(ONE[:5], where=third)
    query = {**COMPARE, "comparisons": pairs}
    found = outcome(tmp_path, query, "test", read(tmp_path, rows))
    assert found["verdict"] == "not told apart" and found["p"] == pytest.approx(2 / 32)


NOTHING = [{"metric": "psnr", "at_most": 8.0, "reason": "Noise scores as much."}]


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [(5.0, 4.9, "not judged"), (5.0, 20.0, "exceeds"), (20.0, 5.0, "differs")],
)
def test_failed_searches_are_not_compared(tmp_path, paper, ours, verdict):
    values = ours + np.linspace(-0.1, 0.1, 6)
    found = judged(tmp_path, values, metric="psnr", paper_value=paper, nothing=NOTHING)
    assert found["verdict"] == verdict
    said = "nothing: neither the paper's search nor ours" in found["reason"]
    assert said == (verdict == "not judged")
    assert found["ours"] == pytest.approx(ours)


def test_a_definition_is_counted_by_itself(tmp_path):
    # A single draw says nothing of a value, whichever way it comes out.
    for paper in (2.0, 3.0):
        found = judged(tmp_path, [2.0], "same", paper_value=paper)
        assert found["verdict"] == "not judged" and "a single value" in found["reason"]
    evidence = read(tmp_path, scores([2.0]))
    for value, verdict in ((2.0, "by definition"), (3.0, "differs")):
        found = outcome(tmp_path, RUNS, "same", evidence, kind="definition", paper_value=value)
        assert found["verdict"] == verdict


def test_a_run_that_is_too_short_says_what_it_lacks(tmp_path):
    needs = {"scale": "paper", "why": "800 of 20,000 steps"}
    found = judged(tmp_path, ONE, paper_value=0.1, needs=needs)
    words = "scale: needs at least paper, this is laptop: 800 of 20,000 steps"
    assert (found["verdict"], found["reason"]) == ("not judged", words)


def _grid(**more):
    columns = [
        {"id": "mse", "column": "A", "metric": "mse", "decimals": 1, "tolerance": "twofold"},
        {"id": "psnr", "column": "A", "metric": "psnr", "decimals": 1, "tolerance": "twofold"},
    ]
    for column in columns:
        column["query"] = {"form": "runs", "metric": column["metric"], "where": WHERE}
    columns[1] |= more.pop("psnr", {"repeats": "mse"})
    head = {"id": "g", "table": "t", "locator": "x", "kind": "value", "statement": "{row} {value}."}
    rows = [{"id": "r", "row": "R", "values": [0.1, 10.0]}, {"id": "o", "row": "O", "like": "r"}]
    return {**head, "columns": columns, "rows": rows, **more}


def test_a_printed_number_is_one_claim(tmp_path):
    file = claims_file(tmp_path, [], grids=[_grid()])
    assert [one.id for one in file.judged()] == ["g.r.mse"]
    assert len(file.claims) == 4
    rows = scores(ONE) + scores([-10 * math.log10(v) for v in ONE], "psnr")
    frame = verdicts(file, read(tmp_path, rows))
    assert list(frame.index) == ["g.r.mse"] and frame["evidence"].tolist() == ["r"]
    file = claims_file(tmp_path, [], grids=[_grid(definitions=["r.*"])])
    assert {one.kind for one in file.claims} == {"value", "definition"}


def test_cells_that_follow_from_sizes_need_nothing_and_a_claim_says_so_itself(tmp_path):
    needs = {"images": "real", "scale": "paper", "why": "short"}
    psnr = {"kind": "definition", "repeats": "mse"}
    file = claims_file(tmp_path, [], grids=[_grid(needs=needs, definitions=["r.mse"], psnr=psnr)])
    found = {one.id: one.needs.model_dump() for one in file.claims}
    nothing = {"images": None, "scale": "smoke", "why": ""}
    assert found["g.r.mse"] == found["g.r.psnr"] == found["g.o.psnr"] == nothing
    assert found["g.o.mse"] == needs
    evidence = read(tmp_path, scores([2.0]))
    for scale, verdict in (("paper", "not judged"), ("laptop", "by definition")):
        query = {"kind": "definition", "paper_value": 2.0, "needs": {"scale": scale}}
        assert outcome(tmp_path, RUNS, "same", evidence, **query)["verdict"] == verdict


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"definitions": ["x.*"]}, "'x.*' matches no cell"),
        ({"psnr": {"repeats": "none"}}, "'none' is no column"),
        ({"psnr": {"kind": "definition", "needs": {"scale": "paper"}}}, "leave needs out"),
    ],
)
def test_a_grid_that_contradicts_itself_is_refused(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words.replace("*", r"\*")):
        claims_file(tmp_path, [], grids=[_grid(**change)])


@pytest.mark.parametrize("more", [{}, {"at_most": 1, "at_least": 2}])
def test_nothing_has_one_limit(tmp_path, more):
    entry = claim("c", RUNS, "same", nothing=[{"metric": "mse", "reason": "x", **more}])
    with pytest.raises(ConfigError, match="exclude each other"):
        claims_file(tmp_path, [entry])
