"""The figure of attackers who know something of a lock, from synthetic files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from fedkl_files import REASON, Panels, originals
from figure_words import flat, texts
from papers.fedkl.figures import adaptive
from papers.fedkl.tables.adaptive import make, runs

CASES = {"no lock": "no\nlock", "guess": "guess", "fit": "fit", "both": "both"}
NOISE: dict[str, list[float | None]] = {
    "no lock": [0.01, 0.02, 0.01],
    "guess": [None, 0.5, 0.4],
    "fit": [0.1, 0.2, 0.1],
    "both": [0.05, 1e-7, None],
}
TARGETS = {"MNIST": originals("digits", (1, 16, 16), 3), "CIFAR-10": originals(batches=3)}


def build(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """LeNet on two data sets; GRNN does not fit, and fails without a key."""
    made = Panels(folder)
    for dataset, method, case in itertools.product(TARGETS, ("DLG", "GRNN"), NOISE):
        if (method, case) == ("GRNN", "fit"):
            continue
        noise = None if (method, case) == ("GRNN", "guess") else NOISE[case]
        words = {"network": "LeNet", "dataset": dataset, "method": method, "case": case}
        made.add(TARGETS[dataset], noise, model="net", attack=method, **words)
    words = {"title": "Adaptive", "note": "A note.", "cases": CASES, "panels": made.words}
    return made.files, words


def frames(figure: Any) -> dict[tuple[int, int], Any]:
    """Axes with points by (line, attack)."""
    drawn = [axes for axes in figure.axes if axes.get_ylim() != (0, 1) and not axes.images]
    drawn = [axes for axes in drawn if len(axes.get_yticks())]
    return {divmod(place, 2): axes for place, axes in enumerate(drawn)}


def test_points_and_medians_are_those_of_the_scores(tmp_path: Path) -> None:
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


def test_failed_runs_and_missing_cases_are_marked(tmp_path: Path) -> None:
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


def test_pictures_are_of_the_attack_with_most_cases(tmp_path: Path) -> None:
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


def test_of_attacks_with_as_many_cases_the_one_that_works_is_pictured(tmp_path: Path) -> None:
    made, target = Panels(tmp_path), TARGETS["MNIST"]
    for method, case in itertools.product(("DLG", "IG"), ("no lock", "guess")):
        words = {"network": "LeNet", "dataset": "MNIST", "method": method, "case": case}
        noise = 0.1 if method == "IG" else None
        made.add(target, noise, model="net", attack=method, **words)
    words = {"title": "Adaptive", "cases": CASES, "panels": made.words}
    assert "Example:\nIG on\nLeNet,\nMNIST" in texts(adaptive.make(made.files, words, "smoke"))
