"""FedKL Tables IV, V and VII: what attacks make of one image, a cell for each setting."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.errors import ArtifactError
from gradleak.figures import missing, panel_files
from gradleak.figures.panel_files import IN_PLACE_OF, Panel, decibel, displayed, shortened
from gradleak.figures.pictures import TITLE, Page, draw_pixels, is_embedded, under
from gradleak.figures.style import COLUMN, GREY, PAGE, RED, styled

# Inches: row labels, gaps, a group's further gap, headings, words under answers and originals.
LABEL, GAP, GROUP, LINE, UNDER, BELOW = 0.62, 0.05, 0.08, 0.11, 0.25, 0.14
WIDEST = 0.92  # inches of a picture's side
MOST = 8  # images where each has a row
LABEL_WIDTH = 11  # characters of a row's name
PER_INCH = 17  # characters under a picture
REASON = 18  # characters of why a run failed, under its picture


@dataclass(frozen=True)
class Line:
    """A row or column: its name, that of its group, and whether it shows the originals."""

    name: str
    group: str = ""
    original: bool = False
    batch: int = 0

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Line:
        """From an entry of ``rows`` or ``columns``."""
        return Line(entry["name"], entry.get("group", ""), entry.get("original", False))


@dataclass(frozen=True)
class Grid:
    """Rows, columns and the panel of each cell by (row, column), where there is one.

    The original of a column is the same in all rows, unless `by_image`: then each row has its own
    in each group of columns.
    """

    rows: Sequence[Line]
    columns: Sequence[Line]
    panels: Mapping[tuple[int, int], Panel]
    by_image: bool

    def original(self, row: int, column: int) -> Panel:
        """Panel that has the original of a row and column."""
        group = self.columns[column].group

        def stands_for(place: tuple[int, int]) -> bool:
            if not self.by_image:
                return place[1] == column
            return place[0] == row and self.columns[place[1]].group == group

        return next(panel for place, panel in self.panels.items() if stands_for(place))

    @staticmethod
    def of(words: Mapping[str, Any], panels: Sequence[Panel]) -> Grid:
        """Grid of `panels`, without rows and columns that have none; `words` as of `make`."""
        placed = list(zip(words["panels"], panels, strict=True))
        by_image = "rows" not in words
        columns = [Line.of(entry) for entry in words["columns"]]
        if by_image:
            sets = {columns[entry["column"]].group: panel.targets for entry, panel in placed}
            rows = [
                Line(" / ".join(each.classes(batch)[0] for each in sets.values()), batch=batch)
                for batch in range(min(MOST, *(len(each.images) for each in sets.values())))
            ]
            found = {(row, e["column"]): panel for row in range(len(rows)) for e, panel in placed}
        else:
            rows = [Line.of(entry) for entry in words["rows"]]
            found = {(e["row"], e["column"]): panel for e, panel in placed}
        kept_rows = _kept(rows, {row for row, _ in found})
        kept_columns = _kept(columns, {column for _, column in found})
        return Grid(
            [rows[row] for row in kept_rows],
            [columns[column] for column in kept_columns],
            {
                (kept_rows.index(row), kept_columns.index(column)): panel
                for (row, column), panel in sorted(found.items(), key=lambda item: item[0])
            },
            by_image,
        )


def _kept(lines: Sequence[Line], there: set[int]) -> list[int]:
    """Lines that have a panel, and originals of groups that do."""
    groups = {lines[place].group for place in there}
    return [
        place
        for place, line in enumerate(lines)
        if place in there or (line.original and line.group in groups)
    ]


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        As `gradleak.figures.panel_files.read` takes them.
    words
        ``title``, ``note``, ``columns`` and ``rows``: ``name``, ``group`` and ``original`` of each;
        ``panels`` with the numbers of their ``row`` and ``column``. Without ``rows`` each image
        has a row, named by its class.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows, or panels of one column show different images.
    """
    panels = panel_files.read(files, words)
    grid = Grid.of(words, panels)
    _check(grid)
    # Images have a row each where columns are few: then a column of text is wide enough.
    width = COLUMN if grid.by_image else PAGE
    lefts, side = _lefts(grid.columns, width)
    embedded = any(is_embedded(panel.targets) for panel in panels) and not grid.by_image
    head = 0.06 + LINE * (1 + any(c.group for c in grid.columns) + embedded)
    tops, depth = _tops(grid.rows, side)
    with styled():
        page = Page.new(words["title"], _footer(words, grid, scale), head + depth, width)
        _headings(page, grid, lefts, side, TITLE + head, embedded)
        for row, top in enumerate(tops):
            _label(page, grid.rows, row, TITLE + head + top, side)
            for column, left in enumerate(lefts):
                _cell(page.picture(left, TITLE + head + top, side), grid, row, column, side)
        missing.explain(page.figure)
    return page.figure


def _check(grid: Grid) -> None:
    """Refuse panels that do not show the same image where one original stands for them."""
    for (row, column), panel in grid.panels.items():
        batch, like = grid.rows[row].batch, grid.original(row, column).targets
        sets = (panel.targets, like)
        if any(len(each.images) <= batch for each in sets) or not np.array_equal(
            panel.targets.images[batch, 0], like.images[batch, 0]
        ):
            raise ArtifactError(
                f"{panel.stored.path} is of another image than what stands beside it; give the "
                "experiments of the figure the same targets in config.yaml."
            )


def _lefts(columns: Sequence[Line], width: float) -> tuple[list[float], float]:
    """Left edge of each column, and the side of pictures."""
    breaks = [a.group != b.group for a, b in itertools.pairwise(columns)]
    room = width - LABEL - 0.06 - GROUP * sum(breaks)
    side = min(room / len(columns) - GAP, WIDEST)
    lefts = [LABEL]
    for new_group in breaks:
        lefts.append(lefts[-1] + side + GAP + GROUP * new_group)
    return lefts, side


