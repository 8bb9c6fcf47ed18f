"""Where an image is missing: one mark, words that fit, the reason once below the figure."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from gradleak.figures import missing, style
from gradleak.figures.pictures import Page, frame

FISHED = "No image of class {}, which the server fishes for, is in the batch; choose another."
LEFT = "The image leaves the range of inputs by {} of its width in root mean square."


def page(depth=1.0):
    with style.styled():
        return Page.new("Title", "A footer.", depth)


def said(axes):
    return " ".join(axes.texts[-1].get_text().split())


def test_words_that_fit_are_whole_and_leave_no_note():
    one = page()
    frames = [one.picture(0.1 + k, 0.4, 0.8) for k in range(2)]
    missing.draw_missing(frames[0], "not run on batch 3")
    height = one.figure.get_size_inches()[1]
    texts = len(one.figure.texts)
    missing.explain(one.figure)
    assert said(frames[0]) == "not run on batch 3"
    assert one.figure.get_size_inches()[1] == height and len(one.figure.texts) == texts


def test_reasons_are_told_once_and_numbers_that_differ_as_a_range():
    one = page()
    reasons = [FISHED.format(0), LEFT.format("23"), LEFT.format("4.5"), LEFT.format("1.2e+03")]
    frames = [one.picture(0.1 + k, 0.4, 0.7) for k in range(4)]
    for axes, reason in zip(frames, reasons, strict=True):
        missing.draw_missing(axes, reason)
    missing.explain(one.figure)
    assert [said(axes) for axes in frames] == ["No image of class 0 (1)", *["no image (2)"] * 3]
    told = one.figure.texts[-1].get_text().replace("\n", " ")
    assert told == f"Reasons: (1) {FISHED.format(0)} (2) {LEFT.format('4.5 to 1.2e+03')}"


def test_words_stay_inside_of_their_frame():
    one = page(2.0)
    sides, left = (0.35, 0.5, 0.8, 1.8), 0.1
    for side in sides:
        axes = one.picture(left, 0.4, side)
        missing.draw_missing(axes, FISHED.format(0))
        words = axes.texts[0].get_window_extent(one.figure.canvas.get_renderer())
        inside = axes.bbox
        assert "…" not in said(axes)
        # The narrowest frames of figures have 0.5 inches.
        if side >= 0.5:
            assert inside.x0 <= words.x0 and words.x1 <= inside.x1, side
            assert inside.y0 <= words.y0 and words.y1 <= inside.y1, side
        left += side + 0.1
    # A large frame holds all of it.
    assert said(axes) == FISHED.format(0)


@pytest.mark.parametrize("data", [False, True])
def test_the_mark_is_grey_with_a_cross(data):
    one = page()
    axes = one.picture(0.1, 0.4, 0.8)
    frame(axes)
    boxes = [(-0.5, -0.5, 3.5, 3.5), (4.5, -0.5, 8.5, 3.5)] if data else [(0, 0, 1, 1)]
    missing.mark(axes, boxes, data)
    assert [to_hex(box.get_facecolor()).upper() for box in axes.patches] == [style.GRID] * len(
        boxes
    )
    strokes = axes.collections[0].get_segments()
    assert len(strokes) == 2 * len(boxes)
    for box, (up, down) in zip(boxes, zip(strokes[::2], strokes[1::2], strict=True), strict=True):
        left, low, right, high = box
        np.testing.assert_allclose(up, [(left, low), (right, high)])
        np.testing.assert_allclose(down, [(left, high), (right, low)])


def test_a_figure_grows_below_and_all_else_stays_in_its_place():
    one = page()
    axes = one.picture(0.1, 0.4, 0.8)
    one.text(0.1, 0.35, "heading")
    (line,) = axes.plot([0, 1])
    legend = one.figure.legend([line], ["line"], loc="lower left", bbox_to_anchor=(0.3, 0.5))

    def places():
        """Inches from the left and upper edges."""
        height = one.figure.get_size_inches()[1]
        renderer = one.figure.canvas.get_renderer()
        one.figure.draw(renderer)
        found = [axes, legend, *one.figure.texts[:3]]
        boxes = [each.get_window_extent(renderer) for each in found]
        return np.array(
            [
                (box.x0 / style.DPI, height - box.y0 / style.DPI, box.width, box.height)
                for box in boxes
            ]
        )

    with style.styled():
        before, height = places(), one.figure.get_size_inches()[1]
        missing.noted(axes, LEFT.format(1), 10)
        missing.explain(one.figure)
        after = places()
    np.testing.assert_allclose(after, before, atol=0.01)
    note = one.figure.texts[-1].get_window_extent(one.figure.canvas.get_renderer())
    assert one.figure.get_size_inches()[1] > height
    assert note.y0 > 0 and note.y1 / style.DPI < one.figure.get_size_inches()[1] - height + 0.1
