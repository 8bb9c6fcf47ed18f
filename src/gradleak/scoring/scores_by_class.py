"""Scores of reconstructions given by class: mean images of the classes of a batch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain
from gradleak.scoring.metrics.image import CLIPPED, of_paper, psnr

Row = dict[str, Any]
MISSED, ABSENT, PHANTOM = "missed", "absent", "phantom"
# Status of a class: whether it is in the batch, and whether the attack found it.
STATUSES = {
    (True, True): "ok",
    (True, False): MISSED,
    (False, True): PHANTOM,
    (False, False): ABSENT,
}


def tidy_row(
    case: Row,
    targets: TargetSet,
    record: Mapping[str, Any],
    batch: int,
    position: int | None,
    **own: Any,
) -> Row:
    """Row of a score file: a metric of the image at `position` of a batch, or of no image."""
    index = -1 if position is None else int(targets.indices[batch, position])
    same = {key: record[key] for key in ("model", "seed", "answer", "kind")}
    return {**case, **same, "batch": batch, "index": index, "name": targets.names[batch], **own}


@dataclass(frozen=True)
class ByClass:
    """Compare one reconstruction with a batch's images class by class.

    Each image is compared with the image reconstructed for its class, the mean of all images of
    that class: ``duplicates`` is their number, and ``psnr_class_mean`` compares with the true mean
    image. An image whose class the attack did not find has the status ``missed``. One more row per
    class, ``count``, has the number of images that the attack found there.
    """

    targets: TargetSet  # the originals
    batch: int
    chain: Chain  # the network, for its number of classes
    record: Mapping[str, Any]  # the reconstruction's record in its file

    def rows(self, found: np.ndarray, case: Row) -> list[Row]:
        """Tidy rows of images `found` (K', C, H, W), one for each class of the record."""
        labels = self.targets.labels[self.batch].tolist()
        classes, true = self.record["classes"], Counter(labels)
        place = {label: k for k, label in enumerate(classes)}
        means: dict[int, float] = {}
        out = []
        for position, label in enumerate(labels):
            image = found[place[label]] if label in place else None
            if image is None and self.record["partial"]:
                continue
            values = self._compared(position, image, case["paper"])
            status = "ok" if image is not None else MISSED
            if label not in means:
                means[label] = self._to_mean(label, image)
            values |= {"psnr_class_mean": means[label], "duplicates": float(true[label])}
            out += [
                self._row(case, label, position, metric, value, status)
                for metric, value in values.items()
            ]
        told = dict(zip(classes, self.record["counts"], strict=True))
        for label in classes if self.record["partial"] else range(self.chain.classes):
            found_here = told.get(label, 0)
            status = STATUSES[true[label] > 0, found_here > 0]
            out.append(self._row(case, label, None, "count", float(found_here), status))
        return out

    def _compared(self, position: int, image: np.ndarray | None, paper: str) -> dict[str, float]:
        metrics = of_paper(paper)
        if image is None:
            return dict.fromkeys((*metrics, "psnr_scaled"), np.nan)
        original = self.targets.inputs(self.batch, slice(position, position + 1))[0]
        image = image.astype(np.float64)
        pixels = self.targets.pixels
        clipped = (pixels(original), np.clip(pixels(image), 0.0, 1.0))
        pair = original, image = original * self.targets.std, image * self.targets.std
        out = {n: m(*clipped) if n in CLIPPED else m(*pair) for n, m in metrics.items()}
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

    def _row(
        self, case: Row, label: int, position: int | None, metric: str, value: float, status: str
    ) -> Row:
        words = self.targets.words.get(label, f"class {label}")
        reasons = {
            MISSED: f"The attack found no image of {words}.",
            ABSENT: f"No image of {words} is in the batch, and the attack found none.",
            PHANTOM: f"The attack found {value:g} images of {words}, but there is none.",
        }
        own = {"label": words, "metric": metric, "value": value, "status": status}
        own["reason"] = reasons.get(status, "")
        return tidy_row(case, self.targets, self.record, self.batch, position, **own)
