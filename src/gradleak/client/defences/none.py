"""No defence: the gradient is shared as it is."""

from typing import Literal

import numpy as np

from gradleak.client.defences.base import Arrays, Client, Defence


class NoDefence(Defence):
    """Shares the gradient unchanged."""

    method: Literal["none"] = "none"

    def apply(self, client: Client, gradients: Arrays, seed: int) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`."""
        return dict(gradients)
