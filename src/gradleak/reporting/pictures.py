"""Pictures inside a page: figures as WebP, as large as its size allows, and small images as PNG."""

import base64
import io
from collections.abc import Iterable
from math import floor, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
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


class Thumbnail(NamedTuple):
    """A small image as data URI, with its sides in CSS pixels and whether it is enlarged."""

    uri: str
    width: int
    height: int
    enlarged: bool


def thumbnail(pixels: np.ndarray, side: int) -> Thumbnail:
    """Encode an image (C, H, W) in [0, 1] with its longer side at most `side` CSS pixels.

    The browser enlarges small ones by a whole factor, which keeps pixels sharp and files small.
    """
    if len(pixels) not in (1, 3):
        pixels = pixels.mean(axis=0, keepdims=True)
    values = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    grey = len(values) == 1
    picture = Image.fromarray(values[0] if grey else values.transpose(1, 2, 0).copy())
    longest = max(picture.size)
    if longest > side:
        width, height = (max(1, round(length * side / longest)) for length in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    width, height = (length * max(1, side // longest) for length in picture.size)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return Thumbnail(f"data:image/png;base64,{data}", width, height, longest <= side)


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
