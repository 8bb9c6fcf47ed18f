"""FedKL's curves from synthetic files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedkl_files import training
from figure_words import flat, texts
from gradleak.errors import ArtifactError
from gradleak.plotting import curves
from gradleak.plotting.style import BLUE, RED
from gradleak.runtime.artifacts import write_csv
from papers.fedkl.figures import curves as fedkl_curves

NETWORKS = ["ResNet-20", "ResNet-32", "VGG-16"]
# Accuracy of each network on each data set without and with a key-lock; None was not trained.
REACHED: dict[tuple[int, int], tuple[float | None, float | None]] = {
    (0, 0): (0.9, 0.85),
    (0, 1): (0.8, 0.82),
    (0, 2): (0.7, None),
    (1, 0): (0.5, 0.4),
    (1, 2): (0.6, 0.65),
}


def build(folder: Path, **more: Any) -> tuple[dict[str, list[str]], dict[str, Any]]:
    files: dict[str, list[str]] = {"curves": [], "summaries": []}
    entries = []
    for (row, column), each in REACHED.items():
        for lock, accuracy in enumerate(each):
            if accuracy is None:
                continue
            model = f"net{column}_{row}" + "_kl" * lock
            for kind, path in zip(files, training(folder, model, accuracy, **more), strict=True):
                files[kind].append(path)
            entries.append({"model": model, "lock": bool(lock), "row": row, "column": column})
    words = {
        "title": "Curves",
        "note": "A note.",
        "rows": [{"name": "CIFAR-10", "below": "(here photos10)"}, {"name": "CIFAR-100"}],
        "columns": [{"name": name, "below": "32×32"} for name in NETWORKS],
        "curves": entries,
    }
    return files, words


def panels(figure: Any) -> dict[tuple[int, int], Any]:
    """Axes with curves by (line, column)."""
    drawn = [axes for axes in figure.axes if axes.get_position().height > 0.05]
    return {divmod(place, len(NETWORKS)): axes for place, axes in enumerate(drawn)}


def test_curves_land_in_their_panels(tmp_path: Path) -> None:
    figure = fedkl_curves.make(*build(tmp_path), "smoke")
    drawn = panels(figure)
    assert len(drawn) == 4 * len(NETWORKS)
    for (row, column), each in REACHED.items():
        for line, factor, low in ((2 * row, 100, 0), (2 * row + 1, -2, 2)):
            axes = drawn[line, column]
            wanted = [accuracy for accuracy in each if accuracy is not None]
            last = [found.get_ydata()[-1] for found in axes.lines]
            np.testing.assert_allclose(last, [low + factor * a for a in wanted], rtol=5e-3)
            colours = [found.get_color() for found in axes.lines]
            assert colours == [c for c, a in zip((BLUE, RED), each, strict=True) if a is not None]
            styles = [found.get_linestyle() for found in axes.lines]
            assert styles == ["--", "-"][: len(wanted)]
    # Limits are the same along a line.
    assert drawn[0, 0].get_ylim() == drawn[0, 1].get_ylim() != drawn[2, 0].get_ylim()
    assert not drawn[2, 1].axison


def test_numbers_are_those_of_the_summary(tmp_path: Path) -> None:
    figure = fedkl_curves.make(*build(tmp_path), "smoke")
    # From below, where curves end high.
    for line, wanted in enumerate(
        (["w/ KL 85.0 %", "w/o KL 90.0 %"], ["w/o KL 0.20", "w/ KL 0.30"])
    ):
        assert [text.get_text() for text in panels(figure)[line, 0].texts] == wanted


def test_images_are_counted(tmp_path: Path) -> None:
    found = flat(fedkl_curves.make(*build(tmp_path), "smoke"))
    counts = "1,000, 100, 200 to train, choose the epoch and test; one draw"
    for fact in ("CIFAR-10 (here photos10); CIFAR-100;", counts, "w/ KL", "ResNet-32"):
        assert fact in found


def test_seeds_are_thin_lines_below_their_mean(tmp_path: Path) -> None:
    figure = fedkl_curves.make(*build(tmp_path, seeds=3, client=False), "smoke")
    axes = panels(figure)[0, 0]
    assert len(axes.lines) == 2 * (3 + 1)
    assert axes.lines[3].get_ydata()[-1] == pytest.approx(91.0, rel=1e-3)
    assert "w/o KL 91.0 %" in texts(figure) and "means over 3 draws" in flat(figure)


def test_one_epoch_is_marked(tmp_path: Path) -> None:
    axes = panels(fedkl_curves.make(*build(tmp_path, epochs=1), "smoke"))[0, 0]
    assert {line.get_marker() for line in axes.lines} == {"."}


def test_a_loss_that_dwarfs_the_others_makes_the_axis_logarithmic(tmp_path: Path) -> None:
    files, words = build(tmp_path)
    rows = pd.read_csv(files["curves"][0])
    rows.loc[rows["epoch"] == 1, "validation_loss"] = 600
    write_csv(files["curves"][0], rows)
    drawn = panels(fedkl_curves.make(files, words, "smoke"))
    scales = {(line, drawn[line, 0].get_yscale()) for line in range(4)}
    assert scales == {(0, "linear"), (1, "log"), (2, "linear"), (3, "linear")}
    assert drawn[1, 0].get_ylim() == drawn[1, 1].get_ylim() and drawn[1, 0].get_ylim()[1] > 600


def test_rows_and_columns_without_curves_are_left_out(tmp_path: Path) -> None:
    files, words = build(tmp_path)
    kept = [k for k, entry in enumerate(words["curves"]) if entry["row"] and entry["column"]]
    files = {name: [paths[k] for k in kept] for name, paths in files.items()}
    words = {**words, "curves": [words["curves"][k] for k in kept]}
    figure = fedkl_curves.make(files, words, "smoke")
    found = flat(figure)
    assert "ResNet-20" not in found and "CIFAR-10 " not in found and "VGG-16" in found


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    files, words = build(tmp_path)
    words["curves"][0]["model"] = "another"
    with pytest.raises(ArtifactError, match="has no rows of another; delete it"):
        curves.read(files, words["curves"])
