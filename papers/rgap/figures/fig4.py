"""R-GAP Figure 4: ResNet-18 and two variants of it, each with one skip cut."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gradleak.errors import ArtifactError
from gradleak.plotting.charts import LOOKS, log_ticks, strip
from gradleak.plotting.layout import SMALL, Cell, Grid, Page, drawing
from gradleak.plotting.reader import Content, caption
from gradleak.plotting.style import GREY, GRID, PAGE, RED, number
from gradleak.plotting.wording import described, precision, signed
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given, read_all, working
from papers.rgap.figures import diagrams
from papers.rgap.tables.resnets import ACCURACY, ARCHITECTURE

# Inches: text above diagrams and pictures, text under a picture, and under the panels.
HEAD, UNDER, TICKS = 0.46, 0.17, 0.46
LEAST, HIGHEST = 1.1, 2.0  # inches, range of the panels' height
SHARE = 1.0  # inches, width of the panel of accuracies
WRAP = 11  # characters of a line of a setting
MOST = 3  # number of images
MARKS = {"o": "●", "s": "■", "^": "▲"}
Look = tuple[str, str]  # colour and marker


class Data:
    """Data of the figure; `ArtifactError` if a file lacks it, or config.yaml a network."""

    def __init__(self, files: Given, words: Given) -> None:
        self.content = Content.read(files, words)  # of the first setting
        self.networks, self.settings = words["networks"], words["columns"]
        self.points = working(read_all(files["points"])).query("metric == 'mse'")
        self.rows = read_csv(files["table"]).set_index(["model", "column", "metric"]).sort_index()
        named = {chain.name: chain for chain in self.content.chains}
        if missing := [model for model in self.networks if model not in named]:
            raise ArtifactError(
                f"No {missing[0]} to draw; name it in the models of the figure's experiments in "
                "config.yaml."
            )
        self.chains = [named[model] for model in self.networks]

    def row(self, model: str, column: str, metric: str) -> pd.Series:
        """Return one row of the table; raise `ArtifactError` if it is missing."""
        if (model, column, metric) not in self.rows.index:
            raise ArtifactError(
                f"The table holds no {metric} of {model} under '{column}'; delete it and ask "
                "Snakemake for it again."
            )
        return self.rows.loc[[(model, column, metric)]].iloc[0]

    def failed(self, model: str, setting: str) -> tuple[int, int]:
        """Numbers of failed runs and of all runs."""
        row = self.row(model, setting, "mse")
        return int(row["n"] - row["n_ok"]), int(row["n"])


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure of one attack.

    Beside those of `Content.read` for the first setting, `files` has ``points``, scores of all
    settings, and ``table``, their summary. `words` has ``networks`` and ``columns`` of that table,
    beginning with the uncut network and the setting shown in pictures.
    """
    data = Data(files, words)
    content, chains = data.content, data.chains
    right = len(chains) * diagrams.BLOCK_WIDTH + 0.18
    under = [UNDER] * min(content.shared(), MOST)
    grid = Grid.fit(right, HEAD, PAGE - 0.01, [1 + len(chains)], under)
    drawn = HEAD + diagrams.block_depth(chains[0])
    top = grid.bottom + 0.2
    depth = max(drawn, top + LEAST + TICKS)
    with drawing(words["title"], _footer(data, scale), depth + 0.05) as page:
        for place, chain in enumerate(chains):
            left = place * diagrams.BLOCK_WIDTH
            _network(page, left + diagrams.EDGE, data, chain.name, LOOKS[place])
            diagrams.draw_blocks(page, left, HEAD, chain, chains[0])
        _pictures(page, grid, data)
        high = min(depth - top - TICKS, HIGHEST)
        _accuracies(page.axes(right + 0.04, top, SHARE, high), data)
        left = right + SHARE + 0.54
        _errors(page.axes(left, top, PAGE - 0.06 - left, high), data)
    return page.figure


def _network(page: Page, left: float, data: Data, model: str, look: Look) -> None:
    _name(page, left, 0.12, data.networks[model], look)
    for top, metric, words in ((0.24, "ra", "RA-i"), (0.35, "ra_alone", "RA-i alone")):
        value = int(data.row(model, ARCHITECTURE, metric)["ours"])
        colour = RED if value > 0 else "black"
        page.text(left, top, f"{words} = {signed(value)}", fontsize=6, color=colour)


def _name(page: Page, left: float, top: float, name: str, look: Look, **style: Any) -> None:
    words = f"{MARKS[look[1]]} {name}"
    page.text(left, top, words, color=look[0], weight="bold", fontsize=6.5, **style)


def _pictures(page: Page, grid: Grid, data: Data) -> None:
    content, setting = data.content, next(iter(data.settings.values()))
    attack, heading = next(iter(content.attacks.items()))
    page.text(grid.lefts[0], 0.12, f"{heading}: {setting.lower()}", fontsize=6.5, weight="bold")
    page.text(grid.middle(0), HEAD - 0.15, "Original", ha="center", fontsize=6.5, weight="bold")
    said = ["mean MSE ± SD", *(_summary(data, model, setting) for model in data.networks)]
    grid.head(page, said, 0.045, va="baseline", fontsize=5.5, color=GREY)
    cells: dict[tuple[int, int], Cell] = {}
    for column, (model, name) in enumerate(data.networks.items(), start=1):
        _name(page, grid.middle(column), HEAD - 0.15, name, LOOKS[column - 1], ha="center")
        for batch in range(len(grid.tops)):
            found = content.panel(model, attack).answer(batch)
            cells[batch, column] = content.cell(found, caption(found))
            cells[batch, 0] = content.original(batch, content.originals.classes(batch)[0])
    grid.draw(page, cells)


