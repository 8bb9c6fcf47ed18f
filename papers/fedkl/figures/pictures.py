"""FedKL Tables IV, V and VII: reconstructions of one image, a cell for each setting."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gradleak.errors import ArtifactError
from gradleak.plotting import reader, wording
from gradleak.plotting.layout import EDGE, Cell, Grid, Page, displayed, drawing
from gradleak.plotting.reader import Panel
from gradleak.plotting.style import COLUMN, GREY, PAGE
from gradleak.plotting.wording import IN_PLACE_OF, is_embedded

# Inches: row labels, extra gap between groups, headings, text under reconstructions and originals.
LABEL, GROUP, LINE, UNDER, BELOW = 0.62, 0.08, 0.11, 0.25, 0.14
WIDEST = 0.92  # inches, side of a picture
MOST = 8  # number of images up to which each has a row
LABEL_WIDTH = 11  # characters of a row label
PER_INCH = 17  # characters under a picture
REASON = 18  # characters of the reason for a failed run, under its picture


@dataclass(frozen=True)
class Line:
    """A row or column."""

    name: str
    group: str = ""
    original: bool = False  # whether it shows the originals
    batch: int = 0  # image of a row

    @staticmethod
    def all(entries: Sequence[Mapping[str, Any]]) -> list[Line]:
        """Convert ``rows`` or ``columns``."""
        return [Line(e["name"], e.get("group", ""), e.get("original", False)) for e in entries]


@dataclass(frozen=True)
class Table:
    """Rows, columns and the panel of each cell by (row, column), if any."""

    rows: Sequence[Line]
    columns: Sequence[Line]
    panels: Mapping[tuple[int, int], Panel]
    by_image: bool  # whether each row has a separate original in each group of columns

    def original(self, row: int, column: int) -> Panel:
        """Return the panel with the original of a row and column."""
        group = self.columns[column].group
        for (line, place), panel in self.panels.items():
            own = line == row and self.columns[place].group == group
            if own if self.by_image else place == column:
                return panel
        raise AssertionError("columns without a panel are left out")

    @staticmethod
    def of(words: Mapping[str, Any], panels: Sequence[Panel]) -> Table:
        """Make a table of `panels`, without empty rows and columns; `words` as in `make`."""
        placed = list(zip(words["panels"], panels, strict=True))
        columns = Line.all(words["columns"])
        if by_image := "rows" not in words:
            sets = {columns[entry["column"]].group: panel.targets for entry, panel in placed}
            rows = [
                Line(" / ".join(each.classes(batch)[0] for each in sets.values()), batch=batch)
                for batch in range(min(MOST, *(len(each.images) for each in sets.values())))
            ]
            found = {(row, e["column"]): panel for row in range(len(rows)) for e, panel in placed}
        else:
            rows = Line.all(words["rows"])
            found = {(e["row"], e["column"]): panel for e, panel in placed}
        there = [_kept(rows, {r for r, _ in found}), _kept(columns, {c for _, c in found})]
        return Table(
            [rows[row] for row in there[0]],
            [columns[column] for column in there[1]],
            {(there[0].index(r), there[1].index(c)): found[r, c] for r, c in sorted(found)},
            by_image,
        )


def _kept(lines: Sequence[Line], there: set[int]) -> list[int]:
    """Lines that have a panel, and originals of groups that do."""
    groups = {lines[place].group for place in there}
    kept = [k in there or (line.original and line.group in groups) for k, line in enumerate(lines)]
    return list(itertools.compress(range(len(lines)), kept))


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Draw the figure from files of `gradleak.plotting.reader.read`.

    `words` has ``columns`` and ``rows``: ``name``, ``group`` and ``original`` of each; ``panels``
    with the indices of their ``row`` and ``column``. Without ``rows`` each image has a row,
    labelled by its class. All panels of a column must show the same image.
    """
    panels = reader.read(files, words)
    table = Table.of(words, panels)
    _check(table)
    # Images have a row each if columns are few enough for a wide text column.
    width = COLUMN if table.by_image else PAGE
    embedded = any(is_embedded(panel.targets) for panel in panels) and not table.by_image
    head = 0.06 + LINE * (1 + any(c.group for c in table.columns) + embedded)
    groups = [len(list(own)) for _, own in itertools.groupby(table.columns, lambda c: c.group)]
    under = [BELOW if row.original else UNDER for row in table.rows]
    for place, (line, other) in enumerate(itertools.pairwise(table.rows)):
        under[place] += GROUP * (line.group != other.group)
    grid = Grid.fit(LABEL, head, width - EDGE, groups, under, apart=GROUP, widest=WIDEST)
    with drawing(words["title"], _footer(words, table, scale), grid.bottom, width) as page:
        _headings(page, table, grid, embedded)
        _labels(page, table.rows, grid)
        for row, column in itertools.product(range(len(table.rows)), range(len(table.columns))):
            grid.draw(page, {(row, column): _cell(page, table, row, column, grid.side)})
    return page.figure


