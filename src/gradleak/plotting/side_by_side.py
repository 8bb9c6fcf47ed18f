"""Images side by side for notebooks: one row per attack, with text under the pictures."""

import base64
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from gradleak.errors import require_extra
from gradleak.plotting.layout import Grid, Page, draw_pixels
from gradleak.plotting.style import styled

# Inches: widest figure, largest picture, gaps, room for names at the left and text below.
WIDTH, SIDE, GAP, NAMES, WORDS = 8.5, 1.3, 0.08, 1.5, 0.24
NAME_LETTERS = 22  # per line
NAME_SIZE, WORD_SIZE = 9.0, 7.5  # points
# Pixels of the picture per pixel of the page, for high-resolution screens.
FINE = 2
CSS_DPI = 96


@dataclass(frozen=True)
class Row:
    """Pictures of one row."""

    name: str  # label; may be empty
    images: np.ndarray  # (K, C, H, W) in [0, 1]; other values are clipped
    words: Sequence[str] = ()  # one text under each, or none
    skip: int = 0  # empty columns before the first, to align with another row

    def __post_init__(self) -> None:
        if self.images.ndim != 4:
            raise ValueError(f"{self.name}: images must be (K, C, H, W), not {self.images.shape}.")
        if self.words and len(self.words) != len(self.images):
            raise ValueError(
                f"{self.name}: {len(self.words)} texts do not fit {len(self.images)} images."
            )

    def described(self) -> str:
        """Alternative text of the row."""
        count = f"{len(self.images)} pictures" if len(self.images) > 1 else "one picture"
        listed = f" ({', '.join(self.words)})" if self.words else ""
        return f"{self.name}: {count}{listed}" if self.name else f"{count}{listed}"


def draw(rows: Sequence[Row]) -> Figure:
    """Draw rows, one below the other."""
    columns = max(row.skip + len(row.images) for row in rows)
    left = NAMES if any(row.name for row in rows) else 0.0
    under = [WORDS if row.words else GAP for row in rows]
    right = min(WIDTH, left + columns * (SIDE + GAP))
    grid = Grid.fit(left + GAP / 2, 0.0, right + GAP / 2, [columns], under, GAP, widest=SIDE)
    with styled():
        page = Page(right, grid.bottom, title=0.0)
        names = [textwrap.fill(row.name, NAME_LETTERS) for row in rows]
        grid.label(page, names, fontsize=NAME_SIZE, weight="normal")
        for row, top in zip(rows, grid.tops, strict=True):
            for place, image in enumerate(row.images):
                axes = page.picture(grid.lefts[row.skip + place], top, grid.side)
                draw_pixels(axes, image)
                if row.words:
                    axes.set_xlabel(row.words[place], fontsize=WORD_SIZE, labelpad=2.5)
    return page.figure


def show(content: Mapping[str, np.ndarray] | Sequence[Row]) -> None:
    """Show images below the cell of a notebook, with alternative text.

    `content` has rows, one below the other; or images (1, C, H, W) by name, side by side.
    """
    require_extra("notebooks", "IPython")
    from IPython.display import display

    if isinstance(content, Mapping):
        rows = [Row("", np.concatenate(list(content.values())), list(content))]
    else:
        rows = list(content)
    figure, file = draw(rows), io.BytesIO()
    with styled():
        figure.savefig(file, format="png", dpi=FINE * CSS_DPI, metadata={"Software": None})
    words = "; ".join(row.described() for row in rows)
    width, height = (round(CSS_DPI * float(side)) for side in figure.get_size_inches())
    display(
        {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": words},
        raw=True,
        metadata={"image/png": {"alt": words, "width": width, "height": height}},
    )
