"""Claims: reading claims files and evidence, good and bad, and the statistics."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from claims_synthetic import (
    Judged,
    changed,
    content,
    copa,
    copa_scores,
    index_rows,
    read,
    security_rows,
    write,
)
from gradleak.claims import Evidence, evaluate, load, statistics
from gradleak.errors import ArtifactError, ConfigError
from gradleak.runtime.tidy import SCORES as SCORE_COLUMNS


def test_every_number_of_both_tables_is_a_claim():
    numbers = [claim for claim in copa().numbers() if claim.cell is not None]
    assert sum(claim.cell.table == "copa_table2" for claim in numbers) == 96
    assert sum(claim.cell.table == "copa_table1" for claim in numbers) == 32
    known = next(c for c in numbers if c.id == "copa.table2.fig1.v1.truck.copa.mse")
    assert known.paper_value == 0.0512
    where = {"result": "copa_pair", "model": "cnn3_v1_tanh", "name": "truck", "attack": "copa"}
    assert known.query.where == where


def test_placeholders_are_filled():
    for claim in copa().claims:
        assert not re.search(r'(?<!":)(?<![\[,])\{', claim.model_dump_json()[1:]), claim.id


def last(**changes):
    return lambda data: data["claims"][-1].update(changes)


def best_of_one(data):
    claim = next(claim for claim in data["claims"] if claim["query"].get("best_of"))
    claim["query"]["where"]["attack"] = "copa"


NAME = "copa.table2.psnr_matches_mse"
BAD = {
    "unknown key": (last(tolerence="test"), [NAME, "tolerence", "remove the key"]),
    "missing key": (lambda d: d["claims"][-1].pop("locator"), [NAME, "locator", "add the key"]),
    "wrong kind": (last(kind="sentence"), ["kind", "'sentence'", "correct the value"]),
    "unknown tolerance": (last(tolerance="loose"), ["'loose'", "define it"]),
    "of another form": (last(tolerance="test"), ["rule alpha", "printed", "use one of these"]),
    "same id twice": (lambda d: d["claims"].append(d["claims"][-1]), ["twice", "rename"]),
    "row too short": (
        lambda d: d["grids"][1]["rows"][0]["values"].pop(),
        ["fig1.v1.truck", "5 values for 6 columns"],
    ),
    "exception without cell": (
        lambda d: d["grids"][1]["exceptions"]["draw_near_zero"].append("fig9"),
        ["'fig9' is no cell"],
    ),
    "unknown list": (
        lambda d: d["claims"][0].update(foreach={"v": "variations"}),
        ["foreach.v", "'variations'", "variants"],
    ),
    "unknown name": (lambda d: d["claims"][0].update(statement="{w}"), ["'w'", "foreach"]),
    "best of one attack": (best_of_one, ["copa.c.full.fig1", "best_of needs a list of attacks"]),
    "tolerance without amount": (
        lambda d: d["tolerances"]["full"].pop("amount"),
        ["tolerances.full", "needs an amount"],
    ),
    "no mapping": (lambda d: d.update(claims="all"), ["claims", "'all'", "correct"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_one_sentence(tmp_path, name):
    (change, words), data = BAD[name], content()
    change(data)
    path = write(tmp_path, data)
    with pytest.raises(ConfigError) as error:
        load(path)
    message = str(error.value)
    assert "\n" not in message
    assert [word for word in (str(path), *words) if word not in message] == []


def test_missing_and_invalid_yaml_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="give a readable file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("claims: [", encoding="utf-8")
    with pytest.raises(ConfigError, match="no valid YAML"):
        load(tmp_path / "broken.yaml")


def _row(**changes):
    row = dict.fromkeys([*SCORE_COLUMNS, "answer", "kind"], "x")
    return {**row, "metric": "mse", "value": 0.1, "status": "ok", **changes}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([_row(value="much")], ["line 2", "'much' is no number"]),
        ([_row(), _row(value="")], ["line 3", "no value"]),
        ([_row(status="crashed")], ["line 2", "failed, not_applicable"]),
        ([{"paper": "copa"}], ["no column 'result'"]),
    ],
)
def test_malformed_scores_are_refused(tmp_path, rows, words):
    path = tmp_path / "scores.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    with pytest.raises(ArtifactError) as error:
        Evidence.read(scores=[path])
    wanted = [str(path), *words, "ask Snakemake"]
    assert [word for word in wanted if word not in str(error.value)] == []


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match="is missing"):
        Evidence.read(security=[tmp_path / "none.csv"])
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ArtifactError, match=r"empty\.csv is damaged \(it is empty\); delete it"):
        Evidence.read(index=[tmp_path / "empty.csv"])
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="no column 'network'"):
        Evidence.read(index=[tmp_path / "other.csv"])


def test_the_same_run_twice_is_refused(tmp_path):
    scores, security = copa_scores(), security_rows()
    again = {**scores[0], "precision": "float32"}
    with pytest.raises(ArtifactError, match="two values of mse"):
        evaluate(copa(), read(tmp_path, [*scores, again], [], []), "real", "laptop")
    with pytest.raises(ArtifactError, match="layer conv1 of cnn3_v1_tanh twice"):
        evaluate(copa(), read(tmp_path, [], [*security, security[0]], []), "real", "laptop")


def test_tidy_index_table_is_spread_out(tmp_path):
    rows = [
        {"row": row["network"], "column": column, "metric": metric, "ours": value}
        for row in index_rows(5)
        for column, metric, value in (("c", "c", row["c"]), ("COPA", "mse", row["mse_copa"]))
    ]
    path = tmp_path / "index.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    wide = Evidence.read(index=[path]).index
    assert set(wide.columns) == {"network", "c", "mse_copa"}
    assert wide["c"].astype(float).tolist() == pytest.approx([row["c"] for row in index_rows(5)])


def test_exact_reconstruction_gives_no_infinity(tmp_path):
    rows, where = copa_scores(), {"model": "cnn3_v3_tanh", "attack": "rgap"}
    for metric, value in (("mse", 0.0), ("psnr_255", np.inf)):
        rows = changed(rows, {**where, "metric": metric}, value=value)
    frame = Judged(copa(), read(tmp_path, rows, [], []))
    psnr = frame["copa.table2.fig1.v3.truck.rgap.psnr"]
    assert psnr.ours == pytest.approx(10 * np.log10(255**2 / 1e-30))
    assert psnr.verdict == "exceeds"
    assert frame["copa.table2.fig1.v3.truck.rgap.mse"].verdict == "reproduced"


@settings(max_examples=15, deadline=None, derandomize=True)
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


def test_prediction_interval_by_hand():
    half = 4.302652729911275 * np.sqrt(1 + 1 / 3)  # Student's t, 2 degrees of freedom, 97.5 %
    found = statistics.prediction_interval([1, 2, 3], log=False)
    assert found == pytest.approx((2 - half, 2 + half))
    low, high = statistics.prediction_interval([10, 100, 1000], log=True)
    assert (np.log10(low), np.log10(high)) == pytest.approx((2 - half, 2 + half))
    assert np.isnan(statistics.prediction_interval([1], log=False)).all()


def test_small_tests():
    assert statistics.p_below_zero([-1, -2, -3, -4, -5]) == pytest.approx(1 / 32)
    assert statistics.p_below_zero([0] * 6) == 1
    assert np.isnan(statistics.p_below_zero([-1] * 4))
    assert statistics.p_below_zero([-1] * 10) < 0.01


def test_bootstrap_of_a_rank_correlation():
    assert statistics.spearman(np.arange(40.0), -np.arange(40.0)) == pytest.approx((-1, -1, -1))
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
