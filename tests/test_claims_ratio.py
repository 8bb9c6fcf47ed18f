"""Claims about ratios of two sides' means and spreads over runs."""

import numpy as np
import pytest

from claims_synthetic import OTHER, WHERE, claim, claims_file, outcome, read, score, verdicts
from gradleak.claims.forms.ratio import STATISTICS, interval, logarithms
from gradleak.claims.statistics import LEVEL, jackknifed
from gradleak.errors import ConfigError

MEAN = {"form": "ratio", "unit": "image", "of": "mean", "one": WHERE, "other": OTHER}
SPREAD = {**MEAN, "of": "sd"}
RULES = {
    "three": {"rule": "absolute", "amount": 1},
    "larger": {"rule": "at_least", "amount": 1},
}
TOLERANCES = {name: {**rule, "reason": "A test."} for name, rule in RULES.items()}
# Twelve images with a mean of 1, of which the last three are lost by a search.
USUAL = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 2.2, 2.5, 2.8])


def runs(where, values, **more):
    return [score(where, k, "mse", v, **more) for k, v in enumerate(values)]


def judged(folder, query, tolerance, one, other, paper=3.0):
    rows = [
        run
        for where, seeds in ((WHERE, one), (OTHER, other))
        for seed, values in enumerate(np.atleast_2d(seeds))
        for run in runs(where, values, seed=seed)
    ]
    file = claims_file(
        folder, [claim("c", query, tolerance, paper_value=paper)], tolerances=TOLERANCES
    )
    return verdicts(file, read(folder, rows)).loc["c"]


NOISE = np.random.default_rng(0).uniform(0.98, 1.02, USUAL.size)


@pytest.mark.parametrize(
    ("query", "tolerance", "one", "verdict"),
    [
        (MEAN, "three", 2.9 * USUAL * NOISE, "reproduced"),
        (MEAN, "three", 1.2 * USUAL * NOISE, "differs"),
        (MEAN, "three", 9.0 * USUAL * NOISE, "differs"),
        (MEAN, "three", 2.0 * USUAL * NOISE, "not told apart"),
        (MEAN, "larger", 1.2 * USUAL * NOISE, "reproduced"),
        (MEAN, "larger", 0.8 * USUAL * NOISE, "differs"),
        (MEAN, "larger", USUAL[::-1], "not told apart"),
        (SPREAD, "larger", 1.5 * USUAL * NOISE, "reproduced"),
        # The same mean with less spread: the sentence is about the spread.
        (SPREAD, "larger", 1.0 + 0.1 * (USUAL - 1.0) * NOISE, "differs"),
        (SPREAD, "larger", USUAL[::-1], "not told apart"),
    ],
)
def test_a_ratio_of_means_or_of_spreads_is_beyond_a_limit(tmp_path, query, tolerance, one, verdict):
    found = judged(tmp_path, query, tolerance, one, USUAL)
    assert found["verdict"] == verdict, found["reason"]
    of = np.mean if query is MEAN else lambda values: np.std(values, ddof=1)
    assert found["ours"] == pytest.approx(of(one) / of(USUAL))
    assert found["low"] < found["ours"] < found["high"]
    assert (found["n"], found["n_ok"], found["evidence"]) == (24, 24, "r")
    assert "over 12 images, one draw of the weights" in found["reason"]
    assert (found["p"] < 0.05) == (verdict != "not told apart")


def test_trainings_share_images_and_a_spread_is_that_within_each(tmp_path):
    one = np.stack([2 * USUAL * NOISE, 10 + 4 * USUAL * NOISE])
    other = np.stack([USUAL, 5 + USUAL])
    found = judged(tmp_path, SPREAD, "larger", one, other)
    within = np.sqrt(one.var(axis=1, ddof=1).mean() / other.var(axis=1, ddof=1).mean())
    assert found["ours"] == pytest.approx(within)
    assert found["reason"].endswith("over 12 images, 2 draws of the weights")
    assert found["n"] == 48
    found = judged(tmp_path, MEAN, "larger", one, other)
    assert found["ours"] == pytest.approx(one.mean() / other.mean())


