"""The table of ResNets: RA-i, accuracies with intervals, errors with spreads, failed runs."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gradleak.runtime.tidy import TABLES
from papers.rgap.tables.resnets import table, wilson

WORDS = {"networks": {"net": "Net", "net_cut": "Variant"}}
WORDS["columns"] = {"trained": "Trained, evaluation mode"}
ERRORS = {"net": [0.1, 0.3], "net_cut": [0.2, 1.0]}


def scores(failed=False):
    rows = []
    for model, errors in ERRORS.items():
        for index, value in enumerate(errors):
            bad = failed and model == "net_cut" and index == 0
            for metric, factor in (("mse", 1), ("mse_input", 16), ("psnr", 1), ("ssim", 1)):
                told = ("", "failed") if bad else (factor * value, "ok")
                rows.append(("trained", model, metric, index, *told))
    rows += [("trained", model, "evaluations", 1, 7, "ok") for model in ERRORS]
    return pd.DataFrame(rows, columns=["result", "model", "metric", "index", "value", "status"])


MODEL = {"model": ["net", "net_cut"]}
TRAINED = pd.DataFrame({**MODEL, "test_accuracy": [0.9, 0.88], "test": 1000, "epochs": 5})
RANK = pd.DataFrame({**MODEL, "network_ra": [-5, -4], "network_ra_alone": [-2, 7]})


def made(**more):
    return table(scores(**more), TRAINED, RANK, WORDS, images="real", scale="smoke")


def cells(found):
    place = ["model", "column", "metric"]
    return found.set_index(place, verify_integrity=True).sort_index()


def test_counts_accuracies_and_errors():
    assert list(made().columns) == [*TABLES, "model"]
    found = cells(made())
    ours, where = found["ours"], ("net_cut", "Trained, evaluation mode")
    assert ours["net_cut", "Architecture", "ra"] == -4
    assert ours["net_cut", "Architecture", "ra_alone"] == 7
    accuracy = found.loc["net", "Trained", "accuracy"]
    assert (accuracy["low"], accuracy["high"]) == pytest.approx(wilson(0.9, 1000))
    change = found.loc["net_cut", "Trained", "accuracy_change"]
    width = 1.959964 * np.sqrt(0.9 * 0.1 / 1000 + 0.88 * 0.12 / 1000)
    assert change["ours"] == pytest.approx(-0.02)
    assert change["high"] - change["ours"] == pytest.approx(width, rel=1e-6)
    expected = {"mse": 0.6, "mse_input": 9.6, "mse_ratio": 3.0, "sd_ratio": 4.0, "iterations": 7}
    assert ours.loc[where][list(expected)].to_dict() == pytest.approx(expected)
    low, high = found.loc[(*where, "mse"), ["low", "high"]]
    assert 0.2 <= low < 0.6 < high <= 1.0


def test_a_failed_run_leaves_no_mean_but_its_count():
    found = cells(made(failed=True)).xs("Trained, evaluation mode", level="column")
    for metric in ("mse", "mse_ratio", "mse_sd"):
        row = found.loc["net_cut", metric]
        assert np.isnan(row["ours"]) and (row["n"], row["n_ok"]) == (2, 1)
    assert found.loc[("net", "mse"), "ours"] == pytest.approx(0.2)


@pytest.mark.parametrize(("right", "n"), [(0, 20), (9, 20), (20, 20), (4500, 5000)])
def test_wilsons_interval(right, n):
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right / n, n) == pytest.approx((found.low, found.high), abs=1e-12)
