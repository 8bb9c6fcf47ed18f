"""MKOR Figure 10: what it costs that images of a batch share a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.figures import missing, panel_files
from gradleak.figures.panel_files import Panel, decibel
from gradleak.figures.pictures import TITLE, Page, draw_pixels, under
from gradleak.figures.style import BLUE, GREY, PAGE, RED, styled
from gradleak.unique_samples import expected

SAMPLES = 4
LEFT, BETWEEN, CHART, CHART_HEAD, TICKS = 0.72, 0.85, 1.35, 0.24, 0.735  # inches
HEAD, UNDER, GAP, GROUP, BELOW = 0.3, 0.2, 0.04, 0.2, 0.05


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        As `gradleak.figures.panel_files.read` takes them, a panel for each number of classes.
    words
        ``title``, ``panels`` with ``classes`` each, ``shown`` (numbers of classes with samples),
        ``note``, ``drawn``.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    panels = dict(
        zip(
            [int(entry["classes"]) for entry in words["panels"]],
            panel_files.read(files, words),
            strict=True,
        )
    )
    shown = [n for n in words["shown"] if n in panels] or list(panels)[:1]
    side = (PAGE - 0.9 - (len(shown) - 1) * GROUP) / (SAMPLES * len(shown)) - GAP
    charts = CHART_HEAD + CHART + TICKS
    with styled():
        page = Page.new(
            words["title"],
            _footer(words, list(panels.values()), scale),
            charts + HEAD + 2 * side + BELOW + UNDER,
        )
        width = (PAGE - LEFT - 0.1 - BETWEEN) / 2
        for place, metric in enumerate(("psnr", "ssim_gauss")):
            left = LEFT + place * (width + BETWEEN)
            _chart(page.axes(left, TITLE + CHART_HEAD, width, CHART), panels, metric)
        _tick_words(page, panels, TITLE + CHART_HEAD + CHART + 0.24)
        top = TITLE + charts + HEAD
        for words_, down in (("Original", 0.0), ("MKOR", side + BELOW)):
            page.text(0.06, top + down + side / 2, words_, va="center", weight="bold")
        for place, n in enumerate(shown):
            left = 0.8 + place * (SAMPLES * (side + GAP) + GROUP)
            heading = f"At most {n} class" + ("" if n == 1 else "es")
            page.text(left, top - 0.05, heading, va="bottom", weight="bold")
            _samples(page, panels[n], (left, top), side)
        missing.explain(page.figure)
    return page.figure


def means(panel: Panel, metric: str) -> np.ndarray:
    """Mean of a metric over the images of each batch (B,), those without an image left out."""
    batches = range(len(panel.targets.images))
    found = [panel.values(batch)[metric].dropna() for batch in batches]
    return np.array([values.mean() for values in found if len(values)])


def _chart(axes: Axes, panels: Mapping[int, Panel], metric: str) -> None:
    """Mean and standard deviation over batches, and each batch as a dot."""
    each = {n: means(panel, metric) for n, panel in panels.items()}
    each = {n: values for n, values in each.items() if len(values)}
    colour = BLUE if metric == "psnr" else RED
    numbers = list(each)
    middle = [float(values.mean()) for values in each.values()]
    # One batch has no standard deviation.
    spread = [float(v.std(ddof=1)) if len(v) > 1 else 0.0 for v in each.values()]
    axes.errorbar(
        numbers, middle, spread, marker="o", markerfacecolor="white", color=colour, capsize=2.5
    )
    for n, values in each.items():
        axes.plot([n] * len(values), values, ".", color=GREY, markersize=2.5, zorder=3)
    name = "Mean PSNR of a batch (dB)" if metric == "psnr" else "Mean SSIM of a batch"
    axes.set_title(name, loc="left", pad=4)
    axes.set_xticks(list(panels))
    axes.set_xlim(-4, max(panels) + 5)
    axes.margins(y=0.15)


def _tick_words(page: Page, panels: Mapping[int, Panel], top: float) -> None:
    """Under the axes: images that are alone in their class, and how near class means come."""
    width = (PAGE - LEFT - 0.1 - BETWEEN) / 2
    low, high = -4, max(panels) + 5
    names = ("N, at most", "alone, eq. (3)", "alone, counted", "class mean, dB")
    for place in range(2):
        left = LEFT + place * (width + BETWEEN)
        for row, name in enumerate(names):
            at = top - 0.115 + 0.115 * row
            page.text(left - 0.06, at, name, fontsize=5, va="center", ha="right")
            for n, panel in panels.items():
                x = left + width * (n - low) / (high - low)
                if row:
                    said = (*_alone(panel, n), _to_mean(panel))[row - 1]
                    page.text(x, at, said, fontsize=5, va="center", ha="center")


def _alone(panel: Panel, classes: int) -> tuple[str, str]:
    """Images alone in their class: by eq. (3) under equal shares, and the mean over batches."""
    lone = expected(panel.targets.size, np.full(classes, 1.0 / classes))
    counted = []
    for labels in panel.targets.labels:
        counts = np.unique(labels, return_counts=True)[1]
        counted.append(int((counts == 1).sum()))
    return f"{lone:.1f}", f"{np.mean(counted):.1f}"


def _to_mean(panel: Panel) -> str:
    """Mean PSNR of what MKOR gives against the mean image of each class."""
    values = means(panel, "psnr_class_mean")
    return f"{values.mean():.1f}" if len(values) else "–"


def _samples(page: Page, panel: Panel, corner: tuple[float, float], side: float) -> None:
    """Originals over what MKOR gives, from the best PSNR to the worst, of the first batch."""
    values, reason = panel.values(0), panel.reason(0)
    order = panel_files.ranked(values["psnr"]) or list(range(panel.targets.size))
    chosen = [order[k] for k in panel_files.evenly(len(order), SAMPLES)]
    for place, (k, image) in enumerate(zip(chosen, panel.images(0, chosen), strict=True)):
        left = corner[0] + place * (side + GAP)
        draw_pixels(page.picture(left, corner[1], side), panel.targets.images[0, k] / 255.0)
        axes = page.picture(left, corner[1] + side + BELOW, side)
        if image is None:
            missing.draw_missing(axes, reason or "no image of its class")
            continue
        draw_pixels(axes, panel_files.shrunk(image, min(image.shape[-1], 112)))
        under(axes, decibel(float(values["psnr"].iloc[k])))


def _footer(words: Mapping[str, Any], panels: Sequence[Panel], scale: str) -> str:
    batches = len(panels[0].targets.images)
    spread = (
        f"circles are means over {batches} batches, bars standard deviations, dots the batches"
        if batches > 1
        else "one batch for each N"
    )
    first = (
        f"Images are drawn from at most N classes; {spread}. Alone: images "
        "that no other of their class hides, K·Σpₙ(1−pₙ)ᴷ⁻¹ with equal shares pₙ = 1/N, and "
        "as drawn. Class mean: PSNR of MKOR's image against its class's mean image, averaged over "
        "the batch's images. Samples: of the first batch, evenly from the best PSNR (below each) "
        "to the worst; where images share a class, MKOR gives their mean."
    )
    return panel_files.footer(words, panels, None, scale, first)
