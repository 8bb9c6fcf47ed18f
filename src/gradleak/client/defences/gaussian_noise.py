"""Gaussian noise on the gradient (R-GAP appendix G)."""

from typing import Literal

import numpy as np
from pydantic import PositiveFloat

from gradleak.client.defences.base import Arrays, Client, Defence


class GaussianNoise(Defence):
    """Adds independent N(0, s²) to every value of every gradient tensor.

    A seed gives the same standard normal noise at every level, so that levels differ only in scale.
    """

    method: Literal["gaussian_noise"] = "gaussian_noise"
    level: PositiveFloat  # s relative to the tensor's own standard deviation, or s itself
    # Which of the two. A tensor of one value has no deviation; its absolute value is used instead.
    relative: bool = True

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`."""
        generator = np.random.default_rng(seed)
        out = {}
        for name, value in gradients.items():
            scale = 1.0
            if self.relative:
                scale = float(np.std(value)) if value.size > 1 else float(np.abs(value).max())
            noise = self.level * scale * generator.standard_normal(value.shape)
            out[name] = (value + noise).astype(value.dtype)
        return out
