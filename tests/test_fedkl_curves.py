"""FedKL Table II's curves and Figure 4 from synthetic files."""

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
from gradleak.plotting import curves, style
from gradleak.plotting.style import BLUE, GREEN, ORANGE, RED
from gradleak.runtime.artifacts import write_csv
from papers.fedkl.figures import curves as fedkl_curves
from papers.fedkl.figures import fig4

NETWORKS = ["ResNet-20", "ResNet-32", "VGG-16"]
# Accuracy of each network on each data set without and with a key-lock; None was not trained.
REACHED = {(0, 0): (0.9, 0.85), (0, 1): (0.8, 0.82), (0, 2): (0.7, None)}
REACHED |= {(1, 0): (0.5, 0.4), (1, 2): (0.6, 0.65)}


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


def test_curves_land_in_their_panels_with_numbers_of_the_summary(tmp_path):
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
    found = flat(figure)
    # From below, where curves end high.
    for line, wanted in enumerate(
        (["w/ KL 85.0 %", "w/o KL 90.0 %"], ["w/o KL 0.20", "w/ KL 0.30"])
    ):
        assert [text.get_text() for text in drawn[line, 0].texts] == wanted
    counts = "1,000, 100, 200 to train, choose the epoch and test; one draw"
    for fact in ("CIFAR-10 (here photos10); CIFAR-100;", counts, "w/ KL", "ResNet-32"):
        assert fact in found


def test_seeds_are_thin_lines_below_their_mean(tmp_path):
    figure = fedkl_curves.make(*build(tmp_path, seeds=3, client=False), "smoke")
    axes = panels(figure)[0, 0]
    assert len(axes.lines) == 2 * (3 + 1)
    assert axes.lines[3].get_ydata()[-1] == pytest.approx(91.0, rel=1e-3)
    assert "w/o KL 91.0 %" in texts(figure) and "means over 3 draws" in flat(figure)


def test_one_epoch_is_marked(tmp_path):
    axes = panels(fedkl_curves.make(*build(tmp_path, epochs=1), "smoke"))[0, 0]
    assert {line.get_marker() for line in axes.lines} == {"."}


def test_a_loss_that_dwarfs_the_others_makes_the_axis_logarithmic(tmp_path):
    files, words = build(tmp_path)
    rows = pd.read_csv(files["curves"][0])
    rows.loc[rows["epoch"] == 1, "validation_loss"] = 600
    write_csv(files["curves"][0], rows)
    drawn = panels(fedkl_curves.make(files, words, "smoke"))
    scales = {(line, drawn[line, 0].get_yscale()) for line in range(4)}
    assert scales == {(0, "linear"), (1, "log"), (2, "linear"), (3, "linear")}
    assert drawn[1, 0].get_ylim() == drawn[1, 1].get_ylim() and drawn[1, 0].get_ylim()[1] > 600


def test_rows_and_columns_without_curves_are_left_out(tmp_path):
    files, words = build(tmp_path)
    kept = [k for k, entry in enumerate(words["curves"]) if entry["row"] and entry["column"]]
    files = {name: [paths[k] for k in kept] for name, paths in files.items()}
    words = {**words, "curves": [words["curves"][k] for k in kept]}
    figure = fedkl_curves.make(files, words, "smoke")
    found = flat(figure)
    assert "ResNet-20" not in found and "CIFAR-10 " not in found and "VGG-16" in found


def test_what_is_missing_is_one_sentence(tmp_path):
    files, words = build(tmp_path)
    words["curves"][0]["model"] = "another"
    with pytest.raises(ArtifactError, match="has no rows of another; delete it"):
        curves.read(files, words["curves"])


# --- Figure 4 ------------------------------------------------------------------------------------

PLACES = ["ResNet-20, CIFAR-10", "ResNet-20, CIFAR-100", "ResNet-18, CIFAR-10"]
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


def build4(folder: Path, rows: list[str] = PLACES) -> tuple[dict[str, Any], dict[str, Any]]:
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


def test_each_panel_has_its_distributions_and_accuracies(tmp_path):
    figure = fig4.make(*build4(tmp_path), "smoke")
    drawn = frames(figure)
    assert len(drawn) == len(PLACES)
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
    found = texts(figure)
    assert found.count("0.50") == 2 * len(PLACES) and found.count("−0.30") == len(PLACES)
    assert found.count("25%") == 2 * len(PLACES) and found.count("highest") == len(PLACES)
    assert [word for word in found if word in PLACES] == PLACES


def test_values_beyond_the_bins_are_said(tmp_path):
    files, words = build4(tmp_path)
    found = flat(fig4.make(files, words, "smoke"))
    assert "bins of 0.25" in found and "images (70)" in found and "beyond" not in found
    row = {"row": PLACES[0], "column": "w/ KL", "metric": "outside", "ours": 0.034, "n": 70}
    write_csv(files["table"], pd.concat([table(PLACES), pd.DataFrame([row])]))
    found = flat(fig4.make(files, words, "smoke"))
    assert "Up to 3.4% of the values lie beyond ±8." in found


def test_one_panel_alone(tmp_path):
    figure = fig4.make(*build4(tmp_path, PLACES[:1]), "smoke")
    assert len(frames(figure)) == 1 and outside(figure) == []


def test_a_missing_distribution_is_one_sentence(tmp_path):
    files, words = build4(tmp_path)
    full = table(PLACES)
    write_csv(files["table"], full[full["column"] != "w/ KL"])
    with pytest.raises(ArtifactError, match="holds no 'w/ KL' of ResNet-20, CIFAR-10; delete it"):
        fig4.make(files, words, "smoke")
