"""Initial images of an optimiser: another attack's reconstruction, or the attacker's images."""

import numpy as np

from gradleak.attacks import reconstructions
from gradleak.data.targets import TargetSet
from gradleak.errors import NumericsError


class FromReconstruction:
    """Another attack's reconstructions in `path`: ``answer`` (its own choice) or ``twin``."""

    def __init__(self, path: str, kind: str = "answer") -> None:
        self._images, runs = reconstructions.read(path)
        self._places = {
            (one["model"], one["seed"], one["batch"]): one["answer"]
            for one in runs
            if one["kind"] == kind or (kind == "answer" and one["answer"] == 0)
        }

    def of(self, chain: str, seed: int, batch: int, classes: np.ndarray | None) -> np.ndarray:
        """Return an initial image (1, K', C, H, W) of one run, NaN where there is none."""
        images = self._images[f"{chain}/images"][seed, batch]
        answer = self._places.get((chain, seed, batch))
        if answer is None:
            return np.full_like(images[:1], np.nan)
        found: np.ndarray = images[answer][None]
        # An attack that treats a batch as one image fills only the first place.
        filled = np.isfinite(found).all(axis=(0, 2, 3, 4))
        return found[:, filled] if filled.any() else found


class OfOneClass:
    """The attacker's own labelled images, `own`, of the class of the image under attack."""

    def __init__(self, own: TargetSet) -> None:
        self._images = np.stack([own.inputs(i) for i in range(len(own.images))])[:, 0]
        self._labels = own.labels[:, 0]

    def of(self, chain: str, seed: int, batch: int, classes: np.ndarray | None) -> np.ndarray:
        """Return initial images (S, 1, C, H, W) of one run: the attacker's that have the class.

        Raises `NumericsError` if the class was not granted, or none of these images has it.
        """
        if classes is None:
            raise NumericsError(
                "A start of the same class needs the class, which was not granted; set label: "
                "granted, or choose another start."
            )
        same = self._images[self._labels == classes[0]]
        if not len(same):
            raise NumericsError(
                f"No image of one's own has the class {int(classes[0])}; raise the count of "
                "own_images, or choose another start."
            )
        return same[:, None]


# Sources of initial images.
Starts = FromReconstruction | OfOneClass
