"""No defence: the gradient is shared as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradleak.defences.base import Client


@dataclass(frozen=True)
class NoDefence:
    """Shares the gradient unchanged."""

    def apply(
        self, client: Client, gradients: Mapping[str, np.ndarray], seed: int
    ) -> dict[str, np.ndarray]:
        """See `gradleak.defences.base.Defence`."""
        return dict(gradients)
