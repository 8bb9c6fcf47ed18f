"""R-GAP Figure 5: twin data, and where DLG ends from different starts."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.plotting.layout import EDGE, SMALL, Cell, Grid, Page, drawing
from gradleak.plotting.reader import Answer, Content, Panel, caption
from gradleak.plotting.style import BLUE, CROSS, GREY, ORANGE, PAGE, YELLOW
from gradleak.runtime.tidy import Given
from gradleak.scoring.metrics.image import AT_TWIN, INVISIBLE
from papers.rgap.figures import diagrams

# Inches: column of labels, headings, text under a picture, the panels below.
LABEL, HEAD, UNDER, PANEL_HEAD, BAR = 0.82, 0.34, 0.28, 0.42, 0.24
SHOWN = 0
# Squared error below which a run ends near image or twin, as a share of their squared distance.
NEAR = 0.01
SPAN = (2, 98)  # percentiles that are stretched to the original's
WIDEST = 1.0  # inches, side of a picture
SHIFT, BETWEEN = 1.6, 0.25  # inches, to the panels and between them
NEAR_TWIN = "near the twin"
LOOKS: dict[str, dict[str, Any]] = {
    "real image": {"facecolor": BLUE},
    "twin": {"facecolor": ORANGE},
    NEAR_TWIN: {"facecolor": YELLOW},
    "elsewhere": {"facecolor": CROSS},
    "failed": {"facecolor": "white", "hatch": "////"},
}
ENDS = tuple(LOOKS)


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure; pictures are of the first network, both answers of attacks with twins."""
    content = Content.read(files, words)
    chains, attacks = content.chains, content.attacks
    columns = _columns(content, chains[0].name)
    grid = Grid.fit(LABEL, HEAD, PAGE, [1 + len(columns)], [UNDER] * 2, widest=WIDEST)
    panels = grid.bottom + 0.08
    shown = [content.panel(chain.name, attack) for chain in chains for attack in attacks]
    met = {end for panel in shown for end in _ends(panel, chosen=False)}
    known = [end for end in ENDS if end != NEAR_TWIN or end in met]
    near = (
        f", and near the twin if its squared error to the twin is below {100 * NEAR:g} % of the "
        "squared distance between the two: then noise hides the faint twin"
    )
    width = (PAGE - SHIFT - 0.1 - BETWEEN * (len(chains) - 1)) / len(chains)
    high = BAR * len(attacks)
    footer = (
        f"Network of the pictures: {content.name(chains[0])}. The twin is the image times μ̃/μ. "
        f"Lower row: values stretched linearly so that percentiles {SPAN[0]} and {SPAN[1]} are the "
        f"original's. An answer is at the real image if its MSE is at most {INVISIBLE:g}, else at "
        f"the twin if its distance to the twin is at most {AT_TWIN:g} of the twin's norm"
        f"{near if NEAR_TWIN in met else ''}. {content.describe(scale)}"
    )
    with drawing(words["title"], footer, panels + PANEL_HEAD + high + 0.4) as page:
        _pictures(page, grid, content, columns)
        for place, chain in enumerate(chains):
            left = SHIFT + place * (width + BETWEEN)
            axes = page.axes(left, panels + PANEL_HEAD, width, high)
            counts = [ends(content.panel(chain.name, attack)) for attack in attacks]
            _bars(axes, counts, [] if place else list(attacks.values()))
            title = f"{content.name(chain)}, {diagrams.index_words(chain)}"
            axes.set_title(title, loc="left", pad=3)
        page.text(EDGE, panels + 0.12, "Where they end:", weight="bold", va="center")
        for place, end in enumerate(known):
            axes = page.swatch(SHIFT + 1.05 * place, panels + 0.12, end, fontsize=6.5)
            axes.bar(0.5, 1, 1, edgecolor=GREY, linewidth=0.4, clip_on=False, **LOOKS[end])
    return page.figure


