"""Where an image is missing: one mark, words that fit, the reason once below the figure."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from gradleak.plotting import style
from gradleak.plotting.layout import Cell, drawing, mark

FISHED = "No image of class {}, which the server fishes for, is in the batch; choose another."
LEFT = "The image leaves the range of inputs by {} of its width in root mean square."


def page(depth=1.0):
    return drawing("Title", "A footer.", depth)


def said(axes):
    return " ".join(axes.texts[-1].get_text().split())


def test_words_that_fit_are_whole_and_leave_no_note():
    def size():
        return one.figure.get_size_inches()[1], len(one.figure.texts)

    with page() as one:
        axes = one.picture(0.1, 0.1, 0.8, Cell(why="not run on batch 3"))
        before = size()
    assert said(axes) == "not run on batch 3"
    assert size() == before


def test_reasons_are_told_once_and_numbers_that_differ_as_a_range():
    reasons = [FISHED.format(0), *map(LEFT.format, ("23", "4.5", "1.2e+03"))]
    with page() as one:
        frames = [one.picture(0.1 + k, 0.1, 0.7, Cell(why=why)) for k, why in enumerate(reasons)]
    assert [said(axes) for axes in frames] == ["No image of class 0 (1)", *["no image (2)"] * 3]
    told = one.figure.texts[-1].get_text().replace("\n", " ")
    assert told == f"Reasons: (1) {FISHED.format(0)} (2) {LEFT.format('4.5 to 1.2e+03')}"


def test_words_stay_inside_of_their_frame():
    with page(2.0) as one:
        # The narrowest frames of figures have 0.5 inches.
        for left, side in ((0.1, 0.35), (0.55, 0.5), (1.15, 0.8), (2.05, 1.8)):
            axes = one.picture(left, 0.1, side, Cell(why=FISHED.format(0)))
            words = axes.texts[0].get_window_extent(one.figure.canvas.get_renderer())
            inside = np.all(axes.bbox.min <= words.min) and np.all(words.max <= axes.bbox.max)
            assert "…" not in said(axes) and (inside or side < 0.5)
    # A large frame holds all of it.
    assert said(axes) == FISHED.format(0)


@pytest.mark.parametrize("data", [False, True])
def test_the_mark_is_grey_with_a_cross(data):
    boxes = [(-0.5, -0.5, 3.5, 3.5), (4.5, -0.5, 8.5, 3.5)] if data else [(0, 0, 1, 1)]
    with page() as one:
        axes = one.picture(0.1, 0.1, 0.8)
        mark(axes, boxes, data)
    colours = [to_hex(box.get_facecolor()).upper() for box in axes.patches]
    assert colours == [style.GRID] * len(boxes)
    strokes = axes.collections[0].get_segments()
    lines = [((a, b), (c, d)) for a, b, c, d in boxes], [((a, d), (c, b)) for a, b, c, d in boxes]
    np.testing.assert_allclose(strokes, np.concatenate(list(zip(*lines, strict=True))))


def test_a_figure_grows_below_and_all_else_stays_in_its_place():
    def places(one, found):
        height = one.figure.get_size_inches()[1]
        renderer = one.figure.canvas.get_renderer()
        one.figure.draw(renderer)
        boxes = [each.get_window_extent(renderer) for each in found]
        edges = [(box.x0 / style.DPI, height - box.y0 / style.DPI) for box in boxes]
        return np.array([(*edge, b.width, b.height) for edge, b in zip(edges, boxes, strict=True)])

    with style.styled():
        with page() as one:
            axes = one.picture(0.1, 0.1, 0.8)
            one.text(0.1, 0.05, "heading")
            where = {"bbox_to_anchor": (2.0, 0.9), "bbox_transform": one.inches}
            legend = one.figure.legend(axes.plot([0, 1]), ["line"], loc="lower left", **where)
            found = [axes, legend, *one.figure.texts[:3]]
            before, height = places(one, found), one.figure.get_size_inches()[1]
            one.notes.short(LEFT.format(1), 10)
        after = places(one, found)
    np.testing.assert_allclose(after, before, atol=0.01)
    note = one.figure.texts[-1].get_window_extent(one.figure.canvas.get_renderer())
    assert one.figure.get_size_inches()[1] > height
    assert note.y0 > 0 and note.y1 / style.DPI < one.figure.get_size_inches()[1] - height + 0.1
