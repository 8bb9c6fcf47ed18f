"""MKOR Figures 3, 4, 6 to 9, 11 to 15: a batch as a block of small images, a block an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.figures import missing, panel_files
from gradleak.figures.panel_files import Panel, decibel, similarity
from gradleak.figures.pictures import TITLE, Page, frame, under
from gradleak.figures.style import DPI, PAGE, styled
from gradleak.targets import TargetSet

MOST = 100  # images of a block
MARGIN, GAP, HEAD, UNDER = 0.06, 0.14, 0.34, 0.36  # inches
MOST_PIXELS = 40  # of a tile's side where a block has 100: keeps files below 3 MB


@dataclass(frozen=True)
class Grid:
    """How a block is laid out: tiles of `side` pixels, one pixel between them.

    Blocks are drawn with one pixel of the PNG for each of theirs, so that no tile is distorted.
    """

    count: int
    side: int

    @staticmethod
    def fitting(count: int, width: float) -> Grid:
        """Grid of `count` tiles in `width` inches."""
        columns = _columns(count)
        side = (int(width * DPI) - 1) // columns - 1
        return Grid(count, min(side, MOST_PIXELS * 10 // columns))

    @property
    def columns(self) -> int:
        """Tiles in a row."""
        return _columns(self.count)

    @property
    def shape(self) -> tuple[int, int]:
        """Pixels (height, width) of a block."""
        rows = -(-self.count // self.columns)
        step = self.side + 1
        return rows * step + 1, self.columns * step + 1

    def corner(self, place: int) -> tuple[int, int]:
        """Upper left pixel (row, column) of a tile."""
        row, column = divmod(place, self.columns)
        return 1 + row * (self.side + 1), 1 + column * (self.side + 1)


def _columns(count: int) -> int:
    return int(np.ceil(np.sqrt(count)))


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        As `gradleak.figures.panel_files.read` takes them.
    words
        ``title``, ``panels``, ``batch`` that is wanted, ``note``, ``drawn``.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    panels = panel_files.read(files, words)
    originals = panels[0].targets
    wanted, batch = words["batch"], min(words["batch"], len(originals.images) - 1)
    shown = panel_files.evenly(originals.size, MOST)
    across = 3 if len(panels) <= 5 else 4
    width = (PAGE - 2 * MARGIN - (across - 1) * GAP) / across
    grid = Grid.fitting(len(shown), width)
    height = grid.shape[0] / DPI
    rows = -(-(len(panels) + 1) // across)
    with styled():
        page = Page.new(
            _title(words["title"], wanted, batch),
            _footer(words, panels, batch, len(shown), scale),
            rows * (HEAD + height + UNDER),
        )
        for place in range(len(panels) + 1):
            row, column = divmod(place, across)
            left = MARGIN + column * (width + GAP)
            top = TITLE + HEAD + row * (HEAD + height + UNDER)
            panel = panels[place - 1] if place else None
            heading = panel.title if panel else _heading(originals)
            page.text(left, top - 0.04, heading, va="bottom", weight="bold", fontsize=6.5)
            axes = page.axes(left, top, grid.shape[1] / DPI, height)
            if panel is None:
                _block(axes, grid, [originals.images[batch, k] / 255.0 for k in shown])
                under(axes, *_batch_words(originals, batch))
            elif reason := panel.reason(batch):
                frame(axes)
                missing.draw_missing(axes, reason)
            else:
                _block(axes, grid, panel.images(batch, shown))
                under(axes, *_score_words(panel, batch))
        missing.explain(page.figure)
    return page.figure


def _title(title: str, wanted: int, batch: int) -> str:
    if wanted == batch:
        return title
    return f"{title}: batch {batch} in place of {wanted}, which this scale lacks"


def _heading(originals: TargetSet) -> str:
    return "Originals" if originals.size > 1 else "Original"


def _block(axes: Axes, grid: Grid, images: Sequence[np.ndarray | None]) -> None:
    """Tiles in their places; a marked one where there is no image."""
    canvas = np.ones((*grid.shape, 3))
    lacking: list[missing.Box] = []
    for place, image in enumerate(images):
        top, left = grid.corner(place)
        if image is None:
            edges = (left, top, left + grid.side, top + grid.side)
            lacking.append((edges[0] - 0.5, edges[1] - 0.5, edges[2] - 0.5, edges[3] - 0.5))
        else:
            box = (slice(top, top + grid.side), slice(left, left + grid.side))
            pixels = np.clip(panel_files.shrunk(image, grid.side), 0.0, 1.0)
            canvas[box] = np.moveaxis(pixels, 0, -1)  # one channel fills all three
    axes.imshow(canvas, interpolation="none", aspect="auto")
    missing.mark(axes, lacking, data=True)
    axes.set_axis_off()


def _batch_words(originals: TargetSet, batch: int) -> tuple[str, str]:
    """Classes of a batch, and how many images no other of their class hides."""
    labels, counts = np.unique(originals.labels[batch], return_counts=True)
    alone = int((counts == 1).sum())
    classes = f"{len(labels):,} class" + ("" if len(labels) == 1 else "es")
    return f"{classes}, {originals.size:,} images", f"{alone:,} alone in their class"


def _score_words(panel: Panel, batch: int) -> list[str]:
    """Means and bests over the images that an attack gives, and how many it does not."""
    values = panel.values(batch)
    there = values["psnr"].notna()
    count, total = int(there.sum()), len(values)
    if not count:
        return ["no image found"]
    psnr, ssim = values.loc[there, "psnr"], values.loc[there, "ssim_gauss"]
    said = [
        f"PSNR {decibel(psnr.mean())}, best {decibel(psnr.max())}",
        f"SSIM {similarity(ssim.mean())}, best {similarity(ssim.max())}",
    ]
    if panel.partial(batch):
        said.append(f"one class: {count:,} of {total:,} images")
    elif count < total:
        said.append(f"{total - count:,} of {total:,} images missed")
    return said


def _footer(
    words: Mapping[str, Any], panels: Sequence[Panel], batch: int, shown: int, scale: str
) -> str:
    size = panels[0].targets.size
    there = [panel for panel in panels if not panel.reason(batch)]
    said = ["Each image of the batch has its place in all blocks."]
    if any(panel.by_class(batch) for panel in there):
        said.append(
            "Attacks that go by class show the image of its class there, the mean of all images "
            "of that class."
        )
    if not all(panel.by_class(batch) for panel in there):
        said.append("Images of other attacks are matched so that the sum of MSEs is least.")
    if any(panel.values(batch)["psnr"].isna().any() for panel in there):
        said.append("Grey with a cross: the attack gives no image of that class.")
    if shown < size:
        said.append(f"{shown} of {size:,} images are shown, spread evenly over the batch.")
    said.append(
        "Below each block mean and best over all images of the batch that it gives; values are "
        "clipped to [0, 1] for display and for SSIM."
    )
    return panel_files.footer(words, panels, batch, scale, " ".join(said))