def _summary(data: Data, model: str, setting: str) -> str:
    """Mean and standard deviation of the MSE, or the number of failed runs."""
    mean, spread = (data.row(model, setting, metric)["ours"] for metric in ("mse", "mse_sd"))
    failed, n = data.failed(model, setting)
    if failed:
        return f"{failed} of {n} failed"
    return f"{number(mean)} ± {number(spread)}" if np.isfinite(spread) else number(mean)


def _accuracies(axes: Axes, data: Data) -> None:
    inside = axes.get_yaxis_transform()
    for place, (model, name) in enumerate(data.networks.items()):
        colour, marker = LOOKS[place]
        row = data.row(model, ACCURACY, "accuracy")
        value, low, high = (100 * float(row[key]) for key in ("ours", "low", "high"))
        error, words = [[value - low], [high - value]], f"{name}: {value:.1f} %"
        axes.errorbar(value, place, xerr=error, color=colour, marker=marker, capsize=2)
        axes.text(0.02, place - 0.2, words, transform=inside, fontsize=SMALL, va="bottom")
    axes.set(ylim=(len(data.networks) - 0.6, -0.75), yticks=[], xlabel="Test accuracy, %")
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.spines["left"].set_visible(False)


def _errors(axes: Axes, data: Data) -> None:
    limits = _limits(data.points["value"])
    axes.set(yscale="log", ylim=limits, xlim=(-0.5, len(data.settings) - 0.5), ylabel="MSE")
    step = 0.8 / len(data.networks)
    for place, (result, setting) in enumerate(data.settings.items()):
        for order, model in enumerate(data.networks):
            x = place + step * (order - (len(data.networks) - 1) / 2)
            there = (data.points["model"] == model) & (data.points["result"] == result)
            spread = [data.row(model, setting, metric)["ours"] for metric in ("mse", "mse_sd")]
            _column(axes, x, step, data.points["value"][there], spread, LOOKS[order])
        if place:
            axes.axvline(place - 0.5, color=GRID, linewidth=0.4)
    axes.set_xticks(range(len(data.settings)), [_tick(data, s) for s in data.settings.values()])
    axes.tick_params(axis="x", length=0, labelsize=SMALL, pad=2)
    axes.grid(False, axis="x")
    narrow = limits[1] < 100 * limits[0]
    log_ticks(axes.yaxis, 8, (1, 2, 5) if narrow else (1,))
    if narrow:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _limits(values: pd.Series) -> tuple[float, float]:
    """Range of the MSE, with room at the top for failed runs."""
    works = values[values > 0]
    if works.empty:
        return 1e-3, 1.0
    low, high = works.min() / 1.6, works.max() * 1.6
    return low, high * (high / low) ** 0.25 if values.isna().any() else high


def _tick(data: Data, setting: str) -> str:
    """Setting, number of runs and iterations of the attack, on short lines."""
    counts = {data.failed(model, setting)[1] for model in data.networks}
    spent = [data.row(model, setting, "iterations")["ours"] for model in data.networks]
    steps = sorted({int(value) for value in spent if np.isfinite(value)})
    lines = [*textwrap.wrap(setting, WRAP), f"n = {', '.join(map(str, sorted(counts)))}"]
    return "\n".join([*lines, f"{', '.join(map(str, steps))} steps"] if steps else lines)


def _column(
    axes: Axes, x: float, step: float, runs: pd.Series, spread: Sequence[float], look: Look
) -> None:
    """Draw points, mean and spread of a network in a setting; failed runs as cross and count."""
    style: dict[str, Any] = dict(zip(("color", "marker"), look, strict=True))
    strip(axes, x, runs, 0.2 * step, markersize=2.5, alpha=0.45, **style)
    mean, deviation = spread
    if np.isfinite(mean):
        style |= {"mec": "black", "mew": 0.5, "ecolor": "black", "elinewidth": 0.7, "zorder": 3}
        bar = deviation if np.isfinite(deviation) else None
        axes.errorbar(x, mean, yerr=bar, markersize=4, **style)
    if failed := int(runs.isna().sum()):
        where = axes.get_xaxis_transform()
        axes.plot(x, 0.88, "x", color=look[0], markersize=3, transform=where)
        axes.text(x, 0.91, f"{failed}", fontsize=5, ha="center", va="bottom", transform=where)


def _each(data: Data) -> str:
    """Say what a run is one of."""
    draws = data.points["seed"].nunique()
    several = f" under each of up to {draws} draws of the initial weights (pictures: the first)"
    return f"one for each image{several if draws > 1 else ''}"


def _footer(data: Data, scale: str) -> str:
    trained = data.row(next(iter(data.networks)), ACCURACY, "accuracy")["note"]
    content, batches = data.content, sorted(set(data.points["batch"]))
    failed = [
        f"{count} of {n} on {name} ({setting.lower()})"
        for setting in data.settings.values()
        for model, name in data.networks.items()
        for count, n in [data.failed(model, setting)]
        if count
    ]
    return (
        f"{content.note} Accuracy: {trained}; bars: 95 % intervals. MSE: small marks are "
        "runs, large ones their mean, bars the standard deviation over images (SD), to the lower "
        "edge where it exceeds the mean; x: failed runs, with their number, which leave no mean. "
        "Untrained: initial weights; mode: that of the norms. MSE of pixels in [0, 1]; pictures "
        f"are clipped to that range. Runs: n for each network and setting, {_each(data)}, with so "
        f"many steps of the attack; {'failed: ' if failed else 'none failed'}{', '.join(failed)}. "
        "Images: "
        f"{described(content.originals, batches)}; scale {scale}; gradients in "
        f"{precision([content.table()])}."
    )
