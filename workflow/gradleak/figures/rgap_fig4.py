"""R-GAP Figure 4: ResNet-18 and two variants of it, each with one skip cut."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gradleak.artifacts import read_csv
from gradleak.errors import ArtifactError
from gradleak.figures import missing
from gradleak.figures import residual_diagrams as diagrams
from gradleak.figures.answers import Content, caption
from gradleak.figures.diagrams import signed
from gradleak.figures.pictures import SMALL, TITLE, Page, describe_images, under
from gradleak.figures.style import BLUE, GREEN, GREY, GRID, ORANGE, PAGE, RED, number, styled
from gradleak.models.chain import Chain
from gradleak.tables.resnets import ACCURACY, ARCHITECTURE

# Inches: words above diagrams and pictures, gaps, words under a picture, and under the panels.
HEAD, GAP, UNDER, TICKS = 0.46, 0.05, 0.17, 0.46
LEAST, HIGHEST = 1.1, 2.0  # inches of the panels' height
SHARE = 1.0  # inches of the panel of accuracies
WRAP = 11  # characters of a setting's line
MOST = 3  # images shown
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))
MARKS = {"o": "●", "s": "■", "^": "▲"}


@dataclass(frozen=True)
class Data:
    """What the figure shows.

    Attributes
    ----------
    content
        Pictures of the first setting, and its networks.
    table
        As ``gradleak.tables.resnets`` writes it.
    points
        Scores of the metric ``mse`` in all settings.
    networks
        What each model is called.
    settings
        What each experiment is called, the one that is pictured first.
    """

    content: Content
    table: pd.DataFrame
    points: pd.DataFrame
    networks: Mapping[str, str]
    settings: Mapping[str, str]

    @staticmethod
    def read(files: Mapping[str, Any], words: Mapping[str, Any]) -> Data:
        """Read files as `make` takes them.

        Raises
        ------
        ArtifactError
            If a file lacks what the figure shows.
        """
        content = Content.read(files, {**words, "names": words["networks"]})
        return Data(
            content,
            read_csv(files["table"]),
            _points(files["points"]),
            words["networks"],
            words["columns"],
        )

    @property
    def chains(self) -> list[Chain]:
        """Networks in the figure's order.

        Raises
        ------
        ArtifactError
            If config.yaml does not have one of them.
        """
        named = {chain.name: chain for chain in self.content.chains}
        for model in self.networks:
            if model not in named:
                raise ArtifactError(
                    f"No {model} to draw; name it in the models of the figure's experiments in "
                    "config.yaml."
                )
        return [named[model] for model in self.networks]

    def row(self, model: str, column: str, metric: str) -> pd.Series:
        """One row of the table.

        Raises
        ------
        ArtifactError
            If it is not there.
        """
        table = self.table
        found = table[
            (table["model"] == model) & (table["column"] == column) & (table["metric"] == metric)
        ]
        if found.empty:
            raise ArtifactError(
                f"The table holds no {metric} of {model} under '{column}'; delete it and ask "
                "Snakemake for it again."
            )
        return found.iloc[0]

    def runs(self, model: str, result: str) -> pd.DataFrame:
        """Scores of one network in one setting; a failed run has no value."""
        points = self.points
        return points[(points["model"] == model) & (points["result"] == result)]


def _points(paths: Iterable[str]) -> pd.DataFrame:
    scores = pd.concat([read_csv(path, keep_default_na=False) for path in paths])
    scores = scores[scores["metric"] == "mse"]
    value = pd.to_numeric(scores["value"], errors="coerce").where(scores["status"] == "ok")
    return scores.assign(value=value)


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, and ``reconstructions`` and ``scores`` of the setting that is pictured;
        ``points``, scores of all settings; ``table``, their summary.
    words
        ``chains`` (descriptions of the networks), ``attacks``: one and its heading; ``networks``
        and ``columns`` as ``gradleak.tables.resnets`` takes them: the first network is the one
        without a cut, the first column the setting that is pictured.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows, or networks differ in more than skips.
    """
    data = Data.read(files, words)
    chains = data.chains
    shown = min(data.content.answers.shared(data.content.attacks), MOST)
    right = len(chains) * diagrams.WIDTH + 0.18
    side = (PAGE - 0.06 - right - GAP * len(chains)) / (len(chains) + 1)
    pictures = HEAD + shown * (side + UNDER) + 0.2
    drawn = HEAD + diagrams.depth(len(diagrams.steps(chains[0], chains[0])))
    depth = max(drawn, pictures + LEAST + TICKS)
    with styled():
        page = Page.new(
            "ResNet18 with a skip cut, under a gradient attack (R-GAP Figure 4)",
            _footer(data, scale),
            depth + 0.05,
        )
        for place, chain in enumerate(chains):
            left = place * diagrams.WIDTH
            _network(page, left, data, chain, LOOKS[place])
            diagrams.draw(page, left, TITLE + HEAD, chain, chains[0])
        _pictures(page, right, side, data, shown)
        top, high = TITLE + pictures, min(depth - pictures - TICKS, HIGHEST)
        _accuracies(page.axes(right + 0.04, top, SHARE, high), data)
        left = right + SHARE + 0.54
        _errors(page.axes(left, top, PAGE - 0.06 - left, high), data)
        missing.explain(page.figure)
    return page.figure


