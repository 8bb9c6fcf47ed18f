"""MKOR Figures 3, 4, 6 to 9, 11 to 15: batches as blocks of small images, one per attack."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.data.targets import TargetSet
from gradleak.plotting import reader, wording
from gradleak.plotting.layout import Box, drawing, frame, mark, shrunk, under
from gradleak.plotting.reader import Panel
from gradleak.plotting.style import DPI, PAGE
from gradleak.plotting.wording import decibel, similarity
from gradleak.runtime.tidy import Given

MOST = 100  # images in a block
MARGIN, GAP, HEAD, UNDER = 0.06, 0.14, 0.34, 0.36  # inches
MOST_PIXELS = 40  # of a tile's side in a block of 100: keeps files below 3 MB


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure of the ``batch`` in `words`."""
    panels = reader.read(files, words)
    originals = panels[0].targets
    wanted, title = words["batch"], words["title"]
    batch = min(wanted, len(originals.images) - 1)
    if wanted != batch:
        title += f": batch {batch} in place of {wanted}, which this scale lacks"
    shown, across = reader.evenly(originals.size, MOST), 3 if len(panels) <= 5 else 4
    width = (PAGE - 2 * MARGIN - (across - 1) * GAP) / across
    # Each pixel of a block is one pixel of the PNG, so that no tile is distorted.
    columns = int(np.ceil(np.sqrt(len(shown))))
    side = min((int(width * DPI) - 1) // columns - 1, MOST_PIXELS * 10 // columns)
    shape = [n * (side + 1) + 1 for n in (-(-len(shown) // columns), columns)]
    height = shape[0] / DPI
    depth = -(-(len(panels) + 1) // across) * (HEAD + height + UNDER)
    with drawing(title, _footer(words, panels, batch, len(shown), scale), depth) as page:
        for place, panel in enumerate([None, *panels]):
            row, column = divmod(place, across)
            left, top = MARGIN + column * (width + GAP), HEAD + row * (HEAD + height + UNDER)
            heading = panel.title if panel else "Originals" if originals.size > 1 else "Original"
            page.text(left, top - 0.04, heading, va="bottom", weight="bold", fontsize=6.5)
            axes = page.axes(left, top, shape[1] / DPI, height)
            if panel is None:
                _draw(axes, shape, columns, [originals.images[batch, k] / 255.0 for k in shown])
                under(axes, *_batch_words(originals, batch))
            elif reason := panel.reason(batch):
                frame(axes)
                page.lack(axes, reason)
            else:
                _draw(axes, shape, columns, panel.images(batch, shown))
                under(axes, *_score_words(panel, batch))
    return page.figure


def _draw(
    axes: Axes, shape: Sequence[int], columns: int, images: Sequence[np.ndarray | None]
) -> None:
    """Draw a block of `shape` pixels: square tiles one pixel apart, missing ones as marks."""
    canvas, step = np.ones((*shape, 3)), (shape[1] - 1) // columns
    lacking: list[Box] = []
    for place, image in enumerate(images):
        top, left = (1 + k * step for k in divmod(place, columns))
        low, right = top + step - 1, left + step - 1
        if image is None:
            lacking.append((left - 0.5, top - 0.5, right - 0.5, low - 0.5))
        else:
            # One channel is broadcast to three.
            pixels = np.clip(shrunk(image, step - 1), 0.0, 1.0)
            canvas[top:low, left:right] = np.moveaxis(pixels, 0, -1)
    axes.imshow(canvas, interpolation="none", aspect="auto")
    mark(axes, lacking, data=True)
    axes.set_axis_off()


def _batch_words(originals: TargetSet, batch: int) -> tuple[str, str]:
    """Classes of a batch, and the number of images that are alone in their class."""
    labels, counts = np.unique(originals.labels[batch], return_counts=True)
    alone = int((counts == 1).sum())
    classes = f"{len(labels):,} class" + ("" if len(labels) == 1 else "es")
    return f"{classes}, {originals.size:,} images", f"{alone:,} alone in their class"


def _score_words(panel: Panel, batch: int) -> list[str]:
    """Means and bests over reconstructed images, and the number of missing ones."""
    values = panel.values(batch)
    there = values[values["psnr"].notna()]
    count, total, psnr, ssim = len(there), len(values), there["psnr"], there["ssim_gauss"]
    if not count:
        return ["no image found"]
    said = [
        f"PSNR {decibel(psnr.mean())}, best {decibel(psnr.max())}",
        f"SSIM {similarity(ssim.mean())}, best {similarity(ssim.max())}",
    ]
    if panel.says("partial", batch):
        said.append(f"one class: {count:,} of {total:,} images")
    elif count < total:
        said.append(f"{total - count:,} of {total:,} images missed")
    return said


def _footer(words: Given, panels: Sequence[Panel], batch: int, shown: int, scale: str) -> str:
    size = panels[0].targets.size
    there = [panel for panel in panels if not panel.reason(batch)]
    by_class = [panel.says("classes", batch) for panel in there]
    said = {
        "Each image of the batch has its place in all blocks.": True,
        "Attacks that go by class show the image of its class there, the mean of all images of "
        "that class.": any(by_class),
        "Images of other attacks are matched so that the sum of MSEs is least.": not all(by_class),
        "Grey with a cross: the attack gives no image of that class.": any(
            panel.values(batch)["psnr"].isna().any() for panel in there
        ),
        f"{shown} of {size:,} images are shown, spread evenly over the batch.": shown < size,
        "Below each block mean and best over all images of the batch that it gives; values are "
        "clipped to [0, 1] for display and for SSIM.": True,
    }
    images = wording.counted(panels[0].targets, batch, words.get("drawn", ""))
    first = " ".join(itertools.compress(said, said.values()))
    return reader.footer(words, panels, images, scale, first)
