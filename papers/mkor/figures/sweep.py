"""MKOR Figure 10: cost of several images of a batch sharing a class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.plotting import reader, wording
from gradleak.plotting.layout import Cell, Grid, Page, drawing, shrunk
from gradleak.plotting.reader import Panel
from gradleak.plotting.style import BLUE, GREY, PAGE, RED
from gradleak.runtime.tidy import Given
from papers.mkor.unique_samples import expected

SAMPLES = 4
# Title and colour of a metric's chart.
LOOKS = {"psnr": ("Mean PSNR of a batch (dB)", BLUE), "ssim_gauss": ("Mean SSIM of a batch", RED)}
LEFT, BETWEEN, CHART, CHART_HEAD, TICKS = 0.72, 0.85, 1.35, 0.24, 0.735  # inches
HEAD, UNDER, GAP, GROUP, BELOW = 0.3, 0.2, 0.04, 0.2, 0.05
WIDTH = (PAGE - LEFT - 0.1 - BETWEEN) / 2  # inches, width of a chart


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw ``panels`` with ``classes`` each, and samples of those that `words` has in ``shown``."""
    found = reader.read(files, words)
    panels = {int(e["classes"]): p for e, p in zip(words["panels"], found, strict=True)}
    shown = [n for n in words["shown"] if n in panels] or list(panels)[:1]
    top = CHART_HEAD + CHART + TICKS + HEAD
    sizes = [SAMPLES] * len(shown)
    grid = Grid.fit(0.8, top, PAGE - 0.1, sizes, [BELOW, UNDER], GAP, GROUP)
    with drawing(words["title"], _footer(words, found, scale), grid.bottom) as page:
        for place, metric in enumerate(LOOKS):
            left = LEFT + place * (WIDTH + BETWEEN)
            _chart(page.axes(left, CHART_HEAD, WIDTH, CHART), panels, metric)
            _tick_words(page, panels, left)
        grid.label(page, ["Original", "MKOR"])
        for place, n in enumerate(shown):
            first = place * SAMPLES
            heading = f"At most {n} class" + ("" if n == 1 else "es")
            page.text(grid.lefts[first], top - 0.05, heading, va="bottom", weight="bold")
            grid.draw(page, _samples(panels[n], first))
    return page.figure


def means(panel: Panel, metric: str) -> np.ndarray:
    """Mean of a metric over each batch's images (B,), ignoring missing ones."""
    batches = range(len(panel.targets.images))
    found = [panel.values(batch)[metric].dropna() for batch in batches]
    return np.array([values.mean() for values in found if len(values)])


def _chart(axes: Axes, panels: Mapping[int, Panel], metric: str) -> None:
    each = {n: means(panel, metric) for n, panel in panels.items()}
    each = {n: values for n, values in each.items() if len(values)}
    middle = [float(values.mean()) for values in each.values()]
    # One batch has no standard deviation.
    spread = [float(v.std(ddof=1)) if len(v) > 1 else 0.0 for v in each.values()]
    name, colour = LOOKS[metric]
    style: dict[str, Any] = {"marker": "o", "mfc": "white", "color": colour, "capsize": 2.5}
    axes.errorbar(list(each), middle, spread, **style)
    for n, values in each.items():
        axes.plot([n] * len(values), values, ".", color=GREY, markersize=2.5, zorder=3)
    axes.set_title(name, loc="left", pad=4)
    axes.set(xticks=list(panels), xlim=(-4, max(panels) + 5))
    axes.margins(y=0.15)


def _tick_words(page: Page, panels: Mapping[int, Panel], left: float) -> None:
    """Label axes with the number of images alone in their class, and the PSNR to class means."""
    names = ("N, at most", "alone, eq. (3)", "alone, counted", "class mean, dB")
    low, high, counts = -4, max(panels) + 5, {n: _counts(p, n) for n, p in panels.items()}
    for row, name in enumerate(names):
        top = CHART_HEAD + CHART + 0.125 + 0.115 * row
        page.text(left - 0.06, top, name, ha="right", va="center", fontsize=5)
        for n in panels if row else ():
            x = left + WIDTH * (n - low) / (high - low)
            page.text(x, top, counts[n][row - 1], ha="center", va="center", fontsize=5)


def _counts(panel: Panel, classes: int) -> tuple[str, str, str]:
    """Images alone in their class, by eq. (3) and the mean over batches; PSNR to class means."""
    lone = expected(panel.targets.size, np.full(classes, 1.0 / classes))
    counts = [np.unique(labels, return_counts=True)[1] for labels in panel.targets.labels]
    drawn, values = np.mean([(c == 1).sum() for c in counts]), means(panel, "psnr_class_mean")
    return f"{lone:.1f}", f"{drawn:.1f}", f"{values.mean():.1f}" if len(values) else "–"


def _samples(panel: Panel, first: int) -> dict[tuple[int, int], Cell]:
    """Originals above MKOR's images, sorted by PSNR, best first, of the first batch."""
    values, reason, cells = panel.values(0), panel.reason(0), {}
    order = reader.ranked(values["psnr"]) or list(range(panel.targets.size))
    chosen = [order[k] for k in reader.evenly(len(order), SAMPLES)]
    for column, (k, image) in enumerate(zip(chosen, panel.images(0, chosen), strict=True), first):
        cells[0, column] = Cell(panel.targets.images[0, k] / 255.0)
        cells[1, column] = Cell(why=reason or "no image of its class")
        if image is not None:
            small = shrunk(image, min(image.shape[-1], 112))
            cells[1, column] = Cell(small, [wording.decibel(float(values["psnr"].iloc[k]))])
    return cells


def _footer(words: Given, panels: Sequence[Panel], scale: str) -> str:
    batches = len(panels[0].targets.images)
    many = f"circles are means over {batches} batches, bars standard deviations, dots the batches"
    spread = many if batches > 1 else "one batch for each N"
    first = f"Images are drawn from at most N classes; {spread}."
    images = wording.counted(panels[0].targets, None, words.get("drawn", ""))
    return reader.footer(words, panels, images, scale, first)
