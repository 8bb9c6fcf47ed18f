"""No defence: the gradient is shared as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from gradleak.client.defences.base import Client, Defence


class NoDefence(Defence):
    """Shares the gradient unchanged."""

    method: Literal["none"] = "none"

    def apply(
        self, client: Client, gradients: Mapping[str, np.ndarray], seed: int
    ) -> dict[str, np.ndarray]:
        """See `gradleak.client.defences.base.Defence`."""
        return dict(gradients)
