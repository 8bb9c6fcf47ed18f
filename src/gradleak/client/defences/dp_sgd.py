"""DP-SGD: gradients of single images are clipped, and noise is added to their sum."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from gradleak.client.defences.base import Arrays, Client, Defence
from gradleak.client.defences.clipping import Clipping
from gradleak.errors import ConfigError


class DpSgd(Defence):
    """Shares (1/K) (Σ_k g_k · min(1, C / ‖g_k‖) + N(0, σ²C²)) of K images (Abadi et al. 2016).

    g_k is the gradient of image k's loss over all parameters. Opacus computes the same. The ε that
    σ stands for depends on the rounds and the sampling (`gradleak.adapters.opacus.epsilon`).
    """

    method: Literal["dp_sgd"] = "dp_sgd"
    norm: PositiveFloat = 1.0  # C
    noise_multiplier: NonNegativeFloat = 1.0  # σ

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`."""
        clipping, size = Clipping(norm=self.norm), len(client.labels)
        total = {name: np.zeros(value.shape) for name, value in gradients.items()}
        for one in _each(client, gradients):
            for name, value in clipping.apply(client, one, seed).items():
                total[name] += value
        generator, scale = np.random.default_rng(seed), self.noise_multiplier * self.norm
        return {
            name: ((value + scale * generator.standard_normal(value.shape)) / size).astype(
                gradients[name].dtype
            )
            for name, value in total.items()
        }


def _each(client: Client, gradients: Arrays) -> Iterator[Arrays]:
    """Gradients of single images, of the parameters that are shared."""
    if len(client.labels) == 1:
        yield gradients
        return
    if client.alone is None:
        raise ConfigError(
            "dp_sgd: it clips the gradient of each image, which is not known here; use clipping "
            "and gaussian_noise."
        )
    for number in range(len(client.labels)):
        found = client.alone(number)
        yield {name: found[name] for name in gradients}
