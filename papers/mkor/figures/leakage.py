"""Information on one gradient in a sum, against the batch size (MKOR eq. 1 and 2)."""

from collections.abc import Mapping
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

LEFT, BETWEEN, HEAD, CHART, TICKS = 0.55, 0.6, 0.3, 1.9, 0.42  # inches
# Markers of the two estimates, and colours of the layers.
MARKS = {"measured": ("o", "by correlation"), "entropies": ("x", "by entropies")}
COLOURS = (BLUE, RED, ORANGE)
SHIFTS = (0.94, 1.06)  # keep markers of two layers from overlapping
TITLE = "What the sum of K gradients tells of one of them (MKOR eq. 1 and 2)"


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw the ``table`` of `papers.mkor.leakage.table`, made from ``targets``."""
    table, originals = read_csv(files["table"]), targets.read(files["targets"])
    # Batches are drawn from all of the set's batches.
    said = counted(originals, None, "").replace(" a batch", "", 1).split(" ", 1)[1]
    images = f"{len(np.unique(originals.indices)):,} {said}"
    width = (PAGE - LEFT - BETWEEN - 0.1) / 2
    with drawing(TITLE, _footer(images, scale), HEAD + CHART + TICKS) as page:
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
    layers = list(dict.fromkeys(table["layer"]))
    for number, layer in enumerate(layers):
        rows = table[table["layer"] == layer]
        for column, (mark, name) in MARKS.items():
            there = rows[rows[column].notna() & (rows[column] > 0)]
            shown = there[column] / there["formula"] if over_formula else there[column]
            axes.plot(
                there["images"] * SHIFTS[number % 2],
                shown,
                mark,
                color=COLOURS[number % len(COLOURS)],
                markersize=3.5,
                fillstyle="none",
                label=f"{layer}, {name}",
            )


def _footer(images: str, scale: str) -> str:
    return (
        "Curve: H(Σ) − H(Σ | g₁) of normal gradients. Circles: −½ log(1 − ρ²), ρ the correlation "
        "over drawn batches between one image's gradient and the batch's sum, ρ² averaged over "
        "parameters; images are drawn independently, so it is 1/K but for the draws, whatever the "
        "distribution. Crosses: H of the sum over K less H of the sum over K − 1, estimated from "
        "spacings (Vasicek), which assumes no distribution, so that they leave the curve where "
        "gradients are far from normal; for 5 to 100 images alone: below "
        "the few sums of a finite set repeat, above the difference is smaller than its error. "
        "Network: LeNet-5 with honest weights, cross-entropy. Batches are drawn anew from all "
        f"images of the target set: {images}. Scale {scale}."
    )
