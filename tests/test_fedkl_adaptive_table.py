"""The table of attackers who know something of a lock."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkl_files import Panels, originals
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import write_csv
from papers.fedkl.tables.adaptive import COLUMNS, make, runs

TARGETS = originals(batches=4)
# Noise on each of four images by case; None is a failed run.
CASES: dict[str, list[float | None]] = {
    "no lock": [0.01, 0.02, 0.03, None],
    "guess": [0.3, None, None, None],
    "fit": [0.02, 0.04, 0.06, 0.1],
}


def table(panels: list[dict[str, Any]], scores: list[str]) -> pd.DataFrame:
    run = {"images": "embedded", "scale": "smoke"}
    return make({"scores": scores}, {"panels": panels, "base": "no lock"}, run)


def build(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    made = Panels(folder)
    for method, case in itertools.product(("DLG", "IG"), CASES):
        if (method, case) == ("IG", "no lock"):
            continue
        words = {"network": "LeNet", "dataset": "MNIST", "method": method, "case": case}
        model = "plain" if case == "no lock" else "locked"
        made.add(TARGETS, CASES[case], model=model, attack=method.lower(), **words)
    return made.words, made.files["scores"]


def cell(found: pd.DataFrame, column: str) -> pd.DataFrame:
    return found[found["column"] == column].set_index("metric")


def test_a_cell_has_mean_median_spread_and_counts(tmp_path: Path) -> None:
    panels, scores = build(tmp_path)
    found = table(panels, scores)
    assert list(found.columns) == COLUMNS
    assert set(found["images"]) == {"embedded"} and set(found["scale"]) == {"smoke"}
    own = cell(found, "DLG: fit")
    values = runs(scores[2], "locked")["mse"]
    assert own.loc["mse", "ours"] == pytest.approx(values.mean())
    assert own.loc["mse_median", "ours"] == pytest.approx(values.median())
    assert own.loc["mse_sd", "ours"] == pytest.approx(values.std())
    assert own.loc["mse", "low"] < values.mean() < own.loc["mse", "high"]
    assert own.loc["psnr", "ours"] > 20 and own.loc["lpips_alex", "ours"] == 0.5
    assert set(own["n"]) == {4} and own.loc["mse", "n_ok"] == 4
    assert set(own["row"]) == {"LeNet, MNIST"} and set(own["attack"]) == {"dlg"}
    assert set(own["model"]) == {"locked"} and set(own["result"]) == {"e"}


def test_failed_runs_are_counted_and_count_as_worst(tmp_path: Path) -> None:
    found = table(*build(tmp_path))
    base, guess = cell(found, "DLG: no lock"), cell(found, "DLG: guess")
    assert base.loc["mse", "n_ok"] == 3 and np.isnan(base.loc["mse", "ours"])
    assert "since runs failed" in base.loc["mse", "note"]
    # The median lies between the second and the third of four, of which the last failed.
    assert base.loc["psnr_median", "ours"] == pytest.approx(-20 * np.log10(0.025), abs=0.7)
    assert guess.loc["mse", "n_ok"] == 1 and np.isnan(guess.loc["mse_median", "ours"])
    assert np.isnan(guess.loc["mse_sd", "ours"])


def test_a_cell_of_nothing_but_failures_stays(tmp_path: Path) -> None:
    panels, scores = build(tmp_path)
    made = Panels(tmp_path / "failed")
    made.add(TARGETS, None, **panels[1])
    scores[1] = made.files["scores"][0]
    guess = cell(table(panels, scores), "DLG: guess")
    assert {"mse", "psnr_median", "ssim_sd", "mse_ratio"} <= set(guess.index)
    assert guess["ours"].isna().all() and guess["n"].eq(4).all() and guess["n_ok"].eq(0).all()


def test_cases_are_compared_on_the_same_runs(tmp_path: Path) -> None:
    panels, scores = build(tmp_path)
    found = table(panels, scores)
    fit = cell(found, "DLG: fit")
    medians = [cell(found, f"DLG: {case}").loc["mse_median", "ours"] for case in ("fit", "no lock")]
    assert fit.loc["mse_ratio", "ours"] == pytest.approx(medians[0] / medians[1])
    assert fit.loc["mse_ratio", "n"] == 4 and fit.loc["mse_ratio", "n_ok"] == 3
    assert fit.loc["psnr_change", "ours"] == pytest.approx(-6, abs=1)
    assert "mse_ratio" not in cell(found, "DLG: no lock").index
    # Without the case that others are compared with there is nothing to compare.
    assert "mse_ratio" not in cell(found, "IG: fit").index
    # An attack on fewer images is compared on these alone.
    rows = pd.read_csv(scores[2], keep_default_na=False)
    write_csv(scores[2], rows[rows["batch"] < 2])
    fewer = cell(table(panels, scores), "DLG: fit")
    assert fewer.loc["mse", "n"] == 2 and fewer.loc["mse_ratio", "n"] == 2
    assert fewer.loc["mse_ratio", "ours"] == pytest.approx(4, rel=0.4)


def test_a_metric_that_was_not_computed_has_no_row(tmp_path: Path) -> None:
    panels, scores = build(tmp_path)
    for path in scores:
        rows = pd.read_csv(path, keep_default_na=False)
        write_csv(path, rows[rows["metric"] != "lpips_alex"])
    assert not table(panels, scores)["metric"].str.contains("lpips").any()


def test_scores_of_another_network_are_one_sentence(tmp_path: Path) -> None:
    panels, scores = build(tmp_path)
    panels[0]["model"] = "another"
    with pytest.raises(ArtifactError, match="has no rows of another; delete it"):
        table(panels, scores)