def _columns(content: Content, model: str) -> list[tuple[str, Answer | None]]:
    """Headings and answers: both roots of R-GAP, the own choice of the others."""
    found = []
    for attack, heading in content.attacks.items():
        panel = content.panel(model, attack)
        roots = (",\nits choice", ",\nthe other root") if _has_twins(panel) else ("",)
        found += [(heading + root, panel.answer(SHOWN, k)) for k, root in enumerate(roots)]
    return found


def _pictures(
    page: Page, grid: Grid, content: Content, columns: Sequence[tuple[str, Answer | None]]
) -> None:
    original = content.originals.inputs(SHOWN)[0]
    grid.label(page, ["As it is", "Stretched"])
    grid.head(page, ["Original", *(heading for heading, _ in columns)])
    for top, words in zip(grid.tops, ("MSE to the real image:", "MSE to the twin:"), strict=True):
        low = top + grid.side + 0.075
        page.text(EDGE, low, words, fontsize=SMALL, color=GREY, va="center")
    cells = {(row, 0): content.original(SHOWN) for row in (0, 1)}
    for column, (_, answer) in enumerate(columns, start=1):
        cells[0, column] = cells[1, column] = content.cell(answer, caption(answer))
        if answer is not None and answer.ok:
            image = answer.images[0]
            (low, high), (bottom, top) = (np.percentile(x, SPAN) for x in (image, original))
            stretched = (image - low) / max(high - low, 1e-12) * (top - bottom) + bottom
            where = end_of(answer.scores.iloc[0], original)
            said = caption(answer, "mse_twin"), f"at the {where}" if where in ENDS[:2] else where
            cells[1, column] = Cell(content.originals.pixels(stretched), said)
    grid.draw(page, cells)


def end_of(row: pd.Series, original: np.ndarray) -> str:
    """Classify the end of a run as one of `ENDS`, by its scores and the original as an input."""
    if row["status"] != "ok":
        return "failed"
    if row["mse"] <= INVISIBLE:
        return "real image"
    if "mse_twin" not in row:
        return "elsewhere"
    if row["twin_error"] <= AT_TWIN:
        return "twin"
    apart = float(np.mean(original**2)) * (1 - row["twin_scale"]) ** 2
    return NEAR_TWIN if row["mse_twin"] < NEAR * apart else "elsewhere"


def _ends(panel: Panel, *, chosen: bool) -> Iterator[str]:
    """Yield the ends of an attack's answers: the chosen ones, or all."""
    for _, row in (panel.chosen if chosen else panel.table).iterrows():
        yield end_of(row, panel.targets.inputs(int(row["batch"]))[0])


def ends(panel: Panel) -> list[int]:
    """Count all restarts by end, in the order of `ENDS`; of both roots only the chosen one."""
    found = list(_ends(panel, chosen=_has_twins(panel)))
    return [found.count(end) for end in ENDS]


def _has_twins(panel: Panel) -> bool:
    return bool((panel.table["kind"] == "twin").any())


def _bars(axes: Axes, counts: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
    table = np.array(counts)
    shares = table / table.sum(axis=1, keepdims=True)
    lefts = np.cumsum(shares, axis=1) - shares
    for column, (end, look) in enumerate(LOOKS.items()):
        place = range(len(counts)), shares[:, column], 0.68, lefts[:, column]
        bars = axes.barh(*place, edgecolor=GREY, linewidth=0.4, **look)
        said = [str(count) if count else "" for count in table[:, column]]
        colour = "white" if end == ENDS[0] else "black"
        box = {"facecolor": "white", "lw": 0, "pad": 1} if end == "failed" else None
        axes.bar_label(bars, said, label_type="center", fontsize=SMALL, color=colour, bbox=box)
    axes.set(xlim=(0, 1), ylim=(len(counts) - 0.5, -0.5), yticks=range(len(counts)))
    axes.set_yticklabels([label.replace("\n", " ") for label in labels])
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", "25", "50", "75", "100"))
    axes.grid(False, axis="y")
    axes.set_xlabel("share of answers in %, all images and starts")
