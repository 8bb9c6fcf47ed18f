"""c(M) against MSE, a point per network and a panel per attack, from the index table."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from gradleak.data import targets
from gradleak.data.targets import TargetSet
from gradleak.plotting.layout import EDGE, drawing
from gradleak.plotting.style import BLUE, GREY, PAGE, RED, number
from gradleak.plotting.wording import signed
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given
from papers.copa.tables.network_index import ALL, WORDS

MARKERS = {2: ("o", BLUE), 3: ("^", RED)}
OTHER = ("s", GREY)
NAMES = {"copa": "COPA", "rgap": "R-GAP", "copa_tv": "COPA denoised"}
# Inches: left of the first panel, between panels, above them, their height, below them.
LEFT, GAP, HEAD, HIGH, BELOW = 0.52, 0.12, 0.93, 1.76, 0.6
DEPTH = r"(\w+)-layer networks"  # rows of all networks of one depth
DASHED = (0, (4, 2))
ENOUGH = 10  # number of networks; with fewer, bootstrap intervals are far too narrow


def grey_error(targets: TargetSet) -> float:
    """MSE of plain grey, x = 0.5 in [0, 1]: with inputs x - 0.5, an all-zero input."""
    return float(np.mean((targets.images / 255.0 - 0.5) ** 2))


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the index ``table``; ``targets`` give the MSE of plain grey."""
    return draw(read_csv(files["table"]), grey_error(targets.read(files["targets"])))


def draw(table: pd.DataFrame, grey: float) -> Figure:
    """Draw the index `table`, with the MSE `grey` of an uninformed guess."""
    errors = table[table["metric"] == "mse"]
    correlations = table[table["metric"] == "spearman"]
    summaries = correlations[correlations["row"] == ALL].set_index("column")
    groups, worst, works = by_depth(correlations), float(errors["c"].min()), errors["ours"].dropna()
    attacks = list(dict.fromkeys(errors["column"]))
    width = (PAGE - LEFT - 0.07 - GAP * (len(attacks) - 1)) / len(attacks)
    with drawing("Is c(M) an indicator?", _footer(errors, grey), HEAD + HIGH + BELOW) as page:
        page.text(EDGE, 0.05, conclusion(summaries, groups), va="top", linespacing=1.4)
        for place, attack in enumerate(attacks):
            axes = page.axes(LEFT + place * (width + GAP), HEAD, width, HIGH)
            _draw_panel(axes, errors[errors["column"] == attack])
            axes.axhline(grey, color=GREY, linewidth=0.6, linestyle=DASHED, zorder=1)
            lines = [_title(attack, summaries.loc[attack])]
            for _, row in groups[groups["column"] == attack].iterrows():
                lines.append(f"{row['row']}: {_correlation(row)}")
            axes.set_title("\n".join(lines), loc="left", fontsize=7, linespacing=1.3)
            axes.set_xlabel("c(M); 0: every layer's system has full rank")
            axes.set_ylabel("" if place else "MSE (median of runs)")
            axes.tick_params(labelleft=not place)
            axes.set_yscale("log")
            axes.yaxis.set_minor_locator(NullLocator())
            if not works.empty:
                axes.set_ylim(works.min() / 3, max(works.max() * 10, 1.0))
            if worst < 0:
                axes.set_xlim(worst * 1.06, -worst * 0.05)
        style = {"loc": "upper left", "columnspacing": 0.9, "fontsize": 6, "handletextpad": 0.3}
        page.legend(_legend(errors), 0.0, HEAD + HIGH + 0.42, ncols=6, **style)
    return page.figure


def _draw_panel(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw networks of one attack; failures are crosses at the upper edge."""
    for _, group in rows.groupby(["convolutions", "exact"]):
        marker, colour = MARKERS.get(int(group["convolutions"].iloc[0]), OTHER)
        style: dict[str, Any] = {"color": colour, "alpha": 0.9, "mew": 0.8}
        face = colour if group["exact"].iloc[0] else "white"
        axes.plot(group["c"], group["ours"], marker, mfc=face, **style)
        failed, top = group.loc[group["ours"].isna(), "c"], axes.get_xaxis_transform()
        y = [0.97] * len(failed)
        axes.plot(failed, y, "x", color=colour, transform=top, clip_on=False)


def _correlation(row: pd.Series, interval: str = "") -> str:
    rho, low, high = (signed(row[key], ".2f") for key in ("ours", "low", "high"))
    return f"ρ = {rho} ({interval}{low} to {high})"


def _title(attack: str, summary: pd.Series) -> str:
    name = f"{NAMES.get(attack, attack)}, {int(summary['n'])} networks"
    if pd.isna(summary["ours"]):
        return f"{name}\nno rank correlation"
    return f"{name}\nSpearman's {_correlation(summary, '95 % interval ')}"


def by_depth(correlations: pd.DataFrame) -> pd.DataFrame:
    """Correlations among networks of one depth, if there are enough; ``depth`` is a word."""
    found = correlations.assign(depth=correlations["row"].str.extract(f"^{DEPTH}$", expand=False))
    usable = found["depth"].notna() & found["ours"].notna() & (found["n"] >= ENOUGH)
    return found[usable]


def _depths_compared(groups: pd.DataFrame) -> str:
    """Say if depths agree in sign and which intervals include 0; empty for fewer than two."""
    if len(groups) < 2:
        return ""
    depths = list(groups["depth"])
    names = f"{'-, '.join(depths[:-1])}- and {depths[-1]}-layer networks".capitalize()
    sign = "differ in sign" if len(set(np.sign(groups["ours"]))) > 1 else "agree in sign"
    open_ = list(groups["depth"][(groups["low"] <= 0) & (groups["high"] >= 0)])
    which = "but each interval" if len(open_) == len(groups) else "and no interval"
    if 0 < len(open_) < len(groups):
        which = f"but the interval of {'- and '.join(open_)}-layer ones"
    return f" {names} {sign}, {which} includes 0."


def conclusion(summaries: pd.DataFrame, groups: pd.DataFrame) -> str:
    """Say for each attack if c(M) orders networks, by intervals of all and of `groups` by depth."""
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


def _legend(rows: pd.DataFrame) -> dict[str, Line2D]:
    looks: dict[str, tuple[str, str, str | None]] = {
        f"{WORDS.get(depth, str(depth + 1))}-layer network": (*MARKERS.get(depth, OTHER), None)
        for depth in sorted({int(depth) for depth in rows["convolutions"]})
    }
    looks["c(M) from the structure"] = "o", GREY, None
    looks["c(M) from a numerical rank"] = "o", GREY, "white"
    if rows["ours"].isna().any():
        looks["failed: counts as worst"] = "x", GREY, None
    marks = {
        words: Line2D([], [], linestyle="none", marker=marker, color=colour, mfc=face)
        for words, (marker, colour, face) in looks.items()
    }
    return {**marks, "guessing grey": Line2D([], [], color=GREY, lw=0.6, linestyle=DASHED)}


def _footer(rows: pd.DataFrame, grey: float) -> str:
    least, most = int(rows["n"].min()), int(rows["n"].max())
    each = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"Networks drawn at random (config.yaml, families), the last layer fully connected; "
        f"{each} run{'s' if most > 1 else ''} (images and seeds) for each network and attack; "
        f"{rows['images'].iloc[0]} images; scale {rows['scale'].iloc[0]}. "
        f"Intervals: 95 %, bootstrap over networks. Guessing grey, the middle of the "
        f"range, for every pixel has a mean MSE of {number(grey)} on these images."
    )
