"""The style of figures: text stays text, colours are told apart, words can be read in print."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from skimage.color import rgb2lab

from conftest import ROOT
from gradleak.plotting import style

FOLDER = Path(style.__file__).parent
MODULES = [
    *sorted(path for path in FOLDER.glob("*.py") if path.name != "style.py"),
    *sorted((ROOT / "papers").glob("*/figures/*.py")),
]
INCH, MM = 72, 25.4
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
    found = {colour: lab(colour, seen) for colour in style.CYCLE}
    for one, other in combinations(style.CYCLE, 2):
        # A difference of 2.3 is just seen side by side.
        assert np.linalg.norm(found[one] - found[other]) > 15, (one, other)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "-".join(path.parts[-3:]))
def test_colours_and_sizes_of_words_come_from_the_style(path):
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"\"#[0-9A-Fa-f]{3,8}\"", text), "name the colour in style.py"
    assert not re.findall(
        r"\"C\d\"|\"(?:red|green|blue|orange|gray|grey|tab:\w+)\"", text.replace('cmap="gray"', "")
    )
    sizes = [float(size) for size in re.findall(r"(?:fontsize|labelsize)=([\d.]+)", text)]
    sizes += [float(size) for size in re.findall(r"^SMALL = ([\d.]+)", text, re.MULTILINE)]
    assert all(size >= style.LEAST for size in sizes)


def assert_print(path):
    """No letter is a drawing, and the page is as wide as a column or a page of text."""
    content = path.read_bytes()
    assert b"/Type3" not in content and b"CreationDate" not in content, path
    assert content.count(b"/FontFile2") >= 1, path
    (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", content)
    assert float(width) / INCH in (pytest.approx(style.COLUMN), pytest.approx(style.PAGE)), path


def test_widths_fit_a_column_and_a_page():
    assert pytest.approx(85, abs=2) == style.COLUMN * MM
    assert pytest.approx(180, abs=3) == style.PAGE * MM