def _tops(rows: Sequence[Line], side: float) -> tuple[list[float], float]:
    """Upper edge of each row, and the depth of all."""
    tops, depth = [], 0.0
    for place, row in enumerate(rows):
        depth += GROUP * (place > 0 and rows[place - 1].group != row.group)
        tops.append(depth)
        depth += side + (BELOW if row.original else UNDER)
    return tops, depth


def _headings(
    page: Page, grid: Grid, lefts: Sequence[float], side: float, top: float, embedded: bool
) -> None:
    """Groups of columns with a line under each, and the columns' names."""
    lines = 1 + embedded
    for column, (line, left) in enumerate(zip(grid.columns, lefts, strict=True)):
        middle = left + side / 2
        style: dict[str, Any] = {"ha": "center", "va": "bottom"}
        page.text(middle, top - 0.04 - LINE * embedded, line.name, fontsize=6.5, **style)
        if embedded and (said := _stand_in(grid.original(0, column))):
            page.text(middle, top - 0.04, said, fontsize=5.5, color=GREY, **style)
        first = column == 0 or grid.columns[column - 1].group != line.group
        if first and line.group:
            last = max(c for c, other in enumerate(grid.columns) if other.group == line.group)
            middle, y = (left + lefts[last] + side) / 2, top - 0.05 - LINE * lines
            page.text(middle, y, line.group, weight="bold", fontsize=6.5, **style)
            rule = page.axes(left, y + 0.005, lefts[last] + side - left, 0.001)
            rule.set(xticks=[], yticks=[])
            for name, spine in rule.spines.items():
                spine.set(visible=name == "top", color=GREY, linewidth=0.5)


def _stand_in(panel: Panel) -> str:
    """What images are shown in place of those that a column names."""
    dataset = panel.targets.source["dataset"]
    return f"here {dataset}" if dataset in IN_PLACE_OF else ""


def _label(page: Page, rows: Sequence[Line], row: int, top: float, side: float) -> None:
    """Name of a row, above it that of the group it begins."""
    line, middle = rows[row], top + side / 2
    if line.group and (row == 0 or rows[row - 1].group != line.group):
        page.text(0.06, middle - 0.09, line.group, weight="bold", va="bottom", fontsize=7)
    name = textwrap.fill(line.name.replace("_", " "), LABEL_WIDTH, max_lines=3, placeholder=" …")
    page.text(0.06, middle, name, va="center", fontsize=6.5)


def _cell(axes: Axes, grid: Grid, row: int, column: int, side: float) -> None:
    """One picture with its values, or why there is none."""
    batch = grid.rows[row].batch
    if grid.rows[row].original or grid.columns[column].original:
        targets = grid.original(row, column).targets
        draw_pixels(axes, displayed(targets.images[batch, 0] / 255.0))
        if grid.rows[row].original:
            under(axes, shortened(targets.classes(batch)[0], int(side * PER_INCH)))
        return
    panel = grid.panels.get((row, column))
    if panel is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "\N{EN DASH}", ha="center", va="center", color=GREY)
        return
    answer(axes, panel, batch)


def answer(axes: Axes, panel: Panel, batch: int) -> None:
    """What an attack made of an image, with PSNR and SSIM; a failed run is marked."""
    record, image = panel.record(batch), panel.kept(batch)
    if record is None:
        missing.draw_missing(axes, "not run")
        return
    if record["status"] != "ok":
        if image is None:
            missing.draw_missing(axes, panel.reason(batch))
        else:
            draw_pixels(axes, displayed(image))
        _cross(axes)
        status = str(record["status"]).replace("_", " ")
        why = missing.noted(axes, panel.reason(batch), REASON, other="see")
        under(axes, status, *([] if image is None else [why]))
        return
    assert image is not None
    draw_pixels(axes, displayed(image))
    row = panel.values(batch).iloc[0]
    under(axes, decibel(float(row["psnr"])), f"SSIM {panel_files.similarity(float(row['ssim']))}")


def _cross(axes: Axes) -> None:
    """The paper's mark of a failure, in a corner."""
    axes.text(
        0.93,
        0.93,
        "\N{MULTIPLICATION SIGN}",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=7,
        weight="bold",
        color=RED,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
    )


def _footer(words: Mapping[str, Any], grid: Grid, scale: str) -> str:
    """How the figure is read, and which runs it shows."""
    batches = sorted({row.batch for row in grid.rows})
    panels = list(grid.panels.values())
    sets = {panel_files.describe_single(panel.targets, batches): panel.targets for panel in panels}
    precision = " and ".join(sorted({panel.precision for panel in panels}))
    embedded = any(is_embedded(found) for found in sets.values())
    origin = "embedded, in place of the paper's: " if embedded else ""
    failed = any(panel.reason(batch) for panel in panels for batch in batches)
    mark = " \N{MULTIPLICATION SIGN}: the run failed, as far as the attacker can tell." * failed
    empty = any(
        (row, column) not in grid.panels and not (line.original or head.original)
        for row, line in enumerate(grid.rows)
        for column, head in enumerate(grid.columns)
    )
    dash = " \N{EN DASH}: not among the experiments." * empty
    return (
        f"{words.get('note', '')} Below each answer its PSNR (peak 1) and SSIM.{mark}{dash} One "
        "draw of the weights; pictures are clipped to [0, 1]. Images: "
        f"{origin}{'; '.join(sets)}. Scale {scale}; gradients in {precision}."
    )
