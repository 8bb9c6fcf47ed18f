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

# Total bytes of pictures, three quarters of their size in base64. With the text of a laptop-scale
# run, under 3 MB, the page stays below 15 MB.
BUDGET = 9_000_000
# Minimum width, below which text in a page-wide figure is illegible.
LEAST = 700
# WebP quality for pictures that are too large when lossless; no visible loss.
QUALITY = 90
# Safety factor on each reduction of the width.
SHRINK = 0.97


@dataclass(frozen=True)
class Embedded:
    """A picture as a data URI, with its sides in pixels."""

    uri: str
    width: int
    height: int


def embed(paths: Iterable[Path], budget: int = BUDGET) -> dict[Path, Embedded]:
    """Read PNG files, and reduce the largest to fit the budget.

    Lossless WebP takes about half of PNG's bytes. Pictures that are still too large are encoded
    with loss, and if necessary made narrower, but not below `LEAST` pixels. `budget` is the total
    in bytes.

    Raises `ArtifactError` if a file is not a picture or cannot be read.
    """
    stored = {path: _read(path) for path in paths}
    most = allowed([len(content) for content in stored.values()], budget)
    return {path: _embedded(_within(content, most)) for path, content in stored.items()}


def allowed(sizes: list[int], budget: int) -> int:
    """Largest size limit per picture for which the total fits the budget.

    Small pictures leave their unused share to the others.
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
    try:
        with Image.open(path) as picture:
            return _webp(picture.convert("RGB"), lossless=True)
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise ArtifactError(
            f"{path}: no picture that can be read ({error}); delete it and make it again."
        ) from error


def _within(content: bytes, most: int) -> bytes:
    """Reduce a picture until its file has at most `most` bytes."""
    if len(content) <= most:
        return content
    with Image.open(io.BytesIO(content)) as picture:
        full = picture.convert("RGB")
    content, width = _webp(full, quality=QUALITY), full.width
    while len(content) > most and width > LEAST:
        # Bytes are roughly proportional to pixels.
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
