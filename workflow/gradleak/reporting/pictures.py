"""Figures as WebP inside the page, as large as the page's size allows."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, sqrt
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from gradleak.errors import ArtifactError

# Bytes of all pictures together, three quarters of what base64 makes of them. With the text of a
# run at laptop scale, under 3 MB, the page stays below 15 MB.
BUDGET = 9_000_000
# Width below which letters of a figure as wide as a page cannot be read; there it ends.
LEAST = 700
# Of a picture that would be too large as it is: nothing of it is seen to be lost.
QUALITY = 90
# Each try to make a picture narrower takes this share of what should suffice.
SHRINK = 0.97


@dataclass(frozen=True)
class Embedded:
    """A picture as a data address, with its sides in pixels."""

    uri: str
    width: int
    height: int


def embed(paths: Iterable[Path], budget: int = BUDGET) -> dict[Path, Embedded]:
    """Read PNGs, and where they do not fit together, make the largest smaller.

    WebP keeps every pixel in about half of PNG's bytes. What is too large even so loses a little of
    each pixel; where that is not enough it gets narrower too.

    Parameters
    ----------
    paths
        Files of figures, as PNG.
    budget
        Bytes that all may take together; pictures are not made narrower than `LEAST` pixels.

    Raises
    ------
    ArtifactError
        If a file is no picture or cannot be read.
    """
    stored = {path: _read(path) for path in paths}
    most = allowed([len(content) for content in stored.values()], budget)
    return {path: _embedded(_within(content, most)) for path, content in stored.items()}


def allowed(sizes: list[int], budget: int) -> int:
    """Largest size that, as a limit for each, makes the sum fit the budget.

    Small pictures leave to the others what they do not need.
    """
    left = budget
    ordered = sorted(sizes)
    for place, size in enumerate(ordered):
        share = left // (len(ordered) - place)
        if size > share:
            return share
        left -= size
    return ordered[-1] if ordered else budget


def _read(path: Path) -> bytes:
    """The picture as WebP without loss."""
    try:
        with Image.open(path) as picture:
            return _webp(picture.convert("RGB"), lossless=True)
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise ArtifactError(
            f"{path}: no picture that can be read ({error}); delete it and make it again."
        ) from error


def _within(content: bytes, most: int) -> bytes:
    """The picture, made smaller until its file has at most so many bytes."""
    if len(content) <= most:
        return content
    with Image.open(io.BytesIO(content)) as picture:
        full = picture.convert("RGB")
    content, width = _webp(full, quality=QUALITY), full.width
    while len(content) > most and width > LEAST:
        # Bytes grow about as the number of pixels does.
        width = max(LEAST, floor(width * min(SHRINK, sqrt(most / len(content)))))
        sides = (width, max(1, round(full.height * width / full.width)))
        content = _webp(full.resize(sides, Image.Resampling.LANCZOS), quality=QUALITY)
    return content


def _webp(picture: Image.Image, **how: int) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "WEBP", **how)
    return stream.getvalue()


def _embedded(content: bytes) -> Embedded:
    with Image.open(io.BytesIO(content)) as picture:
        width, height = picture.size
    data = base64.b64encode(content).decode("ascii")
    return Embedded(f"data:image/webp;base64,{data}", width, height)
