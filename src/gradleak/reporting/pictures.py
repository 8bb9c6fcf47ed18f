"""Figures as WebP inside the page, as large as the page's size allows."""

import base64
import io
from collections.abc import Iterable
from math import floor, sqrt
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from gradleak.errors import ArtifactError

# Total bytes of pictures, three quarters of their size in base64. With the text of a laptop-scale
# run, under 3 MB, the page stays below 15 MB.
BUDGET = 9_000_000
LEAST = 700  # minimum width, below which text in a page-wide figure is illegible
QUALITY = 90  # WebP quality for pictures that are too large when lossless; no visible loss
SHRINK = 0.97  # safety factor on each reduction of the width


class Embedded(NamedTuple):
    """A picture as a data URI, with its sides in pixels."""

    uri: str
    width: int
    height: int


def embed(paths: Iterable[Path], budget: int = BUDGET) -> dict[Path, Embedded]:
    """Read PNG files as lossless WebP, and reduce the largest to fit the budget, in bytes.

    They are encoded with loss, and if necessary made narrower, but not below `LEAST` pixels.
    """
    stored = {path: _read(path) for path in paths}
    most = allowed([len(content) for content in stored.values()], budget)
    return {path: _within(content, most) for path, content in stored.items()}


def allowed(sizes: list[int], budget: int) -> int:
    """Largest size per picture for which the total fits: small ones leave the rest to others."""
    left = budget
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        share = left // (len(ordered) - place)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else budget


def _read(path: Path) -> bytes:
    try:
        with Image.open(path) as picture:
            return _webp(picture.convert("RGB"), lossless=True)
    except (OSError, SyntaxError) as error:
        raise ArtifactError(
            f"{path}: no picture that can be read ({error}); delete it and make it again."
        ) from error


def _within(content: bytes, most: int) -> Embedded:
    """Reduce a picture until its file has at most `most` bytes."""
    with Image.open(io.BytesIO(content)) as picture:
        sides, full = picture.size, picture.convert("RGB") if len(content) > most else picture
    if len(content) > most:
        content = _webp(full, quality=QUALITY)
    while len(content) > most and sides[0] > LEAST:
        # Bytes are roughly proportional to pixels.
        width = max(LEAST, floor(sides[0] * min(SHRINK, sqrt(most / len(content)))))
        sides = width, max(1, round(full.height * width / full.width))
        content = _webp(full.resize(sides, Image.Resampling.LANCZOS), quality=QUALITY)
    return Embedded(f"data:image/webp;base64,{base64.b64encode(content).decode()}", *sides)


def _webp(picture: Image.Image, **how: int) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "WEBP", **how)
    return stream.getvalue()
