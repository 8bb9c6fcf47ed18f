"""What tests look at in a figure: its words, its pictures, and what leaves the page."""

import numpy as np


def texts(figure):
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(), axes.get_title(loc="left"), axes.get_xlabel()]
        legend = axes.get_legend().get_texts() if axes.get_legend() else []
        shown = [axes.yaxis.label, *axes.texts, *axes.get_xticklabels(), *legend]
        found += [text.get_text() for text in shown]
    return found


def flat(figure):
    """All words of a figure in one line; a line may end at the hyphen of a word."""
    return " ".join(" ".join(texts(figure)).split()).replace("- ", "-")


def outside(figure):
    renderer, page = figure.canvas.get_renderer(), figure.bbox.padded(2)
    shown = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    return [
        said
        for said, box in boxes
        if said and not (np.all(page.min < box.min) and np.all(box.max < page.max))
    ]


def pictures(figure):
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]
