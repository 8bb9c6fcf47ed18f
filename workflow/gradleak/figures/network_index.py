"""c(M) against MSE, a point per network and a panel per attack, from the index table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from gradleak.artifacts import read_csv
from gradleak.figures.style import BLUE, GREY, PAGE, RED, new, number, styled
from gradleak.tables.network_index import ALL, WORDS
from gradleak.targets import TargetSet, read

MARKERS = {2: ("o", BLUE), 3: ("^", RED)}
OTHER = ("s", GREY)
NAMES = {"copa": "COPA", "rgap": "R-GAP", "copa_tv": "COPA denoised"}
MINUS = "\N{MINUS SIGN}"
HEIGHT = 4.0
DEPTH = r"(\w+)-layer networks"  # the table's rows of all networks of one depth
DASHED = (0, (4, 2))
ENOUGH = 10  # networks: a bootstrap over fewer has intervals that are far too narrow


def grey_error(targets: TargetSet) -> float:
    """MSE of guessing plain grey, x = 0.5 of [0, 1]: with inputs x - 0.5, an all-zero input."""
    return float(np.mean((targets.images / 255.0 - 0.5) ** 2))


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files: ``table``, the index table, and ``targets`` of its networks."""
    return draw(read_csv(files["table"]), grey_error(read(files["targets"])))


def draw(table: pd.DataFrame, grey: float) -> Figure:
    """Draw the index table.

    Parameters
    ----------
    table
        As ``gradleak.tables.network_index.table`` gives it.
    grey
        MSE of a guess that knows nothing, from `grey_error`.
    """
    errors = table[table["metric"] == "mse"]
    correlations = table[table["metric"] == "spearman"]
    summaries = correlations[correlations["row"] == ALL].set_index("column")
    groups = by_depth(correlations)
    attacks = list(dict.fromkeys(errors["column"]))
    with styled():
        figure = new(PAGE, HEIGHT)
        panels = figure.subplots(1, len(attacks), sharex=True, sharey=True, squeeze=False)[0]
        figure.subplots_adjust(left=0.075, right=0.99, top=0.70, bottom=0.26, wspace=0.06)
        for panel, attack in zip(panels, attacks, strict=True):
            _draw_panel(panel, errors[errors["column"] == attack])
            panel.axhline(grey, color=GREY, linewidth=0.6, linestyle=DASHED, zorder=1)
            lines = [_title(attack, summaries.loc[attack]), *_depth_lines(groups, attack)]
            panel.set_title("\n".join(lines), loc="left", fontsize=7, linespacing=1.3)
            panel.set_xlabel("c(M); 0: every layer's system has full rank")
        _scale(panels[0], errors)
        panels[0].set_ylabel("MSE (median of runs)")
        figure.text(0.01, 0.975, "Is c(M) an indicator?", va="top", fontsize=8, weight="bold")
        figure.text(0.01, 0.92, conclusion(summaries, groups), va="top", linespacing=1.4)
        figure.legend(
            handles=_legend(errors),
            loc="lower left",
            ncols=6,
            bbox_to_anchor=(0.0, 0.085),
            columnspacing=1.2,
            handletextpad=0.3,
        )
        figure.text(0.01, 0.02, _footer(errors, grey), va="bottom", fontsize=5.5, color=GREY)
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame) -> None:
    top = _failed_height(rows)
    for _, group in rows.groupby(["convolutions", "exact"]):
        depth, exact = int(group["convolutions"].iloc[0]), bool(group["exact"].iloc[0])
        marker, colour = MARKERS.get(depth, OTHER)
        axes.plot(
            group["c"],
            group["ours"],
            linestyle="none",
            marker=marker,
            markeredgecolor=colour,
            markeredgewidth=0.8,
            markerfacecolor=colour if exact else "white",
            alpha=0.9,
        )
        failed = group[group["ours"].isna()]
        axes.plot(
            failed["c"],
            np.full(len(failed), top),
            linestyle="none",
            marker="x",
            color=colour,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )


def _failed_height(rows: pd.DataFrame) -> float:
    """Height of failed networks, as a share of the axes: its upper edge."""
    return 0.97 if rows["ours"].isna().any() else 1.0


