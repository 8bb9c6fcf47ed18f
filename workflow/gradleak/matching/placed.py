"""What all gradients of many members have in common: a device, a precision, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

Arrays = Mapping[str, np.ndarray]


class Placed:
    """Numbers of one device and precision, for the parameters in `names`."""

    device: torch.device
    dtype: torch.dtype
    names: tuple[str, ...]

    def tensor(self, value: np.ndarray | torch.Tensor) -> torch.Tensor:
        """`value` on this object's device and in its precision."""
        return torch.as_tensor(value).to(device=self.device, dtype=self.dtype)

    def targets(self, members: Sequence[Arrays]) -> list[torch.Tensor]:
        """Shared gradients of M members as a call returns this object's own, (M, ...) each."""
        return [self.tensor(np.stack([member[name] for member in members])) for name in self.names]
