"""The figure and the table of attackers who know something of a lock, from synthetic files."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkl_files import REASON, Panels, originals
from figure_words import flat, texts
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import write_csv
from papers.fedkl.figures import adaptive
from papers.fedkl.tables.adaptive import COLUMNS, make, runs

CASES = {"no lock": "no\nlock", "guess": "guess", "fit": "fit", "both": "both"}
NOISE: dict[str, list[float | None]] = {
    "no lock": [0.01, 0.02, 0.01],
    "guess": [None, 0.5, 0.4],
    "fit": [0.1, 0.2, 0.1],
    "both": [0.05, 1e-7, None],
}
TARGETS = {"MNIST": originals("digits", (1, 16, 16), 3), "CIFAR-10": originals(batches=3)}
# Noise on each of four images by case; None is a failed run.
FOUR: dict[str, list[float | None]] = {
    "no lock": [0.01, 0.02, 0.03, None],
    "guess": [0.3, None, None, None],
    "fit": [0.02, 0.04, 0.06, 0.1],
}
TARGET = originals(batches=4)


def words_of(method, case, dataset="MNIST"):
    return {"network": "LeNet", "dataset": dataset, "method": method, "case": case}


def build(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """LeNet on two data sets; GRNN does not fit, and fails without a key."""
    made = Panels(folder)
    for dataset, method, case in itertools.product(TARGETS, ("DLG", "GRNN"), NOISE):
        if (method, case) == ("GRNN", "fit"):
            continue
        noise = None if (method, case) == ("GRNN", "guess") else NOISE[case]
        words = words_of(method, case, dataset)
        made.add(TARGETS[dataset], noise, model="net", attack=method, **words)
    words = {"title": "Adaptive", "note": "A note.", "cases": CASES, "panels": made.words}
    return made.files, words


def frames(figure: Any) -> dict[tuple[int, int], Any]:
    """Axes with points by (line, attack)."""
    drawn = [axes for axes in figure.axes if axes.get_ylim() != (0, 1) and not axes.images]
    drawn = [axes for axes in drawn if len(axes.get_yticks())]
    return {divmod(place, 2): axes for place, axes in enumerate(drawn)}


def test_points_and_medians_are_those_of_the_scores(tmp_path):
    files, words = build(tmp_path)
    figure = adaptive.make(files, words, "smoke")
    drawn = frames(figure)
    assert len(drawn) == 4
    found = make(files, {**words, "base": "no lock"}, {"images": "embedded", "scale": "smoke"})
    for panel, path in zip(words["panels"], files["scores"], strict=True):
        place = list(TARGETS).index(panel["dataset"]), ["DLG", "GRNN"].index(panel["method"])
        # GRNN, which does not fit, has no place for that.
        there = [c for c in CASES if c != "fit" or panel["method"] == "DLG"]
        axes, x = drawn[place], there.index(panel["case"])
        values = runs(path, "net")["psnr"].dropna().clip(*adaptive.SPAN)
        points = [line for line in axes.lines if line.get_linestyle() == "None"]
        points = [line for line in points if len(line.get_xdata())]
        here = [line for line in points if round(float(np.mean(line.get_xdata()))) == x]
        if values.empty:
            assert not here
            continue
        np.testing.assert_allclose(here[0].get_ydata(), values)
        own = found[
            (found["column"] == f"{panel['method']}: {panel['case']}")
            & (found["dataset"] == panel["dataset"])
        ]
        middle = own.set_index("metric").loc["psnr_median", "ours"]
        said = {text.get_text(): text.get_position()[0] for text in axes.texts}
        assert said[f"{middle:.1f}"] == x


def test_failed_runs_and_missing_cases_are_marked(tmp_path):
    files, words = build(tmp_path)
    # One data set lacks what is tried on the other.
    last = len(words["panels"]) - 1
    words["panels"] = words["panels"][:last]
    files = {name: some[:last] if len(some) > last else some for name, some in files.items()}
    figure = adaptive.make(files, words, "smoke")
    drawn = frames(figure)
    assert [text.get_text() for text in drawn[1, 1].texts].count("–") == 1
    dlg, grnn = ([text.get_text() for text in drawn[0, k].texts] for k in (0, 1))
    assert dlg.count("× 1") == 2 and dlg.count("n 3") == 4 and "–" not in dlg
    assert "× 3" in grnn and "failed" in grnn and "–" not in grnn
    found = flat(figure)
    assert (
        "digits test images 30 to 32 (for MNIST); photos10 test images 30 to 32 (for CIFAR-10)"
        in found
    )
    assert "–: not among the experiments" in found and "×: failed runs" in found
    assert "Values beyond −10 and 80 dB are drawn there" in found


def test_pictures_are_of_the_attack_with_most_cases(tmp_path):
    figure = adaptive.make(*build(tmp_path), "smoke")
    shown = [axes for axes in figure.axes if axes.get_aspect() == 1.0 or axes.images]
    images = [np.asarray(axes.images[0].get_array()).reshape(16, 16) for axes in shown]
    original = TARGETS["MNIST"].images[0, 0, 0] / 255.0
    spreads = [float(np.std(image - original)) for image in images]
    # The original, then all but the case that failed.
    np.testing.assert_allclose(spreads, [0, 0.01, 0.1, 0.05], rtol=0.3)
    found = texts(figure)
    assert "Example:\nDLG on\nLeNet,\nMNIST" in found and "original" in found
    assert any(REASON.startswith(words.split("\n")[0]) for words in found if words)


def test_of_attacks_with_as_many_cases_the_one_that_works_is_pictured(tmp_path):
    made, target = Panels(tmp_path), TARGETS["MNIST"]
    for method, case in itertools.product(("DLG", "IG"), ("no lock", "guess")):
        noise = 0.1 if method == "IG" else None
        made.add(target, noise, model="net", attack=method, **words_of(method, case))
    words = {"title": "Adaptive", "cases": CASES, "panels": made.words}
    assert "Example:\nIG on\nLeNet,\nMNIST" in texts(adaptive.make(made.files, words, "smoke"))


# --- The table -----------------------------------------------------------------------------------


def table(panels: list[dict[str, Any]], scores: list[str]) -> pd.DataFrame:
    run = {"images": "embedded", "scale": "smoke"}
    return make({"scores": scores}, {"panels": panels, "base": "no lock"}, run)


@pytest.fixture
def written(tmp_path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Panels and files of scores; the second attack was not run without a lock."""
    made = Panels(tmp_path)
    for method, case in itertools.product(("DLG", "IG"), FOUR):
        if (method, case) != ("IG", "no lock"):
            model = "plain" if case == "no lock" else "locked"
            words = {"model": model, "attack": method.lower(), **words_of(method, case)}
            made.add(TARGET, FOUR[case], **words)
    return made.words, made.files["scores"]


