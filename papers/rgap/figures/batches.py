"""R-GAP Figures 7 and 8: reconstructions from the gradient of a batch by R-GAP and DLG."""

import numpy as np
from matplotlib.figure import Figure

from gradleak.plotting.layout import Cell, Grid, drawing
from gradleak.plotting.reader import Answer, Content, Panel, caption
from gradleak.plotting.style import PAGE, number
from gradleak.plotting.wording import signed
from gradleak.runtime.tidy import Given
from gradleak.scoring.metrics.image import assignment

# Inches: gaps between pictures and between groups, headings, text under a picture.
GAP, GROUP, HEAD, UNDER = 0.04, 0.16, 0.36, 0.3
MOST = 3  # number of batches


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure of one ``model`` and two attacks: one image for a batch, and one for each."""
    content, model = Content.read(files, words), words["model"]
    size = content.originals.size
    closed, search = (content.panel(model, attack) for attack in list(content.attacks)[:2])
    names = list(content.attacks.values())
    under = [UNDER] * min(MOST, content.shared())
    right = PAGE - 0.06 + GAP
    grid = Grid.fit(0.06, HEAD, right, [size, 2, size], under, GAP, GROUP - GAP)
    headings = {
        0: f"Batch of {size}: originals",
        size: f"{names[0]}'s one\nimage, and the fit",
        size + 2: f"{names[1]}'s {size} images",
    }
    with drawing(words["title"], _footer(closed, content.describe(scale)), grid.bottom) as page:
        for column, heading in headings.items():
            left = grid.lefts[column]
            page.text(left, HEAD - 0.06, heading, va="bottom", weight="bold", fontsize=6.5)
        for row in range(len(under)):
            cells = [*_mixed(content, row, closed.answer(row))]
            cells += _found(content, row, search.answer(row))
            grid.draw(page, {(row, k): cell for k, cell in enumerate(cells) if cell is not None})
    return page.figure


def _mixed(content: Content, batch: int, one: Answer | None) -> list[Cell | None]:
    """Originals, R-GAP's image, and the closest linear combination of the originals."""
    originals = content.originals.images[batch] / 255.0
    if one is None or not one.ok or "coefficient" not in one.scores:
        return [*map(Cell, originals), content.cell(one, caption(one)), None]
    image, weights = one.images[0], one.scores["coefficient"]
    fit = np.tensordot(weights, content.originals.inputs(batch), axes=1)
    low, high = float(image.min()), float(image.max())
    found, fitted = ((each - low) / max(high - low, 1e-12) for each in (image, fit))
    span = f"{signed(low, '.1f')} \N{HORIZONTAL ELLIPSIS} {signed(high, '.1f')}"
    explained = f"R² {_r_squared(one.value('r2'))}"
    said = [[f"w = {signed(weight, '.2f')}"] for weight in weights]
    results = Cell(found, ("found", span)), Cell(fitted, ("fit", explained))
    return [*map(Cell, originals, said), *results]


def _found(content: Content, batch: int, many: Answer | None) -> list[Cell]:
    """DLG's images, in the order of the originals that they are matched with."""
    if many is None or not many.ok:
        return [content.cell(many, caption(many))] * content.originals.size
    order = assignment(content.originals.inputs(batch), many.images)
    return [
        content.cell(many, number(float(value)), image=int(place))
        for place, value in zip(order, many.scores["mse"], strict=True)
    ]


def _r_squared(value: float) -> str:
    """Format R² with all its nines, up to six."""
    if value > 0.9999995:
        return ">\N{THIN SPACE}0.999999"
    return f"{value:.6f}".rstrip("0").rstrip(".") if value > 0.99 else f"{value:.3f}"


def _footer(closed: Panel, runs: str) -> str:
    rows, said = closed.chosen, ""
    if "r2" in rows and rows["r2"].notna().any():
        middle, least = (_r_squared(float(v)) for v in (rows["r2"].median(), rows["r2"].min()))
        said = f" R² over all batches: median {middle}, least {least}."
    return (
        "The gradient of a batch is the mean over its images. R-GAP takes it for that of one "
        "image; the fit is the linear combination Σ wᵢ·xᵢ of the originals that is nearest to what "
        "it returns, with the weights w under the originals and the share R² of the variance that "
        f"it explains; both are stretched by R-GAP's least and largest value.{said} {runs}"
    )
