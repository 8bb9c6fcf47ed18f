"""Reconstructions made from other reconstructions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat

from gradleak.attacks.base import Entry
from gradleak.settings.fields import Identifier, Identifiers

if TYPE_CHECKING:
    from gradleak.attacks.runner import Results

# Fields copied from the reconstruction that a new one is made from.
KEPT = ("model", "seed", "batch", "status", "reason", "stop")
Images = dict[str, np.ndarray]
Files = Sequence[tuple[Images, list[dict[str, Any]]]]


class Postprocess(Entry, ABC):
    """A reconstruction made from those of other attacks."""

    postprocesses = True

    def make(self, paths: Sequence[str]) -> Results:
        """Make reconstructions from the files of the attacks named by `of`, in that order."""
        from gradleak.attacks import reconstructions, runner

        files = [reconstructions.read(path) for path in paths]
        out, begin = runner.Results({}, [], []), time.perf_counter()
        for record in self._each(files, out.images):
            now = time.perf_counter()
            out.seconds.append(now - begin)
            out.runs.append(record | {"label": None, "evaluations": 0, "loss": None})
            begin = now
        return out

    @abstractmethod
    def _each(self, files: Files, found: Images) -> Iterator[dict[str, Any]]:
        """Put each reconstruction into `found` and yield its record."""


class TotalVariation(Postprocess):
    """Denoising of another attack's reconstruction; those without an image keep their reason."""

    method: Literal["total_variation"] = "total_variation"
    of: Identifier
    weight: PositiveFloat

    def _each(self, files: Files, found: Images) -> Iterator[dict[str, Any]]:
        ((images, records),) = files
        found |= {k: np.full_like(v, np.nan) for k, v in images.items() if k.endswith("/images")}
        for record in records:
            key = f"{record['model']}/images"
            place = (record["seed"], record["batch"], record["answer"])
            if record["status"] == "ok":
                for number, image in enumerate(images[key][place]):
                    found[key][(*place, number)] = total_variation(image, self.weight)
            yield {key: record[key] for key in (*KEPT, "answer", "kind") if key in record}


class HybridGap(Postprocess):
    """H-GAP: for each image the reconstruction with the least salt-and-pepper noise.

    The noise is ||x − m(x)|| with m the 3x3 average (R-GAP section 5). Failed attacks are ignored;
    where all failed, the run failed. Runs missing from one of the files, of the same gradients, are
    left out.
    """

    method: Literal["h_gap"] = "h_gap"
    of: Annotated[Identifiers, Field(min_length=2)]

    def _each(self, files: Files, found: Images) -> Iterator[dict[str, Any]]:
        choices = [
            {(r["model"], r["seed"], r["batch"]): r for r in records if r["answer"] == 0}
            for _, records in files
        ]
        for place, record in choices[0].items():
            if not all(place in other for other in choices[1:]):
                continue
            model, seed, batch = place
            key = f"{model}/images"
            if key not in found:
                sizes = [images[key].shape for images, _ in files]
                most = max(size[3] for size in sizes)
                found[key] = np.full((*sizes[0][:2], 1, most, *sizes[0][4:]), np.nan)
            least = np.inf
            for (images, _), records in zip(files, choices, strict=True):
                if records[place]["status"] != "ok":
                    continue
                image = images[key][seed, batch, 0]
                image = image[np.isfinite(image).all(axis=(1, 2, 3))]
                if (noise := salt_and_pepper(image)) < least:
                    record, least = records[place], noise
                    found[key][seed, batch, 0] = np.nan
                    found[key][seed, batch, 0, : len(image)] = image
            kept = {key: record[key] for key in KEPT if key in record}
            yield {**kept, "answer": 0, "kind": "answer"}


def total_variation(image: np.ndarray, weight: float) -> np.ndarray:
    """Denoise an image (C, H, W) by total variation, channel by channel (Chambolle, scikit-image).

    `weight` is the strength, on the scale of the image's values; the paper takes 0.15.
    """
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(image, weight=weight, channel_axis=0)


def salt_and_pepper(images: np.ndarray) -> float:
    """Return ||x − m(x)|| of images (K, C, H, W), m the 3x3 average (R-GAP section 5).

    It distinguishes noisy from smooth reconstructions without the original. The average repeats
    edges and is taken per channel.
    """
    from scipy.ndimage import uniform_filter

    smooth = uniform_filter(images, size=(1, 1, 3, 3), mode="nearest")
    return float(np.linalg.norm(images - smooth))
