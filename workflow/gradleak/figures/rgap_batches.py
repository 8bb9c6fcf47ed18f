"""R-GAP Figures 7 and 8: what R-GAP and DLG make of the gradient of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.figures import missing
from gradleak.figures.answers import Answer, Content, caption
from gradleak.figures.pictures import TITLE, Page, draw_pixels, under
from gradleak.figures.style import PAGE, number, styled
from gradleak.metrics.image import assignment

# Inches: gaps between pictures and between groups, headings, the words under a picture.
GAP, GROUP, HEAD, UNDER = 0.04, 0.16, 0.36, 0.3
MOST = 3  # batches


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, and ``reconstructions`` and ``scores`` of the same runs.
    words
        ``title``, ``model`` (one), ``attacks`` with their headings: two, one that gives one image
        for the batch and one that gives an image for each of it.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    content, model = Content.read(files, words), words["model"]
    size = content.originals.images.shape[1]
    closed, search = list(content.attacks)[:2]
    rows = min(MOST, content.answers.shared(content.attacks))
    pictures = 2 * size + 2
    side = (PAGE - 0.12 - GAP * (pictures - 3) - 2 * GROUP) / pictures
    lefts = [0.06]
    for count in (size, 2):
        lefts.append(lefts[-1] + count * side + (count - 1) * GAP + GROUP)
    headings = (
        f"Batch of {size}: originals",
        f"{content.attacks[closed]}'s one\nimage, and the fit",
        f"{content.attacks[search]}'s {size} images",
    )
    with styled():
        page = Page.new(
            words["title"], _footer(content, model, closed, scale), HEAD + rows * (side + UNDER)
        )
        for left, heading in zip(lefts, headings, strict=True):
            page.text(left, TITLE + HEAD - 0.06, heading, va="bottom", weight="bold", fontsize=6.5)
        for row in range(rows):
            top = TITLE + HEAD + row * (side + UNDER)
            frames = [
                [page.picture(left + k * (side + GAP), top, side) for k in range(count)]
                for left, count in zip(lefts, (size, 2, size), strict=True)
            ]
            one = content.answers.find(model, closed, row)
            _originals(frames[0], content, row, one)
            _mixture(frames[1], content, row, one)
            _found(frames[2], content, row, content.answers.find(model, search, row))
        missing.explain(page.figure)
    return page.figure


def _originals(frames: list[Axes], content: Content, batch: int, one: Answer | None) -> None:
    """Originals, under each its weight in R-GAP's image."""
    for place, axes in enumerate(frames):
        draw_pixels(axes, content.originals.images[batch, place] / 255.0)
        if one is not None and one.ok and "coefficient" in one.scores:
            under(axes, f"w = {_short(one.scores['coefficient'].iloc[place])}")


def _mixture(frames: list[Axes], content: Content, batch: int, one: Answer | None) -> None:
    """R-GAP's image, and the combination of the originals that is nearest to it."""
    axes, other = frames
    if one is None or not one.ok or "coefficient" not in one.scores:
        content.show(axes, one)
        under(axes, caption(one))
        other.axis("off")
        return
    fit = np.tensordot(one.scores["coefficient"], content.originals.inputs(batch), axes=1)
    low, high = float(one.images[0].min()), float(one.images[0].max())
    for place, image in ((axes, one.images[0]), (other, fit)):
        draw_pixels(place, (image - low) / max(high - low, 1e-12))
    under(axes, "found", f"{_short(low, 1)} \N{HORIZONTAL ELLIPSIS} {_short(high, 1)}")
    under(other, "fit", f"R² {_r_squared(one.value('r2'))}")


def _found(frames: list[Axes], content: Content, batch: int, many: Answer | None) -> None:
    """Images of a search, in the order of the originals that they are matched with."""
    if many is None or not many.ok:
        for axes in frames:
            content.show(axes, many)
            under(axes, caption(many))
        return
    order = assignment(content.originals.inputs(batch), many.images)
    for place, axes in enumerate(frames):
        content.show(axes, many, int(order[place]))
        under(axes, number(float(many.scores["mse"].iloc[place])))


def _short(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _r_squared(value: float) -> str:
    """R² with as many nines as it has, up to six."""
    if value > 0.9999995:
        return ">\N{THIN SPACE}0.999999"
    return f"{value:.6f}".rstrip("0").rstrip(".") if value > 0.99 else f"{value:.3f}"


def _footer(content: Content, model: str, closed: str, scale: str) -> str:
    rows = content.answers.rows(model, closed)
    said = ""
    if "r2" in rows and rows["r2"].notna().any():
        middle, least = (
            _r_squared(float(value)) for value in (rows["r2"].median(), rows["r2"].min())
        )
        said = f" R² over all batches: median {middle}, least {least}."
    return (
        "The gradient of a batch is the mean over its images. R-GAP takes it for that of one "
        "image; the fit is the linear combination Σ wᵢ·xᵢ of the originals that is nearest to what "
        "it returns, with the weights w under the originals and the share R² of the variance that "
        f"it explains; both are stretched by R-GAP's least and largest value.{said} Images of "
        "the search are matched to the originals so that the sum of MSEs is least; under each "
        f"its MSE. {content.describe(scale)}"
    )
