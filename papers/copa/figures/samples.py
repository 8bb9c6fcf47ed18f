"""Samples of reconstructions: a row per model, for each image the original and every attack."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from gradleak.data.targets import TargetSet
from gradleak.plotting.layout import EDGE, LINES, Cell, Grid, Page, drawing
from gradleak.plotting.reader import SEED, Content, caption, median
from gradleak.plotting.style import GREY, PAGE
from gradleak.plotting.wording import described, is_embedded, precision, signed, typical
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given

# Inches: column of labels, gap between images, text under an image, header.
LABEL, GROUP, UNDER, HEADER = 0.92, 0.09, 0.28, 0.27


def make(files: Given, words: Given, scale: str) -> Figure:
    """Draw the figure; `files` has ``security`` of each of ``models`` beside `Content.read`'s."""
    content, models = Content.read(files, words), words["models"]
    originals, headings = content.originals, ["Original", *content.attacks.values()]
    groups = [len(headings)] * len(originals.images)
    grid = Grid.fit(LABEL, HEADER, PAGE, groups, [UNDER] * len(models), apart=GROUP)
    with drawing(words["title"], _footer(content, scale), grid.bottom) as page:
        grid.head(page, headings * len(groups), 0.03)
        _labels(page, grid, [variant(model) for model in models], files["security"])
        for group, size in enumerate(groups):
            middle = grid.middle(group * size, (group + 1) * size - 1)
            style: dict[str, Any] = {"ha": "center", "va": "bottom", "weight": "bold"}
            page.text(middle, HEADER - 0.155, target_name(originals, group), **style)
            for row, model in enumerate(models):
                cells = [content.original(group), *_cells(content, model, group)]
                grid.draw(page, {(row, group * size + k): cell for k, cell in enumerate(cells)})
    return page.figure


def variant(model: str) -> str:
    """Label of a model id: ``cnn3_v1_tanh`` is Variant 1; other ids are unchanged."""
    found = [part[1:] for part in model.split("_") if part[:1] == "v" and part[1:].isdigit()]
    return f"Variant {found[0]}" if found else model


def _cells(content: Content, model: str, batch: int) -> Iterator[Cell]:
    """Reconstructions of an image by each attack, with MSE and the median over seeds."""
    for panel in (content.panel(model, attack) for attack in content.attacks):
        found, rows = panel.answer(batch), panel.chosen
        middle = median(rows[rows["batch"] == batch])
        yield content.cell(found, caption(found), typical(middle))


def _labels(page: Page, grid: Grid, names: Sequence[str], security: Sequence[str]) -> None:
    for top, name, path in zip(grid.tops, names, security, strict=True):
        layers = read_csv(path, ["model", "seed", "rank_method", "contribution"])
        layers = layers[layers["seed"] == SEED]
        said = f"c(M) = {signed(layers['contribution'].sum(), 'g')}"
        if (layers["rank_method"] != "structural").any():
            said += "\n(numerical rank)"
        middle = top + grid.side / 2
        page.text(EDGE, middle - 0.02, name, va="bottom", weight="bold")
        page.text(EDGE, middle + 0.02, said, va="top", fontsize=6.5)
        for words, (drop, size) in zip(("MSE, one draw:", "median of draws:"), LINES, strict=False):
            page.text(EDGE, top + grid.side - drop / 72, words, fontsize=size, color=GREY)


def target_name(targets: TargetSet, batch: int) -> str:
    """Name of an image in the paper, with its content if different."""
    name, label = targets.names[batch], targets.classes(batch)[0]
    if label == name:
        return name.capitalize()
    if is_embedded(targets):
        return f"{label.capitalize()} (stands in for {name})"
    return f"{name.capitalize()} ({label})"


def _footer(content: Content, scale: str) -> str:
    targets, table = content.originals, content.table()
    sign = "\N{MINUS SIGN}" if targets.offset < 0 else "+"
    shift = f" {sign} {abs(targets.offset):g}" if targets.offset else ""
    return (
        f"Rows: networks, with COPA's security index c(M) (eq. 8): 0 if every layer's system has "
        f"full rank, more negative the more rank is lost. Columns: original, then the "
        f"reconstruction from its gradient by each attack; below it the MSE on inputs "
        f"x{shift}, x in [0, 1], and its median over all draws of the weights, of which a failed "
        f"one counts as worst. Shown: seed {SEED}, the first of {table['seed'].nunique()}; clipped "
        f"to [0, 1] for display only. Images: {described(targets)}; scale {scale}; gradients in "
        f"{precision([table])}."
    )
