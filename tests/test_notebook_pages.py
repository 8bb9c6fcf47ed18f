"""Pages of notebooks: equations, images, columns, what leaves none."""

import base64
from pathlib import Path

import nbformat
import numpy as np
import pytest

from conftest import sentence
from gradleak.errors import NotebookError
from gradleak.plotting.side_by_side import NAMES as LEFT
from gradleak.plotting.side_by_side import Row, draw
from gradleak.reporting.notebooks import page, source
from html_tree import parse
from notebook_cases import notebook, store

# The smallest PNG: one pixel.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def written(tmp_path, *cells):
    (tmp_path / "pages").mkdir(exist_ok=True)
    made = tmp_path / "pages" / "mine.html"
    page.write(notebook(*cells), tmp_path / "mine.ipynb", made)
    return made.read_text()


def test_equations_are_mathml_and_links_hold_from_the_page(tmp_path):
    html = written(tmp_path, "# x < $a_b$\n\n$$\\frac{1}{2} < c$$", "[a](docs/a.md) [b](https://b)")
    tree = parse(html)
    assert [tag["display"] for tag in tree.all("math")] == ["inline", "block"]
    assert "$" not in html and tree.all("mfrac")
    assert [tag["href"] for tag in tree.all("a")] == ["../docs/a.md", "https://b"]
    assert not tree.all("script") and not tree.all("link")


def test_images_of_the_text_become_part_of_the_page(tmp_path):
    for name in ("a b.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(PIXEL)
    text = (
        """# x ![one](a%20b.png "t") <img alt="two" src="b.png">\n\n<img src='c.png' alt='three'>"""
    )
    data = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    images = parse(written(tmp_path, text, f"[r]: c.png\n\n![four][r] ![five]({data})")).all("img")
    assert [image["src"] for image in images] == [data] * 5
    assert [image.get("alt") for image in images] == ["one", "two", "three", "four", "five"]
    path = store(tmp_path / "a.ipynb", text, "[r]: c.png\n\n![four][r] ![gone](gone.png)")
    assert [Path(name).name for name in source.images(path)] == ["a b.png", "b.png", "c.png"]
    assert source.images(tmp_path / "none.ipynb") == []


UNSHOWN = {
    "![a](gone.png)": ["'gone.png' cannot be read (No such file or directory)"],
    "<img src='gone.png'>": ["'gone.png' cannot be read"],
    "![a](https://x/a.png)": ["'https://x/a.png' cannot become part", "as a file"],
    "![a](attachment:a.png)": ["'attachment:a.png' cannot become part"],
    "![a](a.txt)": ["'a.txt' cannot become part", ".png"],
}


@pytest.mark.parametrize(("image", "words"), UNSHOWN.items())
def test_an_image_that_cannot_be_shown_leaves_no_page(tmp_path, image, words):
    (tmp_path / "a.txt").touch()
    text = sentence(NotebookError, written, tmp_path, f"# x\n\n{image}")
    assert "mine.ipynb: " in text and all(word in text for word in words)
    assert not list((tmp_path / "pages").iterdir())


def test_printed_columns_stay_below_one_another_and_sentences_wrap(tmp_path):
    said = notebook("print()")
    said.cells[2].outputs = [
        nbformat.v4.new_output("stream", text="layer   free\nconv1     55\n"),
        nbformat.v4.new_output("stream", text="  One sentence. Another.\n"),
        nbformat.v4.new_output("display_data", {"text/plain": "a   b"}),
    ]
    page.write(said, tmp_path / "a.ipynb", tmp_path / "a.html")
    found = [tag.get("class") for tag in parse((tmp_path / "a.html").read_text()).all("pre")]
    assert found[-3:] == ["columns", None, "columns"]


def test_pictures_of_a_row_can_stand_below_those_of_another():
    image = np.zeros((3, 1, 2, 2))
    figure = draw([Row("all", image), Row("last", image[:1], ["1 dB"], skip=2)])
    boxes = [axes.get_position() for axes in figure.axes]
    assert boxes[3].x0 == pytest.approx(boxes[2].x0) and boxes[3].y0 < boxes[2].y0
    assert draw([Row("last", image[:1], skip=2)]).get_size_inches()[0] > LEFT + 3


@pytest.mark.parametrize("cell", ["$\\unheard{x}$", "# a $$\\frac{1}{2} \\unheard{x}$$"])
def test_an_equation_that_cannot_be_shown_leaves_no_page(tmp_path, cell):
    words = ["mine.ipynb", "\\unheard", "\\unheard{x}"]
    text = sentence(NotebookError, written, tmp_path, cell)
    assert all(word in text for word in words), text
    assert not list((tmp_path / "pages").iterdir())


def test_a_page_needs_a_title(tmp_path):
    untitled = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    with pytest.raises(NotebookError, match="does not begin with a heading"):
        page.write(untitled, "a.ipynb", tmp_path / "a.html")