def _scale(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    values = rows["ours"].dropna()
    if not values.empty:
        axes.set_ylim(values.min() / 3, max(values.max() * 10, 1.0))
    worst = float(rows["c"].min())
    if worst < 0:
        axes.set_xlim(worst * 1.06, -worst * 0.05)


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", MINUS)


def _title(attack: str, summary: pd.Series) -> str:
    name = NAMES.get(attack, attack)
    if pd.isna(summary["ours"]):
        return f"{name}, {int(summary['n'])} networks\nno rank correlation"
    low, high = _signed(summary["low"]), _signed(summary["high"])
    return (
        f"{name}, {int(summary['n'])} networks\n"
        f"Spearman's ρ = {_signed(summary['ours'])} (95 % interval {low} to {high})"
    )


def by_depth(correlations: pd.DataFrame) -> pd.DataFrame:
    """Correlations within networks of one depth, where there are enough: ``depth`` is a word."""
    found = correlations.assign(depth=correlations["row"].str.extract(f"^{DEPTH}$", expand=False))
    usable = found["depth"].notna() & found["ours"].notna() & (found["n"] >= ENOUGH)
    return found[usable]


def _depth_lines(groups: pd.DataFrame, attack: str) -> list[str]:
    found = groups[groups["column"] == attack]
    return [
        f"{row['row']}: ρ = {_signed(row['ours'])} "
        f"({_signed(row['low'])} to {_signed(row['high'])})"
        for _, row in found.iterrows()
    ]


def _depths_compared(groups: pd.DataFrame) -> str:
    """Whether depths agree in sign and which intervals include 0; empty for fewer than two."""
    if len(groups) < 2:
        return ""
    depths = list(groups["depth"])
    names = f"{'-, '.join(depths[:-1])}- and {depths[-1]}-layer networks".capitalize()
    sign = "differ in sign" if len(set(np.sign(groups["ours"]))) > 1 else "agree in sign"
    open_ = list(groups["depth"][(groups["low"] <= 0) & (groups["high"] >= 0)])
    if not open_:
        return f" {names} {sign}, and no interval includes 0."
    if len(open_) == len(groups):
        return f" {names} {sign}, but each interval includes 0."
    return f" {names} {sign}, but the interval of {'- and '.join(open_)}-layer ones includes 0."


def conclusion(summaries: pd.DataFrame, groups: pd.DataFrame) -> str:
    """Whether c(M) orders networks, in words for each attack, from the intervals alone.

    Parameters
    ----------
    summaries
        Rows of all networks, by attack.
    groups
        Rows of each depth, as `by_depth` gives them.
    """
    parts = []
    for attack, row in summaries.iterrows():
        name = NAMES.get(str(attack), str(attack))
        if pd.isna(row["ours"]) or row["n"] < ENOUGH:
            parts.append(f"{name}: too few networks to tell.")
        elif row["high"] < 0:
            strength = "strongly" if row["ours"] <= -0.7 else "only in part"
            parts.append(f"{name}: yes, {strength}; a c(M) nearer to 0 goes with a smaller error.")
        elif row["low"] > 0:
            parts.append(f"{name}: no, a c(M) nearer to 0 goes with a larger error.")
        else:
            parts.append(f"{name}: no correlation found (the interval includes 0).")
        parts[-1] += _depths_compared(groups[groups["column"] == attack])
    return "\n".join(parts)


def _legend(rows: pd.DataFrame) -> list[Line2D]:
    def mark(marker: str, colour: str, face: str, label: str) -> Line2D:
        return Line2D(
            [], [], linestyle="none", marker=marker, color=colour, markerfacecolor=face, label=label
        )

    handles = []
    for depth in sorted(set(rows["convolutions"])):
        marker, colour = MARKERS.get(int(depth), OTHER)
        words = f"{WORDS.get(int(depth), str(depth + 1))}-layer network"
        handles.append(mark(marker, colour, colour, words))
    handles.append(mark("o", GREY, GREY, "c(M) from the structure"))
    handles.append(mark("o", GREY, "white", "c(M) from a numerical rank"))
    if rows["ours"].isna().any():
        handles.append(mark("x", GREY, GREY, "failed: counts as worst"))
    dashed = Line2D([], [], color=GREY, linewidth=0.6, linestyle=DASHED, label="guessing grey")
    return [*handles, dashed]


def _footer(rows: pd.DataFrame, grey: float) -> str:
    runs = sorted({int(n) for n in rows["n"]})
    each = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    text = (
        f"Networks drawn at random (config.yaml, families), the last layer fully connected; "
        f"{each} run{'s' if runs[-1] > 1 else ''} (images and seeds) for each network and attack; "
        f"{rows['images'].iloc[0]} images; scale {rows['scale'].iloc[0]}. "
        f"Intervals: 95 %, bootstrap over networks. Guessing grey, the middle of the "
        f"range, for every pixel has a mean MSE of {number(grey)} on these images."
    )
    return textwrap.fill(text, 165)
