"""Claims: reading claims files and evidence, good and bad, and the statistics."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import claims_rgap
import claims_synthetic as made
from claims_rgap import rank_rows, rgap
from claims_synthetic import Judged, changed, copa, copa_scores, edited, read, verdicts
from conftest import sentence
from gradleak.claims import Evidence, load, statistics
from gradleak.errors import ArtifactError, ConfigError
from gradleak.runtime.tidy import SCORES as SCORE_COLUMNS


def test_every_number_of_both_tables_is_a_claim():
    numbers = [claim for claim in copa().judged() if claim.cell is not None]
    assert sum(claim.cell.table == "copa_table2" for claim in numbers) == 48  # MSE; PSNR repeats it
    assert sum(claim.cell.table == "copa_table1" for claim in numbers) == 32
    known = next(c for c in numbers if c.id == "copa.table2.fig1.v1.truck.copa.mse")
    assert known.paper_value == 0.0512
    where = {"result": "copa_pair", "model": "cnn3_v1_tanh", "name": "truck", "attack": "copa"}
    assert known.query.where == where
    # Placeholders are filled.
    for claim in copa().claims:
        assert not re.search(r'(?<!":)(?<![\[,])\{', claim.model_dump_json()[1:]), claim.id


def last(**changes):
    return lambda data: data["claims"][-1].update(changes)


def best_of_one(data):
    claim = next(claim for claim in data["claims"] if claim["query"].get("best_of"))
    claim["query"]["where"]["attack"] = "copa"


def own_answers_alone(data):
    for claim in data["claims"]:
        if "recovered" in claim["id"]:
            claim["query"].pop("answers", 0)


NAME, RGAP = "copa.table2.psnr_matches_mse", claims_rgap.FILE
BAD = [
    (last(tolerence="test"), [NAME, "tolerence", "remove the key"]),
    (lambda d: d["claims"][-1].pop("locator"), [NAME, "locator", "add the key"]),
    (last(kind="sentence"), ["kind", "'sentence'", "correct the value"]),
    (last(tolerance="loose"), ["'loose'", "define it"]),
    (last(tolerance="test"), ["rule alpha", "printed", "use one of these"]),
    (lambda d: d["claims"].append(d["claims"][-1]), ["twice", "rename"]),
    (lambda d: d["grids"][1]["rows"][0]["values"].pop(), ["fig1.v1.truck", "5 values for 6 col"]),
    (lambda d: d["grids"][1]["exceptions"]["draw_near_zero"].append("f"), ["'f' is no cell"]),
    (lambda d: d["claims"][0].update(foreach={"v": "vs"}), ["foreach.v", "'vs'", "variants"]),
    (lambda d: d["claims"][0].update(statement="{w}"), ["'w'", "foreach"]),
    (best_of_one, ["copa.c.full.fig1", "best_of needs a list of attacks"]),
    (lambda d: d["tolerances"]["full"].pop("amount"), ["tolerances.full", "needs an amount"]),
    (lambda d: d.update(claims="all"), ["claims", "'all'", "correct"]),
]
BAD_RGAP = [
    (lambda d: d["grids"][0]["rows"][0]["values"].__setitem__(0, "1.9 +- 3"), ["no number"]),
    (lambda d: d["grids"][0]["rows"][3].update(like="rgap32"), ["'like'", "rgap32"]),
    (lambda d: d["grids"][1]["columns"][-1].update(like="conv9"), ["'like'", "conv9"]),
    (lambda d: d["claims"][0]["query"].update(fact="zero"), ["fact", "'zero'", "zero_at_zero"]),
    (lambda d: d["claims"][0]["query"].update(losses=["mse"]), ["losses", "'mse'", "hinge"]),
    (own_answers_alone, ["best_of: answer", "add it"]),
]


BAD = [(made.FILE, *case) for case in BAD] + [(RGAP, *case) for case in BAD_RGAP]


def test_what_is_no_yaml_is_refused(tmp_path):
    path = tmp_path / "none.yaml"
    assert "give a readable file" in sentence(ConfigError, load, path)
    path.write_text("claims: [", encoding="utf-8")
    with pytest.raises(ConfigError, match="no valid YAML"):
        load(path)


@pytest.mark.parametrize(("file", "change", "words"), BAD)
def test_bad_files_are_refused_in_one_sentence(tmp_path, file, change, words):
    path = edited(tmp_path, change, file)
    message = sentence(ConfigError, load, path)
    assert [word for word in (str(path), *words) if word not in message] == []


def _row(**changes):
    row = dict.fromkeys([*SCORE_COLUMNS, "answer", "kind"], "x")
    return {**row, "metric": "mse", "value": 0.1, "status": "ok", **changes}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([_row(value="much")], ["line 2", "'much' is no number"]),
        ([_row(), _row(value="")], ["line 3", "no value"]),
        ([_row(status="crashed")], ["line 2", "failed, not_applicable", "missed, absent, phantom"]),
        ([{"paper": "copa"}], ["no column 'result'"]),
    ],
)
def test_malformed_scores_are_refused(tmp_path, rows, words):
    path = tmp_path / "scores.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    message = sentence(ArtifactError, Evidence.read, scores=[path])
    assert [word for word in (str(path), *words, "ask Snakemake") if word not in message] == []


def test_missing_and_empty_files_are_refused(tmp_path):
    path = tmp_path / "own.csv"
    for content, words in (
        (None, "is missing"),
        ("", r"own\.csv is damaged \(it is empty\); delete it"),
        ("a,b\n1,2\n", "no column 'network'"),
    ):
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(ArtifactError, match=words):
            Evidence.read(index=[path])


def test_the_same_run_or_layer_twice_is_refused(tmp_path):
    scores, security, rank = copa_scores(), made.security_rows(), rank_rows()
    again = {**scores[0], "precision": "float32"}
    layer = next(row for row in rank if row["model"] == "rgap_fig2_a")
    doubled = claims_rgap.read(tmp_path, rank=[*rank, layer])
    for claims, evidence, words in (
        (copa(), read(tmp_path, [*scores, again]), "two values of mse"),
        (copa(), read(tmp_path, (), [*security, security[0]]), "layer conv1 of cnn3_v1_tanh twice"),
        (rgap(), doubled, r"rank table holds layer .* of rgap_fig2_a twice"),
    ):
        with pytest.raises(ArtifactError, match=words):
            verdicts(claims, evidence)


def test_tidy_index_table_is_spread_out(tmp_path):
    given = made.index_rows(5)
    rows = [
        {"row": row["network"], "column": column, "metric": metric, "ours": value}
        for row in given
        for column, metric, value in (("c", "c", row["c"]), ("COPA", "mse", row["mse_copa"]))
    ]
    path = tmp_path / "copa_index.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    wide = Evidence.read(index=[path]).index["copa_index"]
    assert set(wide.columns) == {"network", "c", "mse_copa"}
    assert wide["c"].astype(float).tolist() == pytest.approx([row["c"] for row in given])


def test_exact_reconstruction_gives_no_infinity(tmp_path):
    rows, where = copa_scores(), {"model": "cnn3_v3_tanh", "attack": "rgap"}
    for metric, value in (("mse", 0.0), ("psnr_255", np.inf)):
        rows = changed(rows, {**where, "metric": metric}, value=value)
    frame = Judged(copa(), read(tmp_path, rows))
    psnr = frame["copa.table2.fig1.v3.truck.rgap.psnr"]
    assert psnr.ours == pytest.approx(10 * np.log10(255**2 / 1e-30))
    assert psnr.verdict == "exceeds"
    assert frame["copa.table2.fig1.v3.truck.rgap.mse"].verdict == "reproduced"


@settings(max_examples=15, derandomize=True)
@given(st.integers(3, 25), st.floats(-5, 1), st.floats(0.01, 1.0), st.booleans())
def test_intervals_cover_what_they_promise(n, center, spread, log):
    rng = np.random.default_rng(n)
    draws = center + spread * rng.standard_normal((1500, n + 1))
    shown = 10**draws if log else draws
    true_mean = 10**center if log else center
    new, mean = 0, 0
    for row in shown:
        low, high = statistics.prediction_interval(row[:-1], log=log)
        new += low <= row[-1] <= high
        low, high = statistics.interval_of_mean(row[:-1], log=log)
        mean += low <= true_mean <= high
    assert new / 1500 == pytest.approx(0.95, abs=0.025)
    assert mean / 1500 == pytest.approx(0.95, abs=0.025)


def test_prediction_intervals_and_signed_ranks_by_hand():
    half = 4.302652729911275 * np.sqrt(1 + 1 / 3)  # Student's t, 2 degrees of freedom, 97.5 %
    found = statistics.prediction_interval([1, 2, 3], log=False)
    assert found == pytest.approx((2 - half, 2 + half))
    low, high = statistics.prediction_interval([10, 100, 1000], log=True)
    assert (np.log10(low), np.log10(high)) == pytest.approx((2 - half, 2 + half))
    assert np.isnan(statistics.prediction_interval([1], log=False)).all()
    # Signed ranks, of five units and more.
    assert statistics.p_below_zero([-1, -2, -3, -4, -5]) == pytest.approx(1 / 32)
    assert statistics.p_below_zero([0] * 6) == 1
    assert np.isnan(statistics.p_below_zero([-1] * 4))
    assert statistics.p_below_zero([-1] * 10) < 0.01


def test_bootstrap_of_a_rank_correlation():
    found = statistics.spearman(np.arange(40.0), -np.arange(40.0))
    assert found == pytest.approx((-1, -1, -1, 1 / 2002), rel=1e-3)
    rng = np.random.default_rng(2)
    x = rng.normal(size=30)
    y = np.append(-x[:29] + rng.normal(size=29), np.inf)
    once = statistics.spearman(x, y)
    assert once == statistics.spearman(x, y)
    assert once[1:] != statistics.spearman(x, y, seed=1)[1:]
    assert once[0] == pytest.approx(stats.spearmanr(x, np.where(np.isinf(y), 99, y)).statistic)
    assert -1 < once[1] < once[0] < once[2] < 1
    wide, narrow = statistics.spearman(x, y, 0.99), statistics.spearman(x, y, 0.5)
    assert wide[1] < once[1] < narrow[1] < narrow[2] < once[2] < wide[2]
    assert np.isnan(statistics.spearman(np.zeros(30), y)).all()
    assert np.isnan(statistics.spearman(x[:3], y[:3])).all()
