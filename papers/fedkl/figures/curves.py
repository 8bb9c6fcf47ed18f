"""FedKL Table II: accuracy and loss over epochs, with and without key-lock."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from gradleak.plotting import curves
from gradleak.plotting.curves import LOOKS, NAMES, Curve
from gradleak.plotting.layout import SMALL, drawing
from gradleak.plotting.style import GREY, PAGE

# Inches: left margin, gaps, headings, heights of panels, and space below the last ones.
LEFT, GAP, HEAD, HIGH, BETWEEN, TICKS = 0.52, 0.1, 0.5, 0.86, 0.12, 0.2
DWARFED = 30.0  # ratio of losses from which their axis is logarithmic
BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.75}
# Metric of the curves, its factor, its name with the unit.
METRICS = (("validation_accuracy", 100.0, "accuracy, %"), ("validation_loss", 1.0, "loss"))


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw the figure from files of `gradleak.plotting.curves.read`.

    `words` has ``rows`` (data sets) and ``columns`` (networks) with ``name`` and ``below`` of each,
    and ``curves`` with the indices ``row`` and ``column``; those without curves are left out.
    """
    found = curves.read(files, words["curves"])
    cells = defaultdict[tuple[int, int], list[Curve]](list)
    for entry, curve in zip(words["curves"], found, strict=True):
        cells[entry["row"], entry["column"]].append(curve)
    rows, columns = (sorted(set(numbers)) for numbers in zip(*cells, strict=True))
    lines = [(row, metric) for row in rows for metric in METRICS]
    width = (PAGE - LEFT - 0.06) / max(len(columns), 3) - GAP
    lefts = [LEFT + place * (width + GAP) for place in range(len(columns))]
    depth = HEAD + len(lines) * (HIGH + BETWEEN) + TICKS
    with drawing(words["title"], _footer(words, rows, found, scale), depth) as page:
        for place, lock in enumerate((True, False)):
            axes = page.swatch(LEFT + 0.85 * place, 0.08, NAMES[lock], 0.28, 6.5)
            axes.plot((0, 1), (0.5, 0.5), **LOOKS[lock])
        below: dict[str, Any] = {"ha": "center", "fontsize": SMALL, "color": GREY}
        for left, entry in zip(lefts, [words["columns"][k] for k in columns], strict=True):
            middle = left + width / 2
            page.text(middle, HEAD - 0.16, entry["name"], weight="bold", ha="center")
            page.text(middle, HEAD - 0.06, entry.get("below", ""), **below)
        for line, (row, metric) in enumerate(lines):
            top = HEAD + line * (HIGH + BETWEEN)
            drawn = [page.axes(left, top, width, HIGH) for left in lefts]
            own = [cells[row, column] for column in columns]
            name = f"{words['rows'][row]['name']}\n{metric[2]}"
            _line(drawn, own, metric, name, last=line == len(lines) - 1)
    return page.figure


def _line(
    drawn: Sequence[Axes],
    own: Sequence[Sequence[Curve]],
    metric: tuple[str, float, str],
    name: str,
    *,
    last: bool,
) -> None:
    """Draw one metric on one data set: a panel for each network, with common limits."""
    key, factor, _ = metric
    means = [factor * curve.mean(key) for each in own for curve in each]
    low, high, log = _limits(np.concatenate(means), key)
    for place, (axes, each) in enumerate(zip(drawn, own, strict=True)):
        if not each:
            axes.text(0.5, 0.5, "\N{EN DASH}", transform=axes.transAxes, ha="center", color=GREY)
            axes.set_axis_off()
            continue
        for curve in each:
            curve.draw(axes, key, factor)
        axes.set(yscale="log" if log else "linear", ylim=(low, high))
        axes.margins(x=0.04)
        axes.yaxis.set_major_locator(LogLocator(numticks=4) if log else MaxNLocator(4))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(labelleft=place == 0, labelbottom=last, length=2, pad=2)
        curves.whole_epochs(axes)
        if last:
            axes.set_xlabel("epoch", labelpad=1)
        _numbers(axes, each, key)
    drawn[0].set_ylabel(name, labelpad=2)


def _limits(found: np.ndarray, key: str) -> tuple[float, float, bool]:
    """Range of a line's values, a loss's from 0, and whether its first epochs dwarf the others."""
    values = found[np.isfinite(found)]
    if not len(values):
        return 0.0, 1.0, False
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 0.5
    if "accuracy" in key:
        return low - room, high + room, False
    if low > 0 and high > DWARFED * low:
        return low / 1.5, high * 1.5, True
    return 0.0, high + room, False


def _numbers(axes: Axes, each: Sequence[Curve], key: str) -> None:
    """Write test accuracy, or the loss at its epoch, of each network."""
    # Curves that end in the panel's upper half leave room below.
    ends = np.array([np.asarray(line.get_xydata())[-1] for line in axes.get_lines()])
    heights = axes.transAxes.inverted().transform(axes.transData.transform(ends))[:, 1]
    below = bool(heights.mean() > 0.5)
    for place, curve in enumerate(sorted(each, key=lambda one: one.lock, reverse=below)):
        chosen = curve.summary[["seed", "best_epoch"]].rename(columns={"best_epoch": "epoch"})
        at_best = float(chosen.merge(curve.epochs, on=["seed", "epoch"])[key].mean())
        said = f"{100 * curve.tested:.1f} %" if "accuracy" in key else f"{at_best:.2f}"
        y = 0.05 + 0.13 * place if below else 0.95 - 0.13 * place
        style: dict[str, Any] = {"ha": "right", "va": "bottom" if below else "top"}
        style |= {"fontsize": SMALL, "color": LOOKS[curve.lock]["color"], "bbox": BOX}
        axes.text(0.97, y, f"{NAMES[curve.lock]} {said}", transform=axes.transAxes, **style)


def _footer(
    words: Mapping[str, Any], rows: Sequence[int], found: Sequence[Curve], scale: str
) -> str:
    entries = [words["rows"][row] for row in rows]
    images = "; ".join(" ".join(filter(None, [e["name"], e.get("below")])) for e in entries)
    return (
        f"{words.get('note', '')} Curves: accuracy and loss on the images that choose the epoch. "
        "Numbers: accuracy at that epoch on test images, which chose nothing, and the loss of the "
        f"curve at that epoch. Images: {images}; {curves.describe(found)}. Scale {scale}."
    )
