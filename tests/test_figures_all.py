"""What holds for every figure: facts, style, equal bytes, one sentence, missing images."""

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from skimage.color import rgb2lab

import test_figures
import test_mkor_figures as mkor
import test_rgap_figures as rgap
from conftest import ROOT
from figure_files import flat, outside, texts
from gradleak.errors import ArtifactError
from gradleak.plotting import style
from gradleak.plotting.layout import Cell, bare, drawing, mark
from papers.copa.figures import samples
from papers.fedkl.figures import adaptive, curves, fig4, pictures
from test_fedkl_pictures import known, table4, table5
from test_fedkl_tables import build, build4

PHOTOS = ("scale smoke", "float32", "photos10 test", "MSE", "Runs:", "failed")
BATCHES = ("A note.", "Scale smoke", "float32", "drawn at random", "embedded", "A batch")
GRIDS = ("A note.", "Scale smoke", "float32", "PSNR", "embedded, in place of")
SIZES = ("A note.", "Scale smoke", "accuracy, %", "photos10", "epoch")


def of_files(build):
    """Of builders that return files as an object, with the words or beside them."""

    def make(folder):
        module, made, *words = build(folder)
        return module, made.files, words[0] if words else made.words

    return make


def of_paper(module, build):
    return lambda folder: (module, *build(folder))


def copa(folder):
    return test_figures.sample_files(folder), test_figures.WORDS


# What builds the files and words of each figure, and facts that it has to tell.
FIGURES = {
    "copa": (of_paper(samples, copa), ("scale smoke", "float32", "embedded", "failed")),
    **{build.__name__: (of_files(build), PHOTOS) for build in rgap.ALL},
    **{build.__name__: (of_files(build), BATCHES) for build in mkor.ALL},
    "table4": (of_paper(pictures, table4), GRIDS),
    "table5": (of_paper(pictures, table5), GRIDS),
    "adaptive": (of_paper(adaptive, known), (*GRIDS, "(here digits)")),
    "curves": (of_paper(curves, build), SIZES),
    "fig4": (of_paper(fig4, build4), SIZES),
}
SOME = [
    "copa", "twin_data", "mixtures", "mnist", "singles", "sweep", "table4", "adaptive", "curves",
]  # fmt: skip
EVERY = pytest.mark.parametrize("name", FIGURES)


@EVERY
def test_facts_of_the_runs_are_told_and_words_stay_on_the_page(name, tmp_path):
    build, facts = FIGURES[name]
    module, files, words = build(tmp_path)
    figure = module.make(files, words, "smoke")
    found = flat(figure)
    assert [fact for fact in facts if fact not in found] == []
    assert outside(figure) == []


@EVERY
def test_bare_figures_lose_title_and_footer_alone(name, tmp_path):
    module, files, words = FIGURES[name][0](tmp_path)
    titled = module.make(files, words, "smoke")
    with bare():
        plain = module.make(files, words, "smoke")
    assert outside(plain) == []
    before, now = texts(titled), texts(plain)
    assert set(now) < set(before) and before[0] not in now
    assert len(set(before) - set(now)) == 2, "the title and the footer"
    (width, height), (other, lower) = titled.get_size_inches(), plain.get_size_inches()
    assert width == other and height - lower > 0.3
    assert len(module.make(files, words, "smoke").texts) == len(titled.texts), "they are back"


def assert_print(path):
    """No letter is a drawing, and the page is as wide as a column or a page of text."""
    content = path.read_bytes()
    assert b"/Type3" not in content and b"CreationDate" not in content, path
    assert content.count(b"/FontFile2") >= 1, path
    (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", content)
    assert float(width) / 72 in (pytest.approx(style.COLUMN), pytest.approx(style.PAGE)), path


@pytest.mark.parametrize("name", SOME)
def test_equal_files_give_equal_bytes_and_vector_text(name, tmp_path):
    module, files, words = FIGURES[name][0](tmp_path)
    for copy in ("a", "b"):
        style.save(module.make(files, words, "smoke"), tmp_path / copy / "figure.pdf")
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / copy).iterdir()} for copy in "ab"
    )
    assert one == other and sorted(one) == ["figure.pdf", "figure.png"]
    assert_print(tmp_path / "a" / "figure.pdf")


@EVERY
def test_what_is_missing_is_one_sentence(name, tmp_path):
    module, files, words = FIGURES[name][0](tmp_path)
    key = next((key for key in ("curves", "panels") if key in words), None)
    nothing = {**files, "scores": [], "reconstructions": [], "security": []}
    missing = {**words, key or "models": []}
    with pytest.raises(ArtifactError, match=r"Nothing to draw; .*config\.yaml"):
        module.make(files if key else nothing, missing, "smoke")
    if key:
        other = [{**each, "model": "another"} for each in words[key]]
        with pytest.raises(ArtifactError, match=r"no rows of another.*; delete it"):
            module.make(files, {**words, key: other}, "smoke")
    if key == "curves":
        return
    stored = Path(files["reconstructions"][0])
    stored.write_bytes(b"half a fi")
    with pytest.raises(ArtifactError, match="is damaged"):
        module.make(files, words, "smoke")
    stored.unlink()
    with pytest.raises(ArtifactError, match="is missing; ask Snakemake"):
        module.make(files, words, "smoke")


