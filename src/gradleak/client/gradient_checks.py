"""Checks for unusable gradients; without PyTorch, so that closed-form attacks start quickly."""

from collections.abc import Mapping

import numpy as np

from gradleak.errors import NumericsError
from gradleak.models.chain import Chain


def check_gradient(chain: Chain, gradients: Mapping[str, np.ndarray]) -> None:
    """Raise `NumericsError` if a gradient holds NaN or infinity, or is zero everywhere."""
    for name, value in gradients.items():
        if not np.all(np.isfinite(value)):
            raise NumericsError(
                f"The gradient of {chain.name}'s {name} holds NaN or infinity; check the images "
                "and weights that it was taken from."
            )
    if not any(np.any(value) for value in gradients.values()):
        raise NumericsError(
            f"The gradient of {chain.name} is zero everywhere, so nothing can be reconstructed; "
            "use weights that the image is not yet fitted by."
        )
