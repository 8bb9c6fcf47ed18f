"""Base of batched gradients: device, precision, parameter names."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np
import torch
from torch import Tensor

Arrays = Mapping[str, np.ndarray]


class Placed:
    """Base of gradients in one precision on one device, for the parameters in `names`."""

    device: torch.device
    dtype: torch.dtype
    names: tuple[str, ...]
    _weights: dict[str, Tensor]

    def _with(self, weights: dict[str, Tensor]) -> Self:
        """Return the same network under other weights."""
        out = copy(self)
        out._weights = weights
        return out

    def tensor(self, value: np.ndarray | Tensor) -> Tensor:
        """Return `value` on this object's device and in its precision."""
        return torch.as_tensor(value).to(device=self.device, dtype=self.dtype)

    def targets(self, members: Sequence[Arrays]) -> list[Tensor]:
        """Stack shared gradients of M members in the order of this object's, (M, ...) each."""
        return [self.tensor(np.stack([member[name] for member in members])) for name in self.names]
