"""Local differential privacy of an update, as Flower's mod of that name applies it."""

from math import log, sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from gradleak.client.defences.base import Arrays, Client, Defence
from gradleak.client.defences.clipping import Clipping
from gradleak.client.defences.gaussian_noise import GaussianNoise


class LocalDp(Defence):
    """Clips the update to a norm, and adds N(0, s²) with s = sensitivity · √(2 ln(1.25/δ)) / ε.

    That is the Gaussian mechanism. A client's neighbour may have any other data, so two clipped
    updates differ by 2 · clipping_norm at most: below this sensitivity, (ε, δ) is not what it says,
    and above ε = 1, the formula gives no guarantee (Dwork and Roth 2014, theorem 3.22).
    """

    method: Literal["local_dp"] = "local_dp"
    clipping_norm: PositiveFloat = 1.0  # largest norm of the update
    sensitivity: NonNegativeFloat = 2.0
    epsilon: PositiveFloat = 1.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    rate: PositiveFloat = 1.0  # learning rate; 1 if what is shared is the update itself

    @property
    def deviation(self) -> float:
        """Standard deviation s of the noise on an update."""
        return self.sensitivity * sqrt(2.0 * log(1.25 / self.delta)) / self.epsilon

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`."""
        clipped = Clipping(norm=self.clipping_norm / self.rate).apply(client, gradients, seed)
        if not self.deviation:
            return clipped
        noise = GaussianNoise(level=self.deviation / self.rate, relative=False)
        return noise.apply(client, clipped, seed)