def _network(page: Page, left: float, data: Data, chain: Chain, look: tuple[str, str]) -> None:
    """Name and RA-i of a network, above its diagram."""
    left += diagrams.EDGE
    _name(page, left, TITLE + 0.12, data.networks[chain.name], look, "left")
    for place, (metric, words) in enumerate((("ra", "RA-i"), ("ra_alone", "RA-i alone"))):
        value = int(data.row(chain.name, ARCHITECTURE, metric)["ours"])
        page.text(
            left,
            TITLE + 0.24 + 0.11 * place,
            f"{words} = {signed(value)}",
            fontsize=6,
            color=RED if value > 0 else "black",
        )


def _name(
    page: Page, left: float, top: float, name: str, look: tuple[str, str], align: str
) -> None:
    """A network's name with its mark, in its colour."""
    colour, marker = look
    words = f"{MARKS[marker]} {name}"
    page.text(left, top, words, weight="bold", fontsize=6.5, color=colour, ha=align)


def _pictures(page: Page, left: float, side: float, data: Data, shown: int) -> None:
    """A row for each image: the original, and what was made of it on each network."""
    content, setting = data.content, next(iter(data.settings.values()))
    attack, heading = next(iter(content.attacks.items()))
    page.text(left, TITLE + 0.12, f"{heading}: {setting.lower()}", fontsize=6.5, weight="bold")
    for column, model in enumerate([None, *data.networks]):
        x = left + column * (side + GAP)
        middle, top = x + side / 2, TITLE + HEAD
        if model is None:
            page.text(middle, top - 0.15, "Original", ha="center", fontsize=6.5, weight="bold")
            page.text(middle, top - 0.045, "mean MSE ± SD", ha="center", fontsize=5.5, color=GREY)
        else:
            _name(page, middle, top - 0.15, data.networks[model], LOOKS[column - 1], "center")
            words = _summary(data, model, setting)
            page.text(middle, top - 0.045, words, ha="center", fontsize=5.5, color=GREY)
        for batch in range(shown):
            axes = page.picture(x, top + batch * (side + UNDER), side)
            if model is None:
                content.draw_original(axes, batch)
                under(axes, content.originals.classes(batch)[0])
                continue
            found = content.answers.find(model, attack, batch)
            content.show(axes, found)
            under(axes, caption(found))


def _summary(data: Data, model: str, setting: str) -> str:
    """Mean and standard deviation of the MSE, or how many runs failed."""
    mean, spread = (data.row(model, setting, metric) for metric in ("mse", "mse_sd"))
    n, works = int(mean["n"]), int(mean["n_ok"])
    if works < n:
        return f"{n - works} of {n} failed"
    value = number(mean["ours"])
    return f"{value} ± {number(spread['ours'])}" if n > 1 else value


def _accuracies(axes: Axes, data: Data) -> None:
    """Accuracy of the trained networks with its interval, a line for each."""
    for place, (model, name) in enumerate(data.networks.items()):
        colour, marker = LOOKS[place]
        row = data.row(model, ACCURACY, "accuracy")
        value, low, high = (100 * float(row[key]) for key in ("ours", "low", "high"))
        axes.errorbar(
            value,
            place,
            xerr=[[value - low], [high - value]],
            color=colour,
            marker=marker,
            capsize=2,
        )
        axes.text(
            0.02,
            place - 0.2,
            f"{name}: {value:.1f} %",
            transform=axes.get_yaxis_transform(),
            fontsize=SMALL,
            va="bottom",
        )
    axes.set(ylim=(len(data.networks) - 0.6, -0.75), yticks=[], xlabel="Test accuracy, %")
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.spines["left"].set_visible(False)


