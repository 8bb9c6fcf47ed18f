"""FedKL Figure 4 from synthetic files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import StepPatch

from fedkl_files import training
from figure_words import flat, outside, texts
from gradleak.errors import ArtifactError
from gradleak.plotting import style
from gradleak.plotting.style import BLUE, GREEN, ORANGE, RED
from gradleak.runtime.artifacts import write_csv
from papers.fedkl.figures import fig4

ROWS = ["ResNet-20, CIFAR-10", "ResNet-20, CIFAR-100", "ResNet-18, CIFAR-10"]
# Mean and standard deviation of each distribution; the last is too narrow for the axis.
NORMAL = {"reference": (0.0, 1.0), "w/o KL": (0.5, 1.2), "w/ KL": (-0.3, 0.1)}


def table(rows: list[str]) -> pd.DataFrame:
    edges = np.arange(-8, 8.01, 0.25)
    found = []
    for row in rows:
        for column, (mean, sd) in NORMAL.items():
            head = {"row": row, "column": column, "n": 70, "images": "embedded", "scale": "smoke"}
            facts = {"mean": mean, "sd": sd, "skewness": 0.0, "wasserstein": abs(mean)}
            if column != "reference":
                facts["zero_scale"] = 0.25
            found += [{**head, "metric": m, "ours": v} for m, v in facts.items()]
            density = np.exp(-((edges[:-1] - mean) ** 2) / 2 / sd**2) / sd / np.sqrt(2 * np.pi)
            for left, right, value in zip(edges, edges[1:], density, strict=False):
                place = {"left": left, "right": right, "metric": "density"}
                found.append({**head, **place, "ours": value})
    return pd.DataFrame(found)


def build(folder: Path, rows: list[str] = ROWS) -> tuple[dict[str, Any], dict[str, Any]]:
    files: dict[str, Any] = {"table": str(folder / "table.csv"), "curves": [], "summaries": []}
    write_csv(files["table"], table(rows))
    entries = []
    for panel, lock in itertools.product(range(len(rows)), (False, True)):
        model = f"net{panel}{lock}"
        made = training(folder, model, 0.5 + 0.1 * panel + 0.05 * lock)
        for kind, path in zip(("curves", "summaries"), made, strict=True):
            files[kind].append(path)
        entries.append({"model": model, "lock": lock, "panel": panel})
    panels = [{"row": row, "images": "CIFAR-10 (here photos10)"} for row in rows]
    return files, {"title": "Distributions", "note": "A note.", "panels": panels, "curves": entries}


def frames(figure: Any) -> list[tuple[Any, Any]]:
    """Axes of the densities and of the accuracies of each panel."""
    large = [axes for axes in figure.axes if axes.get_position().height > 0.1]
    return list(zip(large[::2], large[1::2], strict=True))


def test_each_panel_has_its_distributions_and_accuracies(tmp_path: Path) -> None:
    figure = fig4.make(*build(tmp_path), "smoke")
    drawn = frames(figure)
    assert len(drawn) == len(ROWS)
    for place, (below, above) in enumerate(drawn):
        steps = [patch for patch in below.patches if isinstance(patch, StepPatch)]
        lines = [patch for patch in steps if not patch.get_fill()]
        colours = [style.mpl.colors.to_hex(patch.get_edgecolor()).upper() for patch in lines]
        assert colours == [BLUE, ORANGE, GREEN]
        for patch, (mean, _) in zip(lines, NORMAL.values(), strict=True):
            values, edges, _ = patch.get_data()
            assert edges[np.argmax(values)] == pytest.approx(mean, abs=0.26)
        # The narrow peak is cut at 2.2 times the reference's.
        assert below.get_ylim()[1] == pytest.approx(2.2 / np.sqrt(2 * np.pi), rel=1e-3)
        last = [line.get_ydata()[-1] for line in above.lines]
        np.testing.assert_allclose(last, [50 + 10 * place, 55 + 10 * place], rtol=1e-3)
        assert [line.get_color() for line in above.lines] == [BLUE, RED]
        assert [line.get_linestyle() for line in above.lines] == ["--", "-"]
        assert above.get_position().bounds == below.get_position().bounds


def test_numbers_stand_below_each_panel(tmp_path: Path) -> None:
    found = texts(fig4.make(*build(tmp_path), "smoke"))
    assert found.count("0.50") == 2 * len(ROWS) and found.count("−0.30") == len(ROWS)
    assert found.count("25%") == 2 * len(ROWS) and found.count("highest") == len(ROWS)
    assert [word for word in found if word in ROWS] == ROWS


def test_values_beyond_the_bins_are_said(tmp_path: Path) -> None:
    files, words = build(tmp_path)
    found = flat(fig4.make(files, words, "smoke"))
    assert "bins of 0.25" in found and "images (70)" in found and "beyond" not in found
    row = {"row": ROWS[0], "column": "w/ KL", "metric": "outside", "ours": 0.034, "n": 70}
    write_csv(files["table"], pd.concat([table(ROWS), pd.DataFrame([row])]))
    found = flat(fig4.make(files, words, "smoke"))
    assert "Up to 3.4% of the values lie beyond ±8." in found


def test_one_panel_alone(tmp_path: Path) -> None:
    figure = fig4.make(*build(tmp_path, ROWS[:1]), "smoke")
    assert len(frames(figure)) == 1 and outside(figure) == []


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    files, words = build(tmp_path)
    full = table(ROWS)
    write_csv(files["table"], full[full["column"] != "w/ KL"])
    with pytest.raises(ArtifactError, match="holds no 'w/ KL' of ResNet-20, CIFAR-10; delete it"):
        fig4.make(files, words, "smoke")