def _check(table: Table) -> None:
    """Refuse panels of different images that share one original."""
    for (row, column), panel in table.panels.items():
        batch, like = table.rows[row].batch, table.original(row, column).targets
        one, two = (each.images[batch : batch + 1, 0] for each in (panel.targets, like))
        if not len(one) or not np.array_equal(one, two):
            raise ArtifactError(
                f"{panel.stored.path} is of another image than what stands beside it; give the "
                "experiments of the figure the same targets in config.yaml."
            )


def _headings(page: Page, table: Table, grid: Grid, embedded: bool) -> None:
    columns, top = table.columns, grid.tops[0]
    grid.head(page, [column.name for column in columns], 0.04 + LINE * embedded, fontsize=6.5)
    if embedded:
        # Stand-in for the data set named in a column.
        sets = [table.original(0, k).targets.source["dataset"] for k in range(len(columns))]
        said = [f"here {name}" if name in IN_PLACE_OF else "" for name in sets]
        grid.head(page, said, fontsize=5.5, color=GREY)
    for group, own in itertools.groupby(range(len(columns)), lambda k: columns[k].group):
        first, *_, last = [*own] * 2
        if not group:
            continue
        y, style = top - 0.05 - LINE * (1 + embedded), {"ha": "center", "weight": "bold"}
        page.text(grid.middle(first, last), y, group, va="bottom", fontsize=6.5, **style)
        extent = grid.lefts[last] + grid.side - grid.lefts[first]
        rule = page.axes(grid.lefts[first], y + 0.005, extent, 0.001)
        rule.set(xticks=[], yticks=[])
        for name, spine in rule.spines.items():
            spine.set(visible=name == "top", color=GREY, linewidth=0.5)


def _labels(page: Page, rows: Sequence[Line], grid: Grid) -> None:
    names = [row.name.replace("_", " ") for row in rows]
    short = [textwrap.fill(n, LABEL_WIDTH, max_lines=3, placeholder=" …") for n in names]
    grid.label(page, short, weight="normal", fontsize=6.5)
    for place, (row, top) in enumerate(zip(rows, grid.tops, strict=True)):
        if row.group and (place == 0 or rows[place - 1].group != row.group):
            y = top + grid.side / 2 - 0.09
            page.text(EDGE, y, row.group, weight="bold", va="bottom", fontsize=7)


def _cell(page: Page, table: Table, row: int, column: int, side: float) -> Cell:
    line, batch = table.rows[row], table.rows[row].batch
    if line.original or table.columns[column].original:
        targets = table.original(row, column).targets
        said = wording.shortened(targets.classes(batch)[0], int(side * PER_INCH))
        return Cell(displayed(targets.images[batch, 0] / 255.0), [said] * line.original)
    panel = table.panels.get((row, column))
    return Cell(absent=True) if panel is None else answer(page, panel, batch)


def answer(page: Page, panel: Panel, batch: int) -> Cell:
    """Reconstruction of an image with PSNR and SSIM; a failed run is marked."""
    found = panel.answer(batch)
    if found is None:
        return Cell(why="not run")
    image = displayed(panel.targets.pixels(found.images[0])) if len(found.images) else None
    if found.status == "ok":
        similarity = wording.similarity(found.value("ssim"))
        return Cell(image, (wording.decibel(found.value("psnr")), f"SSIM {similarity}"))
    said, reason = [found.status.replace("_", " ")], panel.reason(batch)
    if image is not None:
        said.append(page.notes.short(reason, REASON, other="see"))
    return Cell(image, said, reason, crossed=True)


def _footer(words: Mapping[str, Any], table: Table, scale: str) -> str:
    batches = sorted({row.batch for row in table.rows})
    panels = list(table.panels.values())
    failed = any(panel.reason(batch) for panel in panels for batch in batches)
    rows, columns = (sum(not e.original for e in lines) for lines in (table.rows, table.columns))
    empty = len(panels) < rows * columns
    first = (
        f"{words.get('note', '')} Below each answer its PSNR (peak 1) and SSIM."
        f"{wording.FAILED * failed}{wording.ABSENT * empty} One draw of the weights; pictures are "
        "clipped to [0, 1]."
    )
    images = wording.each([panel.targets for panel in panels], batches)
    return reader.footer({}, panels, images, scale, first)