def _errors(axes: Axes, data: Data) -> None:
    """MSE of every image in every setting: points, mean and standard deviation."""
    limits = _limits(data.points["value"])
    axes.set(yscale="log", ylim=limits, xlim=(-0.5, len(data.settings) - 0.5), ylabel="MSE")
    step = 0.8 / len(data.networks)
    for place, (result, setting) in enumerate(data.settings.items()):
        for order, model in enumerate(data.networks):
            x = place + step * (order - (len(data.networks) - 1) / 2)
            _column(axes, x, step, data, model, result, setting, LOOKS[order])
        if place:
            axes.axvline(place - 0.5, color=GRID, linewidth=0.4)
    axes.set_xticks(range(len(data.settings)), [_tick(data, s) for s in data.settings.values()])
    axes.tick_params(axis="x", length=0, labelsize=SMALL, pad=2)
    axes.grid(False, axis="x")
    narrow = limits[1] < 100 * limits[0]
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=8))
    axes.yaxis.set_minor_locator(NullLocator())
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
    """A setting, its number of images and the attack's iterations, on short lines."""
    counts = {int(data.row(model, setting, "mse")["n"]) for model in data.networks}
    spent = [data.row(model, setting, "iterations")["ours"] for model in data.networks]
    steps = sorted({int(value) for value in spent if np.isfinite(value)})
    lines = [*textwrap.wrap(setting, WRAP), f"n = {', '.join(map(str, sorted(counts)))}"]
    return "\n".join([*lines, f"{', '.join(map(str, steps))} steps"] if steps else lines)


def _column(
    axes: Axes,
    x: float,
    step: float,
    data: Data,
    model: str,
    result: str,
    setting: str,
    look: tuple[str, str],
) -> None:
    """Points, mean and spread of one network in one setting; failed runs as a cross and a count."""
    colour, marker = look
    runs = data.runs(model, result)
    works = runs["value"].dropna()
    spread = x + 0.2 * step * np.linspace(-1, 1, len(works)) if len(works) > 1 else [x]
    axes.plot(
        spread[: len(works)],
        works,
        color=colour,
        marker=marker,
        linestyle="none",
        markersize=2.5,
        alpha=0.45,
        mew=0,
    )
    mean, deviation = (data.row(model, setting, m)["ours"] for m in ("mse", "mse_sd"))
    if np.isfinite(mean):
        bar = deviation if np.isfinite(deviation) else None
        axes.errorbar(
            x,
            mean,
            yerr=bar,
            color=colour,
            marker=marker,
            markersize=4,
            mec="black",
            mew=0.5,
            ecolor="black",
            elinewidth=0.7,
            zorder=3,
        )
    failed = len(runs) - len(works)
    if failed:
        where = axes.get_xaxis_transform()
        axes.plot(x, 0.88, "x", color=colour, markersize=3, transform=where)
        axes.text(x, 0.91, f"{failed}", fontsize=5, ha="center", va="bottom", transform=where)


def _footer(data: Data, scale: str) -> str:
    """How the figure is read, and which runs it shows."""
    first = next(iter(data.networks))
    trained = data.row(first, ACCURACY, "accuracy")["note"]
    content, batches = data.content, sorted(set(data.points["batch"]))
    return (
        f"{diagrams.KEY} Accuracy: {trained}; bars: 95 % intervals. MSE: small marks are images, "
        "large ones their mean, bars the standard deviation (SD), to the lower edge where it "
        "exceeds the mean; x: failed runs, with their number, which leave no mean. Untrained: "
        "initial weights; mode: that of the norms. MSE of pixels in [0, 1]; pictures are clipped "
        "to that range. Runs: one for each of n images, network and setting, with so many steps of "
        "the attack; "
        f"{_failures(data)}. Images: {describe_images(content.originals, batches)}; scale "
        f"{scale}; gradients in {content.answers.precisions}."
    )


def _failures(data: Data) -> str:
    """How many runs failed, and where."""
    found = []
    for setting in data.settings.values():
        for model, name in data.networks.items():
            row = data.row(model, setting, "mse")
            n, failed = int(row["n"]), int(row["n"] - row["n_ok"])
            if failed:
                found.append(f"{failed} of {n} on {name} ({setting.lower()})")
    return f"failed: {', '.join(found)}" if found else "none failed"
