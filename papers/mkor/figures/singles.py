"""MKOR Figures 5, 16, 17 and 18: single images of a batch, enlarged."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from gradleak.data.targets import TargetSet
from gradleak.plotting import reader, wording
from gradleak.plotting.layout import Cell, Grid, displayed, drawing
from gradleak.plotting.reader import Panel
from gradleak.plotting.style import PAGE
from gradleak.runtime.tidy import Given

LABEL, LINE, UNDER, WIDEST = 0.6, 0.11, 0.3, 1.3  # inches
PER_INCH = 17.5  # characters of a heading
FISHED = " Fished: of the class that class fishing is after, the one that it gives best."


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure; `words` has ``batch`` and ``panels``, the first of which selects samples."""
    panels = reader.read(files, words)
    originals = panels[0].targets
    batch = min(words["batch"], len(originals.images) - 1)
    samples = picks(panels, batch)
    places, under = list(samples.values()), [UNDER] * len(samples)
    grid = Grid.fit(LABEL, 0.0, PAGE - 0.06, [1 + len(panels)], under, 0.06, widest=WIDEST)
    headings = ["Original", *(_wrapped(panel.title, grid.side) for panel in panels)]
    grid = grid.moved(down=0.12 + LINE * max(heading.count("\n") + 1 for heading in headings))
    columns = [_originals(originals, batch, places)]
    columns += [_found(panel, batch, places) for panel in panels]
    name = " ".join(panels[0].title.split())
    first = (
        f"Best, median and worst image of the batch by the PSNR of “{name}”."
        f"{FISHED * ('Fished' in samples)} Where images share a class, attacks that go by class "
        "give their mean. Below each its PSNR and SSIM; grey with a cross: no image of that class. "
        "Values are clipped to [0, 1] for display and for SSIM."
    )
    images = wording.counted(originals, batch, words.get("drawn", ""))
    footer = reader.footer(words, panels, images, scale, first)
    with drawing(words["title"], footer, grid.bottom) as page:
        for left, heading in zip(grid.lefts, headings, strict=True):
            page.text(left, grid.tops[0] - 0.05, heading, va="bottom", weight="bold", fontsize=5.8)
        grid.label(page, list(samples))
        for column, cells in enumerate(columns):
            grid.fill(page, column, cells)
    return page.figure


def _wrapped(title: str, side: float) -> str:
    lines, most = title.split("\n"), int(side * PER_INCH)
    return "\n".join(textwrap.fill(line, most, break_long_words=False) for line in lines)


def picks(panels: Sequence[Panel], batch: int) -> dict[str, int]:
    """Positions in a batch by row label.

    Best, median and worst by PSNR in the first panel; if another attack targets only some classes,
    the best that it reconstructs, since it gives no others.
    """
    order = reader.ranked(panels[0].values(batch)["psnr"])
    order = order or list(range(panels[0].targets.size))
    found = {"Best": order[0], "Median": order[len(order) // 2], "Worst": order[-1]}
    for panel in panels:
        if panel.says("partial", batch) and (given := reader.ranked(panel.values(batch)["psnr"])):
            found["Fished"] = given[0]
    return found


def _originals(targets: TargetSet, batch: int, places: Sequence[int]) -> list[Cell]:
    """Originals, with the class of each and its number of images."""
    labels, indices = targets.labels[batch], targets.indices
    # Repeated images carry other labels, which do not describe them.
    drawn = any(np.array_equal(indices[batch], indices[earlier]) for earlier in range(batch))
    cells = []
    for k in places:
        same = int((labels == labels[k]).sum())
        others = f"1 of {same} of its class" if same > 1 else "alone in its class"
        if drawn:
            others = f"label drawn, {same} have it" if same > 1 else "label drawn, alone"
        words = wording.shortened(targets.words[int(labels[k])]), others
        cells.append(Cell(targets.images[batch, k] / 255.0, words))
    return cells


def _found(panel: Panel, batch: int, places: Sequence[int]) -> list[Cell]:
    reason, values, cells = panel.reason(batch), panel.values(batch), []
    for k, image in zip(places, panel.images(batch, places), strict=True):
        if image is None:
            cells.append(Cell(None, () if reason else ("no image",), reason))
            continue
        psnr, ssim = (float(values[metric].iloc[k]) for metric in ("psnr", "ssim_gauss"))
        words = wording.decibel(psnr), f"SSIM {wording.similarity(ssim)}"
        cells.append(Cell(displayed(image), words))
    return cells
