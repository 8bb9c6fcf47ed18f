"""Percentile privacy, as NVFLARE's filter of that name applies it to updates."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from gradleak.client.defences.base import Arrays, Client, Defence


class PercentilePrivacy(Defence):
    """Shares the largest values of an update alone, cut off at a size (Shokri, Shmatikov 2015).

    Of d = rate · gradient / steps, the change of the weights in a local step, values below the
    `percentile` of |d| over all parameters become 0, and the others are clipped to [−γ, γ]. This
    gives no differential privacy.
    """

    method: Literal["percentile_privacy"] = "percentile_privacy"
    percentile: Annotated[float, Field(ge=0, le=100)] = 10.0  # of |d|; NVFLARE's default
    gamma: PositiveFloat = 0.01  # largest |d| that is shared; NVFLARE's default
    rate: PositiveFloat = 1.0  # learning rate; 1 if what is shared is the update itself
    steps: PositiveInt = 1  # local steps that were added up in what is shared

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`; deterministic, `seed` is ignored."""
        scale = self.rate / self.steps
        cutoff = np.percentile(
            np.concatenate([np.abs(value).ravel() for value in gradients.values()]), self.percentile
        )
        bound = self.gamma / scale
        out = {}
        for name, value in gradients.items():
            # The filter leaves single numbers as they are.
            if value.ndim == 0:
                out[name] = value.copy()
                continue
            shared = np.where(np.abs(value) < cutoff, 0.0, value)
            out[name] = np.clip(shared, -bound, bound).astype(value.dtype)
        return out
