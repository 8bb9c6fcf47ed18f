"""MKOR Figures 5, 16, 17 and 18: single images of a batch, enlarged."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.figures import missing, panel_files
from gradleak.figures.panel_files import Panel, decibel, displayed, shortened, similarity
from gradleak.figures.pictures import TITLE, Page, draw_pixels, under
from gradleak.figures.style import PAGE, styled

LABEL, GAP, LINE, UNDER, WIDEST = 0.6, 0.06, 0.11, 0.3, 1.3  # inches
PER_INCH = 17.5  # characters of a heading


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        As `gradleak.figures.panel_files.read` takes them.
    words
        ``title``, ``panels`` (samples are chosen by the first), ``batch``, ``note``, ``drawn``.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    panels = panel_files.read(files, words)
    originals = panels[0].targets
    batch = min(words["batch"], len(originals.images) - 1)
    samples = picks(panels, batch)
    side = min((PAGE - LABEL - 0.06) / (len(panels) + 1) - GAP, WIDEST)
    headings = ["Original", *(_wrapped(panel.title, side) for panel in panels)]
    head = 0.12 + LINE * max(heading.count("\n") + 1 for heading in headings)
    with styled():
        page = Page.new(
            words["title"],
            _footer(words, panels, batch, samples, scale),
            head + len(samples) * (side + UNDER),
        )
        columns = [_original, *(_column(panel) for panel in panels)]
        for place, (column, heading) in enumerate(zip(columns, headings, strict=True)):
            left = LABEL + place * (side + GAP)
            page.text(left, TITLE + head - 0.05, heading, va="bottom", weight="bold", fontsize=5.8)
            frames = [
                page.picture(left, TITLE + head + row * (side + UNDER), side)
                for row in range(len(samples))
            ]
            column(frames, panels[0], batch, list(samples.values()))
        for row, name in enumerate(samples):
            top = TITLE + head + row * (side + UNDER) + side / 2
            page.text(0.06, top, name, va="center", weight="bold")
        missing.explain(page.figure)
    return page.figure


def _wrapped(title: str, side: float) -> str:
    """Heading that stays above its column: lines that are too long are broken."""
    lines = [
        part
        for line in title.split("\n")
        for part in textwrap.wrap(line, int(side * PER_INCH), break_long_words=False)
    ]
    return "\n".join(lines)


def picks(panels: Sequence[Panel], batch: int) -> dict[str, int]:
    """Positions in a batch by the name of their row.

    The best, the median and the worst by the PSNR of the first panel; where another attack is
    after some classes alone, the best that it gives, for it gives none of the others.
    """
    order = panel_files.ranked(panels[0].values(batch)["psnr"])
    order = order or list(range(panels[0].targets.size))
    found = {"Best": order[0], "Median": order[len(order) // 2], "Worst": order[-1]}
    for panel in panels:
        if panel.partial(batch) and (given := panel_files.ranked(panel.values(batch)["psnr"])):
            found["Fished"] = given[0]
    return found


def _original(frames: list[Axes], panel: Panel, batch: int, samples: list[int]) -> None:
    """Originals, with the class of each and how many of it there are."""
    targets = panel.targets
    labels, indices = targets.labels[batch], targets.indices
    # The same images once more are there for other labels, which are not what they show.
    drawn = any(np.array_equal(indices[batch], indices[earlier]) for earlier in range(batch))
    for axes, k in zip(frames, samples, strict=True):
        draw_pixels(axes, panel.targets.images[batch, k] / 255.0)
        same = int((labels == labels[k]).sum())
        others = f"1 of {same} of its class" if same > 1 else "alone in its class"
        if drawn:
            others = f"label drawn, {same} have it" if same > 1 else "label drawn, alone"
        under(axes, shortened(targets.words[int(labels[k])]), others)


def _column(panel: Panel) -> Any:
    """What draws a panel's images in their frames."""

    def draw(frames: list[Axes], _: Panel, batch: int, samples: list[int]) -> None:
        """Images of this panel's attack; the panel of the originals is not needed."""
        reason, values = panel.reason(batch), panel.values(batch)
        images = panel.images(batch, samples)
        for axes, k, image in zip(frames, samples, images, strict=True):
            if image is None:
                if reason:
                    missing.draw_missing(axes, reason)
                else:
                    missing.mark(axes)
                    under(axes, "no image")
                continue
            draw_pixels(axes, displayed(image))
            psnr, ssim = (float(values[metric].iloc[k]) for metric in ("psnr", "ssim_gauss"))
            under(axes, decibel(psnr), f"SSIM {similarity(ssim)}")

    return draw


def _footer(
    words: Mapping[str, Any],
    panels: Sequence[Panel],
    batch: int,
    samples: Mapping[str, int],
    scale: str,
) -> str:
    name = " ".join(panels[0].title.split())
    fished = (
        " Fished: of the class that class fishing is after, the one that it gives best."
        if "Fished" in samples
        else ""
    )
    first = (
        f"Best, median and worst image of the batch by the PSNR of “{name}”.{fished} Where "
        "images share a class, attacks that go by class give their mean. Below each its PSNR and "
        "SSIM; grey with a cross: no image of that class. Values are clipped to [0, 1] for "
        "display and for SSIM."
    )
    return panel_files.footer(words, panels, batch, scale, first)
