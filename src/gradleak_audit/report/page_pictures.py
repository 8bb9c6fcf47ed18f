"""Images of an audit as PNG data inside the page."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

# Sides in CSS pixels: of the worst leak, and of images in a strip.
LARGE, SMALL = 224, 96


@dataclass(frozen=True)
class Pictures:
    """Images under attack and their reconstructions; `ValueError` if shapes do not fit."""

    originals: np.ndarray  # (n, C, H, W) in [0, 1]
    # By attack id and image number: the best reconstruction (C, H, W) without any change, clipped
    # to [0, 1]; that of the run with the largest rank.
    answers: Mapping[str, Mapping[int, np.ndarray]]

    def __post_init__(self) -> None:
        if self.originals.ndim != 4 or not np.isfinite(self.originals).all():
            raise ValueError(f"originals: {self.originals.shape} is no (n, C, H, W) of numbers")
        count, *shape = self.originals.shape
        for attack, answers in self.answers.items():
            for image, answer in answers.items():
                if image not in range(count):
                    raise ValueError(f"answers.{attack}: there is no image {image}")
                if answer.shape != tuple(shape) or not np.isfinite(answer).all():
                    why = f"{answer.shape} is no {tuple(shape)} of numbers"
                    raise ValueError(f"answers.{attack}.{image}: {why}")


@dataclass(frozen=True)
class Embedded:
    """An image as data URI, with its sides in CSS pixels and whether it is enlarged."""

    uri: str
    width: int
    height: int
    enlarged: bool


def embed(pixels: np.ndarray, side: int) -> Embedded:
    """Encode an image (C, H, W) with its longer side at most `side` CSS pixels.

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
    return Embedded(f"data:image/png;base64,{data}", width, height, longest <= side)
