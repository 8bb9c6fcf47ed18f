"""Information on one gradient in a sum, against the batch size (MKOR eq. 1 and 2)."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.data import targets
from gradleak.plotting.layout import drawing
from gradleak.plotting.style import BLUE, GREY, ORANGE, PAGE, RED
from gradleak.plotting.wording import counted
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given

LEFT, BETWEEN, HEAD, CHART, TICKS = 0.55, 0.6, 0.3, 1.9, 0.42  # inches
# Markers of the two estimates, and colours of the layers.
MARKS = {"measured": ("o", "by correlation"), "entropies": ("x", "by entropies")}
COLOURS = (BLUE, RED, ORANGE)
SHIFTS = (0.94, 1.06)  # keep markers of two layers from overlapping


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the ``table`` of `papers.mkor.leakage.table`, made from ``targets``."""
    table, originals = read_csv(files["table"]), targets.read(files["targets"])
    # Batches are drawn from all of the set's batches.
    said = counted(originals, None, "").replace(" a batch", "", 1).split(" ", 1)[1]
    images = f"{len(np.unique(originals.indices)):,} {said}"
    width = (PAGE - LEFT - BETWEEN - 0.1) / 2
    footer = f"{words['note']} {images}. Scale {scale}."
    with drawing(words["title"], footer, HEAD + CHART + TICKS) as page:
        axes = page.axes(LEFT, HEAD, width, CHART)
        rows = table.drop_duplicates("images").sort_values("images")
        ks = rows["images"]
        fine = np.geomspace(ks.min(), ks.max(), 200)
        axes.plot(fine, 0.5 * np.log(fine / (fine - 1.0)), color="black", label="½ log(K/(K − 1))")
        axes.plot(ks, rows["asymptote"], color=GREY, linestyle=(0, (3, 2)), label="1/(2K)")
        _marks(axes, table, over_formula=False)
        axes.set(xscale="log", yscale="log", xlabel="Images K in a batch")
        axes.set_title("Leakage of a parameter (nats)", loc="left", pad=4)
        axes.legend(loc="upper right", fontsize=5.5, handlelength=1.6, labelspacing=0.3)
        axes = page.axes(LEFT + width + BETWEEN, HEAD, width, CHART)
        axes.axhline(1.0, color=GREY, linewidth=0.8)
        _marks(axes, table, over_formula=True)
        axes.set(xscale="log", xlabel="Images K in a batch")
        axes.set_title("Measured over formula", loc="left", pad=4)
    return page.figure


def _marks(axes: Axes, table: pd.DataFrame, *, over_formula: bool) -> None:
    for number, (layer, rows) in enumerate(table.groupby("layer", sort=False)):
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "fillstyle": "none"}
        for column, (mark, name) in MARKS.items():
            there = rows[rows[column] > 0]
            shown = there[column] / there["formula"] if over_formula else there[column]
            x = there["images"] * SHIFTS[number % 2]
            axes.plot(x, shown, mark, markersize=3.5, label=f"{layer}, {name}", **style)