def cell(found: pd.DataFrame, column: str) -> pd.DataFrame:
    return found[found["column"] == column].set_index("metric")


def test_a_cell_has_mean_median_spread_and_counts(written):
    panels, scores = written
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


def test_failed_runs_are_counted_and_count_as_worst(written):
    found = table(*written)
    base, guess = cell(found, "DLG: no lock"), cell(found, "DLG: guess")
    assert base.loc["mse", "n_ok"] == 3 and np.isnan(base.loc["mse", "ours"])
    assert "since runs failed" in base.loc["mse", "note"]
    # The median lies between the second and the third of four, of which the last failed.
    assert base.loc["psnr_median", "ours"] == pytest.approx(-20 * np.log10(0.025), abs=0.7)
    assert guess.loc["mse", "n_ok"] == 1 and np.isnan(guess.loc["mse_median", "ours"])
    assert np.isnan(guess.loc["mse_sd", "ours"])


def test_a_cell_of_nothing_but_failures_stays(tmp_path, written):
    panels, scores = written
    made = Panels(tmp_path / "failed")
    made.add(TARGET, None, **panels[1])
    scores[1] = made.files["scores"][0]
    guess = cell(table(panels, scores), "DLG: guess")
    assert {"mse", "psnr_median", "ssim_sd", "mse_ratio"} <= set(guess.index)
    assert guess["ours"].isna().all() and guess["n"].eq(4).all() and guess["n_ok"].eq(0).all()


def test_cases_are_compared_on_the_same_runs(written):
    panels, scores = written
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


def test_a_metric_that_was_not_computed_has_no_row(written):
    panels, scores = written
    for path in scores:
        rows = pd.read_csv(path, keep_default_na=False)
        write_csv(path, rows[rows["metric"] != "lpips_alex"])
    assert not table(panels, scores)["metric"].str.contains("lpips").any()


def test_scores_of_another_network_are_one_sentence(written):
    panels, scores = written
    panels[0]["model"] = "another"
    with pytest.raises(ArtifactError, match="has no rows of another; delete it"):
        table(panels, scores)
