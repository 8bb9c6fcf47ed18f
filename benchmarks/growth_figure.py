"""The figure of `benchmarks.growth`: time and memory over size, log-log."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.growth_cases import ALONE, CASES, OK
from gradleak.plotting import style

SIDE = "side (n: unknowns)"
# Panels of both rows: seconds above, memory below. A step, a call and an attack are different
# things, so that what is compared is the slope.
PANELS: Sequence[tuple[str, tuple[str, ...]]] = (
    (SIDE, ("R-GAP", "COPA", "Gauss-Newton", "layer, ours", "layer, dense")),
    (SIDE, ("gradient", "DLG", "Inverting Gradients", "GRNN", "rank and c(M)")),
    ("images of a batch (n)", ("gradient of a batch", "MKOR")),
    ("jobs (n)", ("snakemake -n", "snakemake")),
)
ROWS = (("seconds", "CPU seconds"), ("mib", "MiB above the interpreter's"))
MARKS = "osD^v"
APART = 1.4  # least ratio of a size to the one before whose label stays


def draw(table: pd.DataFrame, exponents: pd.DataFrame) -> Figure:
    """Draw each case's measurements, with its exponent over n; those of one size are left out."""
    known = exponents.set_index(["what", "measure"])["exponent"]
    with style.styled():
        figure = style.new(style.PAGE, 4.6)
        axes = figure.subplots(len(ROWS), len(PANELS), squeeze=False)
        for line, (measure, words) in zip(axes, ROWS, strict=True):
            for axis, (title, names) in zip(line, PANELS, strict=True):
                for name, mark in zip(names, MARKS, strict=False):
                    _line(axis, table, name, measure, mark, known.get((name, measure)))
                axis.set_xscale("log")
                axis.set_yscale("log")
                axis.set_xlabel(title)
                axis.minorticks_off()
                sizes = sorted({*table.loc[table["what"].isin(names), "size"]})
                axis.set_xticks(sizes, _labels(sizes))
                axis.margins(0.12, 0.1)
                if axis.lines:
                    axis.legend(fontsize=5.0, loc="upper left", handlelength=1.2, borderpad=0.1)
                low, high = axis.get_ylim()
                axis.set_ylim(low, high * (high / low) ** (0.1 * len(names)))
            line[0].set_ylabel(words)
        figure.tight_layout(pad=0.4, w_pad=0.6, h_pad=0.8)
    return figure


def _labels(sizes: Sequence[int]) -> list[str]:
    """Labels of sizes, without those that the next one would cover."""
    following = [*sizes, math.inf][1:]
    return [
        f"{one:,}" if APART * one <= up else "" for one, up in zip(sizes, following, strict=True)
    ]


def _line(
    axis: Axes, table: pd.DataFrame, what: str, measure: str, mark: str, exponent: float | None
) -> None:
    rows = table[(table["what"] == what) & (table["status"] == OK) & (table[measure] > 0)]
    if what == ALONE or rows.empty:
        return
    per = {"step": ", a step"}.get(CASES[what].per, "") if measure == "seconds" else ""
    power = "" if exponent is None or exponent != exponent else f": n^{exponent:.2f}"
    axis.plot(rows["size"], rows[measure], marker=mark, label=f"{what}{per}{power}")