MODULES = sorted([*ROOT.glob("src/*/plotting/*.py"), *ROOT.glob("papers/*/figures/*.py")])


def test_no_figure_needs_torch():
    places = [path.relative_to(ROOT).with_suffix("").parts for path in MODULES]
    names = [".".join(parts).removeprefix("src.") for parts in places if parts[-1][0] != "_"]
    script = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- Style: colours are told apart, words can be read in print -----------------------------------

# Viénot, Brettel and Mollon (1999): what colours look like without the cones for red, or green, as
# matrices on linear RGB; Machado, Oliveira and Fernandes (2009) without those for blue.
SEEN = {
    "all cones": np.eye(3),
    "no red": [[0.1124, 0.8876, 0.0], [0.1124, 0.8876, 0.0], [0.0040, -0.0040, 1.0]],
    "no green": [[0.2928, 0.7072, 0.0], [0.2928, 0.7072, 0.0], [-0.0223, 0.0223, 1.0]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


def lab(colour, seen):
    """A colour in CIELAB, as eyes of a kind see it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    mixed = np.clip(np.array(SEEN[seen]) @ linear, 0, 1)
    shown = np.where(mixed <= 0.0031308, 12.92 * mixed, 1.055 * mixed ** (1 / 2.4) - 0.055)
    return rgb2lab(shown[None, None])[0, 0]


@pytest.mark.parametrize("seen", SEEN)
def test_colours_of_data_are_told_apart_by_all_eyes(seen):
    for one, other in combinations(style.CYCLE, 2):
        # A difference of 2.3 is just seen side by side.
        assert np.linalg.norm(lab(one, seen) - lab(other, seen)) > 15, (one, other)


def test_colours_and_sizes_of_words_come_from_the_style():
    colours = r'"(?:#[0-9A-Fa-f]{3,8}|C\d|red|green|blue|orange|gray|grey|tab:\w+)"'
    for path in MODULES:
        text = path.read_text(encoding="utf-8").replace('cmap="gray"', "")
        named = re.findall(colours, text) if path.name != "style.py" else []
        assert named == [], f"{path}: name the colour in style.py"
        sizes = re.findall(r"(?:fontsize=|labelsize=|^SMALL = )([\d.]+)", text, re.MULTILINE)
        assert all(float(size) >= style.LEAST for size in sizes), path


def test_widths_fit_a_column_and_a_page():
    assert pytest.approx(85 / 25.4, abs=2 / 25.4) == style.COLUMN
    assert pytest.approx(180 / 25.4, abs=3 / 25.4) == style.PAGE


# --- Where an image is missing: one mark, words that fit, the reason once below the figure -------

FISHED = "No image of class {}, which the server fishes for, is in the batch; choose another."
LEFT = "The image leaves the range of inputs by {} of its width in root mean square."


def page(depth=1.0):
    return drawing("Title", "A footer.", depth)


def said(axes):
    return " ".join(axes.texts[-1].get_text().split())


def test_words_that_fit_are_whole_and_leave_no_note():
    with page() as one:
        axes = one.picture(0.1, 0.1, 0.8, Cell(why="not run on batch 3"))
        before = one.figure.get_size_inches()[1], len(one.figure.texts)
    assert said(axes) == "not run on batch 3"
    assert (one.figure.get_size_inches()[1], len(one.figure.texts)) == before


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
    crosses = [line for a, b, c, d in boxes for line in (((a, b), (c, d)), ((a, d), (c, b)))]
    np.testing.assert_allclose(strokes, crosses)


def test_a_figure_grows_below_and_all_else_stays_in_its_place():
    def places(one, found):
        height = one.figure.get_size_inches()[1]
        renderer = one.figure.canvas.get_renderer()
        one.figure.draw(renderer)
        boxes = [each.get_window_extent(renderer) for each in found]
        edges = [(box.x0 / style.DPI, height - box.y0 / style.DPI) for box in boxes]
        sizes = [(box.width, box.height) for box in boxes]
        return np.hstack([edges, sizes]), height

    with style.styled():
        with page() as one:
            axes = one.picture(0.1, 0.1, 0.8)
            one.text(0.1, 0.05, "heading")
            where = {"bbox_to_anchor": (2.0, 0.9), "bbox_transform": one.inches}
            legend = one.figure.legend(axes.plot([0, 1]), ["line"], loc="lower left", **where)
            found = [axes, legend, *one.figure.texts[:3]]
            before, height = places(one, found)
            one.notes.short(LEFT.format(1), 10)
        after, higher = places(one, found)
    np.testing.assert_allclose(after, before, atol=0.01)
    note = one.figure.texts[-1].get_window_extent(one.figure.canvas.get_renderer())
    assert higher > height
    assert note.y0 > 0 and note.y1 / style.DPI < higher - height + 0.1
