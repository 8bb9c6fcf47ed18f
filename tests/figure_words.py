"""What tests look at in a figure: its words, its pictures, and what leaves the page."""

from typing import Any

import numpy as np


def texts(figure: Any) -> list[str]:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(), axes.get_title(loc="left"), axes.get_xlabel()]
        found += [axes.get_ylabel(), *(text.get_text() for text in axes.texts)]
        found += [text.get_text() for text in axes.get_xticklabels()]
        if axes.get_legend() is not None:
            found += [text.get_text() for text in axes.get_legend().get_texts()]
    return found


def flat(figure: Any) -> str:
    """All words of a figure in one line; a line may end at the hyphen of a word."""
    return " ".join(" ".join(texts(figure)).split()).replace("- ", "-")


def outside(figure: Any) -> list[str]:
    renderer, (width, height) = figure.canvas.get_renderer(), figure.bbox.size
    found = []
    for text in [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]:
        box = text.get_window_extent(renderer)
        inside = box.x0 > -2 and box.y0 > -2 and box.x1 < width + 2 and box.y1 < height + 2
        if text.get_text() and not inside:
            found.append(text.get_text())
    return found


def pictures(figure: Any) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]
