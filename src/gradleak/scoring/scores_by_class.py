"""Scores of reconstructions given by class: mean images of the classes of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.scoring.metrics.image import CLIPPED, of_paper, psnr

MISSED = "missed"
ABSENT = "absent"
PHANTOM = "phantom"
# Status of a class: whether it is in the batch, and whether the attack found it.
STATUSES = {
    (True, True): "ok",
    (True, False): MISSED,
    (False, True): PHANTOM,
    (False, False): ABSENT,
}


@dataclass(frozen=True)
class ByClass:
    """Compare one reconstruction with a batch's images class by class.

    Each image is compared with the image reconstructed for its class, which is the mean of all
    images of that class if there are several: ``duplicates`` is their number, and
    ``psnr_class_mean`` compares with the true mean image of the class. An image whose class the
    attack did not find has the status ``missed``.

    One more row per class, with the metric ``count``, has the number of images that the attack
    found there. Its status is ``ok`` if the class is in the batch and was found, ``missed`` if it
    was not, ``absent`` if the class is in neither, and ``phantom`` if it is only in the
    reconstruction.
    """

    targets: TargetSet  # the originals
    batch: int
    chain: Chain  # the network, for its number of classes
    record: Mapping[str, Any]  # the reconstruction's record in its file

    def rows(self, found: np.ndarray, case: dict[str, Any]) -> list[dict[str, Any]]:
        """Tidy rows of images `found` (K', C, H, W), one for each class of the record."""
        labels = self.targets.labels[self.batch]
        classes, counts = self.record["classes"], self.record["counts"]
        place = {label: k for k, label in enumerate(classes)}
        true = Counter(int(label) for label in labels)
        means: dict[int, float] = {}
        out = []
        for position, label in enumerate(labels.tolist()):
            image = found[place[label]] if label in place else None
            if image is None and self.record["partial"]:
                continue
            values = self._compared(position, image, case["paper"])
            status = "ok" if image is not None else MISSED
            if label not in means:
                means[label] = self._to_mean(label, image)
            values |= {"psnr_class_mean": means[label], "duplicates": float(true[label])}
            index = int(self.targets.indices[self.batch, position])
            out += [
                self._row(case, label, index, metric, value, status)
                for metric, value in values.items()
            ]
        told = dict(zip(classes, counts, strict=True))
        every = classes if self.record["partial"] else range(self.chain.classes)
        for label in every:
            out.append(self._count(case, label, told.get(label, 0), true.get(label, 0)))
        return out

    def _compared(self, position: int, image: np.ndarray | None, paper: str) -> dict[str, float]:
        """Metrics of one original and the reconstruction of its class."""
        metrics = of_paper(paper)
        if image is None:
            return dict.fromkeys((*metrics, "psnr_scaled"), np.nan)
        original = self.targets.inputs(self.batch, slice(position, position + 1))[0]
        image = image.astype(np.float64)
        pixels = self.targets.pixels
        clipped = (pixels(original), np.clip(pixels(image), 0.0, 1.0))
        original, image = original * self.targets.std, image * self.targets.std
        out = {
            name: metric(*clipped) if name in CLIPPED else metric(original, image)
            for name, metric in metrics.items()
        }
        # Up to scale, to ignore wrong brightness.
        scale = float(np.vdot(image, original) / max(np.vdot(image, image), 1e-30))
        out["psnr_scaled"] = psnr(original, scale * image)
        return out

    def _to_mean(self, label: int, image: np.ndarray | None) -> float:
        """PSNR of the reconstruction of a class against the mean of the class's images."""
        if image is None:
            return np.nan
        places = np.flatnonzero(self.targets.labels[self.batch] == label).tolist()
        parts = (self.targets.inputs(self.batch, slice(k, k + 1))[0] for k in places)
        mean = np.sum(list(parts), axis=0) / len(places)
        return psnr(mean, image.astype(np.float64))

    def _count(self, case: dict[str, Any], label: int, found: int, true: int) -> dict[str, Any]:
        """Row of the metric ``count``."""
        status = STATUSES[true > 0, found > 0]
        return self._row(case, label, -1, "count", float(found), status)

    def _row(
        self,
        case: dict[str, Any],
        label: int,
        index: int,
        metric: str,
        value: float,
        status: str,
    ) -> dict[str, Any]:
        words = self.targets.words.get(label, f"class {label}")
        reasons = {
            MISSED: f"The attack found no image of {words}.",
            ABSENT: f"No image of {words} is in the batch, and the attack found none.",
            PHANTOM: f"The attack found {value:g} images of {words}, but there is none.",
        }
        return {
            **case,
            "model": self.record["model"],
            "seed": self.record["seed"],
            "batch": self.batch,
            "index": index,
            "label": words,
            "metric": metric,
            "value": value,
            "status": status,
            "reason": reasons.get(status, ""),
            "name": self.targets.names[self.batch],
            "answer": self.record["answer"],
            "kind": self.record["kind"],
        }
