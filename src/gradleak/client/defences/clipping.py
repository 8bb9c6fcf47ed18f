"""Gradient clipping, as differentially private training applies before its noise."""

from typing import Literal

import numpy as np
from pydantic import PositiveFloat

from gradleak.client.defences.base import Arrays, Client, Defence


class Clipping(Defence):
    """Scales the whole gradient down to a norm, g · min(1, norm / ||g||)."""

    method: Literal["clipping"] = "clipping"
    norm: PositiveFloat = 1.0  # largest ||g|| over all parameters that stays unchanged

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`; deterministic, `seed` is ignored."""
        squares = (float(np.vdot(value, value)) for value in gradients.values())
        size = float(np.sqrt(sum(squares)))
        scale = min(1.0, self.norm / size) if size else 1.0
        return {name: (value * scale).astype(value.dtype) for name, value in gradients.items()}