def test_a_failed_run_or_few_images_leave_no_ratio(tmp_path):
    rows = runs(WHERE, 3 * USUAL) + runs(OTHER, USUAL)
    rows[3] |= {"status": "failed", "value": ""}
    found = outcome(tmp_path, MEAN, "least", read(tmp_path, rows))
    assert (found["verdict"], found["n"], found["n_ok"]) == ("differs", 24, 23)
    assert "1 of 24 runs failed" in found["reason"]
    rows[3] |= {"status": "ok", "value": np.inf}
    found = outcome(tmp_path, MEAN, "least", read(tmp_path, rows))
    assert (found["verdict"], found["reason"]) == ("differs", "an error is infinite")
    few = judged(tmp_path, MEAN, "three", 3 * USUAL[:4], USUAL[:4])
    assert few["verdict"] == "not judged" and "4 images cannot reach" in few["reason"]
    assert few["ours"] == pytest.approx(3) and few["window"] == "± 1, p < 0.05"
    one = judged(tmp_path, SPREAD, "larger", USUAL[:1], USUAL[:1])
    assert one["verdict"] == "not judged" and np.isnan(one["ours"])


def test_draws_of_one_side_alone_are_left_out_and_images_need_all_of_them(tmp_path):
    two = np.stack([3 * USUAL * NOISE, 900 * USUAL])
    found = judged(tmp_path, MEAN, "three", two, USUAL)
    assert found["verdict"] == "reproduced" and "one draw" in found["reason"]
    rows = [run for k in (0, 1) for w in (WHERE, OTHER) for run in runs(w, USUAL, seed=k)][:-1]
    found = outcome(tmp_path, MEAN, "least", read(tmp_path, rows))
    assert found["reason"] == "data: images do not all have the same runs"


def test_draws_or_batches_may_be_the_units(tmp_path):
    rows = [
        score(where, k, "mse", factor * (seed + 1) * (k + 1), seed=seed)
        for where, factor in ((WHERE, 3), (OTHER, 1))
        for seed in range(6)
        for k in range(2)
    ]
    found = outcome(tmp_path, {**MEAN, "unit": "seed"}, "least", read(tmp_path, rows))
    assert (found["verdict"], found["ours"]) == ("reproduced", pytest.approx(3))
    assert found["reason"].endswith("over 6 seeds")
    spread = {**SPREAD, "unit": "seed"}
    assert outcome(tmp_path, spread, "least", read(tmp_path, rows))["ours"] == pytest.approx(3)
    shared = [{**row, "batch": row["seed"], "seed": 0} for row in rows]
    found = outcome(tmp_path, MEAN, "least", read(tmp_path, shared))
    assert found["reason"].endswith("over 6 batches, one draw of the weights")


def test_the_papers_rounding_and_spread_widen_its_value(tmp_path):
    def verdict(**printed):
        rows = runs(WHERE, 4.3 * USUAL * NOISE) + runs(OTHER, USUAL)
        entry = claim("c", MEAN, "three", paper_value=3.0, **printed)
        file = claims_file(tmp_path, [entry], tolerances=TOLERANCES)
        return verdicts(file, read(tmp_path, rows)).loc["c"]["verdict"]

    assert verdict() == "differs"
    assert verdict(decimals=0) == verdict(spread=0.5) == "reproduced"


@pytest.mark.parametrize(
    ("query", "tolerance", "more", "words"),
    [
        (MEAN, "three", {}, "paper_value is missing; give it"),
        (MEAN, "three", {"paper_value": 1.0}, "its least ratio is 0, and all are above 0; corr"),
        (MEAN, "close", {}, "its least ratio is -3, and all are above 0; correct it"),
        ({**MEAN, "metric": "ssim"}, "least", {}, "metric 'ssim' may be 0 or in dB"),
    ],
)
def test_what_has_no_ratio_is_refused(tmp_path, query, tolerance, more, words):
    with pytest.raises(ConfigError, match=words):
        claims_file(tmp_path, [claim("c", query, tolerance, **more)], tolerances=TOLERANCES)


def test_pseudo_values_of_a_mean_are_the_values():
    spread = np.array([1.0, 4.0, 2.0, 7.0, 3.0])
    assert jackknifed(lambda kept: spread[kept].mean(), 5) == pytest.approx(spread)


@pytest.mark.parametrize("images", [10, 20])
def test_an_interval_of_a_ratio_holds_the_true_one_about_as_often_as_it_says(images):
    # Skewed errors like a search's, paired by image, whose spreads differ by a factor of 2.
    rng, hits, tries = np.random.default_rng(1), [0, 0], 400
    for _ in range(tries):
        image = rng.normal(0, 0.6, images)
        pair = [np.exp(image + rng.normal(0, 0.4, images)) * size for size in (2.0, 1.0)]
        one, other = (values[:, None] for values in pair)
        for place, of in enumerate(("mean", "sd")):
            low, high = interval(logarithms(STATISTICS[of], one, other))
            hits[place] += low <= 2.0 <= high
    # A spread of skewed values is held less often. Four standard errors of 400 tries are 0.06.
    for hit, short in zip(hits, (0.02, 0.06), strict=True):
        assert abs(hit / tries - (LEVEL - short)) < 0.06
