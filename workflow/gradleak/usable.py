"""What no attack can use. Apart from the capture, so that closed forms start without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradleak.errors import NumericsError
from gradleak.models.chain import Chain


def check_gradient(chain: Chain, gradients: Mapping[str, np.ndarray]) -> None:
    """Refuse a gradient that no attack can use.

    Raises
    ------
    NumericsError
        If a tensor holds NaN or infinity, or all of them are zero.
    """
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
