"""Samples of reconstructions: a row per model, for each image the original and every attack."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.artifacts import again, read_csv
from gradleak.attacks import reconstruction_files
from gradleak.columns import SCORES
from gradleak.errors import ArtifactError
from gradleak.figures.missing import draw_missing, explain
from gradleak.figures.pictures import (
    LINES,
    describe_images,
    draw_pixels,
    frame,
    is_embedded,
    typical,
    under,
)
from gradleak.figures.style import GREY, PAGE, new, number, styled
from gradleak.targets import TargetSet
from gradleak.targets import read as read_targets

# Inches: the column of labels, an image's side, gaps, the text under an image, header and footer.
LABEL, GAP, GROUP_GAP = 0.92, 0.05, 0.14
UNDER, HEADER, FOOTER = 0.28, 0.54, 0.53


@dataclass(frozen=True)
class Sample:
    """One reconstruction under one seed: image (C, H, W) on the input's scale, and its score.

    ``median`` is that of the MSE over all seeds, a failed run counting as infinite.
    """

    image: np.ndarray
    mse: float
    median: float
    status: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One model: its label, c(M) (eq. 8) and the samples ``{attack: [one per image]}``."""

    label: str
    index: float
    structural: bool
    samples: dict[str, list[Sample]]


def variant(model: str) -> str:
    """Label of a model id: ``cnn3_v1_tanh`` is Variant 1; other ids stay as they are."""
    found = [part[1:] for part in model.split("_") if part[:1] == "v" and part[1:].isdigit()]
    return f"Variant {found[0]}" if found else model


def read_rows(
    models: Iterable[str],
    attacks: Iterable[str],
    reconstructions: Iterable[str],
    scores: Iterable[str],
    security: Iterable[str],
    seed: int = 0,
) -> tuple[list[Row], pd.DataFrame]:
    """Read what the figure shows of `seed`.

    Parameters
    ----------
    models, attacks
        Ids, in the figure's order.
    reconstructions, scores
        Files of each model and attack, each model's attacks in a row.
    security
        Files with c(M), one for each model.

    Returns
    -------
    tuple
        The rows, and all MSE scores, for the words below the figure.

    Raises
    ------
    ArtifactError
        If there are no models, or a file has not what the figure shows.
    """
    models, attacks = list(models), list(attacks)
    cells = [(model, attack) for model in models for attack in attacks]
    scores = list(scores)
    table = _errors(scores)
    found = {
        cell: _samples(files, table, *cell, seed)
        for cell, *files in zip(cells, reconstructions, scores, strict=True)
    }
    rows = []
    for model, path in zip(models, security, strict=True):
        samples = {attack: found[model, attack] for attack in attacks}
        rows.append(Row(variant(model), *_index(path, model, seed), samples))
    return rows, table


def _index(path: str, model: str, seed: int) -> tuple[float, bool]:
    """c(M) (eq. 8), and whether all of its ranks are structural."""
    layers = read_csv(path, ["model", "seed", "rank_method", "contribution"])
    layers = layers[(layers["model"] == model) & (layers["seed"] == seed)]
    structural = (layers["rank_method"] == "structural").all()
    return float(layers["contribution"].sum()), bool(structural)


def _errors(paths: Iterable[str]) -> pd.DataFrame:
    frames = [read_csv(path, SCORES, keep_default_na=False) for path in paths]
    if not frames:
        raise ArtifactError(
            "No scores to draw; name models of the figure in the experiments of config.yaml."
        )
    table = pd.concat(frames, ignore_index=True)
    table = table[(table["metric"] == "mse") & (table["answer"] == 0)]
    return table.assign(value=pd.to_numeric(table["value"], errors="coerce"))


def _samples(
    files: Sequence[str], table: pd.DataFrame, model: str, attack: str, seed: int
) -> list[Sample]:
    """Samples of a reconstruction and its scores under `seed`, in the order of the images."""
    images, _ = reconstruction_files.read(files[0])
    chosen = table[(table["model"] == model) & (table["attack"] == attack)]
    medians = _medians(chosen)
    chosen = chosen[chosen["seed"] == seed].sort_values("batch")
    for path, lacks in zip(files, (f"{model}/images" not in images, chosen.empty), strict=True):
        if lacks:
            raise ArtifactError(f"{path} has no {attack} of {model}, seed {seed}; {again(path)}.")
    found = reconstruction_files.chosen(images, model)[seed]
    columns = (chosen[key] for key in ("batch", "value", "status", "reason"))
    return [
        Sample(found[int(batch)], float(value), medians[batch], str(status), str(reason))
        for batch, value, status, reason in zip(*columns, strict=True)
    ]


def _medians(scores: pd.DataFrame) -> dict[int, float]:
    """Median MSE over seeds of each image; a failed run takes the last rank."""
    value = scores["value"].where(scores["status"] == "ok", np.inf).fillna(np.inf)
    found = value.groupby(scores["batch"]).median()
    return dict(zip(found.index.astype(int), found.astype(float), strict=True))


