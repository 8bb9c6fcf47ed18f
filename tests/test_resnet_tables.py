"""The table of ResNets: RA-i, accuracies with intervals, errors with spreads, failed runs."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gradleak.runtime.tidy import TABLES
from papers.rgap.tables.resnets import table, wilson

NETWORKS = {"net": "Net", "net_cut": "Variant"}
COLUMNS = {"trained": "Trained, evaluation mode"}
ERRORS = {"net": [0.1, 0.3], "net_cut": [0.2, 1.0]}


def scores(failed=False):
    rows = []
    for model, errors in ERRORS.items():
        for index, value in enumerate(errors):
            bad = failed and model == "net_cut" and index == 0
            rows += [
                {
                    "result": "trained",
                    "model": model,
                    "metric": metric,
                    "index": index,
                    "value": "" if bad else factor * value,
                    "status": "failed" if bad else "ok",
                }
                for metric, factor in (("mse", 1), ("mse_input", 16), ("psnr", 1), ("ssim", 1))
            ]
    rows += [
        {
            "result": "trained",
            "model": model,
            "metric": "evaluations",
            "index": 1,
            "value": 7,
            "status": "ok",
        }
        for model in ERRORS
    ]
    return pd.DataFrame(rows)


TRAINED = pd.DataFrame(
    {
        "model": ["net", "net_cut"],
        "test_accuracy": [0.9, 0.88],
        "test": [1000, 1000],
        "epochs": [5, 5],
    }
)
RANK = pd.DataFrame(
    {"model": ["net", "net_cut"], "network_ra": [-5, -4], "network_ra_alone": [-2, 7]}
)


def made(**more):
    return table(scores(**more), TRAINED, RANK, NETWORKS, COLUMNS, "real", "smoke")


def cell(found, model, column, metric):
    rows = found[
        (found["model"] == model) & (found["column"] == column) & (found["metric"] == metric)
    ]
    assert len(rows) == 1
    return rows.iloc[0]


def test_counts_accuracies_and_errors():
    found = made()
    assert list(found.columns) == [*TABLES, "model"]
    assert cell(found, "net_cut", "Architecture", "ra")["ours"] == -4
    assert cell(found, "net_cut", "Architecture", "ra_alone")["ours"] == 7
    accuracy = cell(found, "net", "Trained", "accuracy")
    assert (accuracy["low"], accuracy["high"]) == pytest.approx(wilson(0.9, 1000))
    change = cell(found, "net_cut", "Trained", "accuracy_change")
    width = 1.959964 * np.sqrt(0.9 * 0.1 / 1000 + 0.88 * 0.12 / 1000)
    assert change["ours"] == pytest.approx(-0.02)
    assert change["high"] - change["ours"] == pytest.approx(width, rel=1e-6)
    where = ("net_cut", "Trained, evaluation mode")
    assert cell(found, *where, "mse")["ours"] == pytest.approx(0.6)
    assert cell(found, *where, "mse_input")["ours"] == pytest.approx(9.6)
    assert cell(found, *where, "mse_ratio")["ours"] == pytest.approx(3.0)
    assert cell(found, *where, "sd_ratio")["ours"] == pytest.approx(4.0)
    assert cell(found, *where, "iterations")["ours"] == 7
    low, high = (cell(found, *where, "mse")[side] for side in ("low", "high"))
    assert 0.2 <= low < 0.6 < high <= 1.0


def test_a_failed_run_leaves_no_mean_but_its_count():
    found = made(failed=True)
    for metric in ("mse", "mse_ratio", "mse_sd"):
        row = cell(found, "net_cut", "Trained, evaluation mode", metric)
        assert np.isnan(row["ours"]) and (row["n"], row["n_ok"]) == (2, 1)
    assert cell(found, "net", "Trained, evaluation mode", "mse")["ours"] == pytest.approx(0.2)


@pytest.mark.parametrize(("right", "n"), [(0, 20), (9, 20), (20, 20), (4500, 5000)])
def test_wilsons_interval(right, n):
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right / n, n) == pytest.approx((found.low, found.high), abs=1e-12)