def draw(
    targets: TargetSet, rows: list[Row], attacks: Mapping[str, str], title: str, footer: str
) -> Figure:
    """Draw originals and reconstructions, under each its MSE and the median over seeds.

    Parameters
    ----------
    targets
        Originals, one for each group of columns.
    rows
        As `read_rows` gives them.
    attacks
        Heading of each attack's column, in order.
    title
        Line above all.
    footer
        What the reader has to know; wrapped to the page.
    """
    groups, columns = len(targets.images), 1 + len(attacks)
    images = groups * columns
    side = (PAGE - LABEL - GAP * (images - 1) - (GROUP_GAP - GAP) * (groups - 1) - GAP) / images
    height = HEADER + len(rows) * (side + UNDER) + FOOTER
    with styled():
        figure = new(PAGE, height)
        place = _Places(figure, height, side, columns)
        figure.text(0.01, 1 - 0.06 / height, title, va="top", fontsize=8, weight="bold")
        for group in range(groups):
            place.header(group, target_name(targets, group), ["Original", *attacks.values()])
        for number_, row in enumerate(rows):
            place.label(number_, row)
            for group in range(groups):
                axes = place.axes(number_, group, 0)
                draw_pixels(axes, targets.images[group, 0] / 255.0)
                for column, attack in enumerate(attacks, start=1):
                    axes = place.axes(number_, group, column)
                    _draw_sample(axes, row.samples[attack][group], targets)
        figure.text(
            0.01,
            (FOOTER - 0.04) / height,
            textwrap.fill(footer, 180),
            va="top",
            fontsize=5.5,
            color=GREY,
            linespacing=1.35,
        )
        explain(figure)
    return figure


class _Places:
    """Where things go on the page."""

    def __init__(self, figure: Figure, height: float, side: float, columns: int) -> None:
        self.figure, self.height, self.side, self.columns = figure, height, side, columns

    def left(self, group: int, column: int) -> float:
        width = self.columns * (self.side + GAP) + GROUP_GAP - GAP
        return LABEL + group * width + column * (self.side + GAP)

    def bottom(self, row: int) -> float:
        return self.height - HEADER - row * (self.side + UNDER) - self.side

    def axes(self, row: int, group: int, column: int) -> Axes:
        axes: Axes = self.figure.add_axes(
            (
                self.left(group, column) / PAGE,
                self.bottom(row) / self.height,
                self.side / PAGE,
                self.side / self.height,
            )
        )
        frame(axes)
        return axes

    def header(self, group: int, name: str, headings: list[str]) -> None:
        middle = (self.left(group, 0) + self.left(group, self.columns - 1) + self.side) / 2
        top = 1 - (HEADER - 0.155) / self.height
        self.figure.text(middle / PAGE, top, name, ha="center", va="bottom", weight="bold")
        for column, heading in enumerate(headings):
            x = (self.left(group, column) + self.side / 2) / PAGE
            y = 1 - (HEADER - 0.03) / self.height
            self.figure.text(x, y, heading, ha="center", va="bottom", fontsize=6)

    def label(self, row: int, content: Row) -> None:
        middle = (self.bottom(row) + self.side / 2) / self.height
        index = f"{content.index:g}".replace("-", "\N{MINUS SIGN}")
        text = f"c(M) = {index}" + ("" if content.structural else "\n(numerical rank)")
        self.figure.text(
            0.01, middle + 0.02 / self.height, content.label, va="bottom", weight="bold"
        )
        self.figure.text(0.01, middle - 0.02 / self.height, text, va="top", fontsize=6.5)
        for words, (drop, size) in zip(("MSE, one draw:", "median of draws:"), LINES, strict=False):
            y = (self.bottom(row) + drop / 72) / self.height
            self.figure.text(0.01, y, words, fontsize=size, color=GREY)


def _draw_sample(axes: Axes, sample: Sample, targets: TargetSet) -> None:
    if sample.status == "ok":
        draw_pixels(axes, targets.pixels(sample.image))
        under(axes, number(sample.mse), typical(sample.median))
        return
    draw_missing(axes, sample.reason)
    under(axes, sample.status.replace("_", " "), typical(sample.median))


def target_name(targets: TargetSet, batch: int) -> str:
    """Name of an image: the paper's, and what it shows where that is something else."""
    name, label = targets.names[batch], targets.classes(batch)[0]
    if label == name:
        return name.capitalize()
    if is_embedded(targets):
        return f"{label.capitalize()} (stands in for {name})"
    return f"{name.capitalize()} ({label})"


def footer(targets: TargetSet, table: pd.DataFrame, scale: str, seed: int = 0) -> str:
    """What the reader of a figure has to know of the runs."""
    seeds, precision = table["seed"].nunique(), ", ".join(sorted(set(table["precision"])))
    sign = "\N{MINUS SIGN}" if targets.offset < 0 else "+"
    shift = f" {sign} {abs(targets.offset):g}" if targets.offset else ""
    return (
        f"Rows: networks, with COPA's security index c(M) (eq. 8): 0 if every layer's system has "
        f"full rank, more negative the more rank is lost. Columns: original, then the "
        f"reconstruction from its gradient by each attack; below it the MSE on inputs "
        f"x{shift}, x in [0, 1], and its median over all draws of the weights, of which a failed "
        f"one counts as worst. Shown: seed {seed}, the first of {seeds}; clipped to [0, 1] for "
        f"display only. Images: {describe_images(targets)}; scale {scale}; gradients in "
        f"{precision}."
    )


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files: `targets`, and others as for `read_rows`.

    `words` has title, models and attacks.
    """
    targets = read_targets(files["targets"])
    rows, table = read_rows(
        words["models"],
        words["attacks"],
        files["reconstructions"],
        files["scores"],
        files["security"],
    )
    return draw(targets, rows, words["attacks"], words["title"], footer(targets, table, scale))
