"""Whether a batch fits in memory, before hours are spent on finding out."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch

# Gradients of what is kept, and room for convolutions to work in, relative to what is kept.
OVERHEAD = 1.5
# Share of the free memory that a training may take.
SHARE = 0.9


def bytes_kept(loss: Callable[[], torch.Tensor]) -> int:
    """Bytes that a forward pass keeps for the pass back, each storage once."""
    sizes: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        kept = loss()
    # The graph holds the storages, so that no address is used twice.
    del kept
    return sum(sizes.values())


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def largest_batch(per_image: float, fixed: float, device: torch.device) -> int:
    """Images whose training fits in what is free, a power of two up to 2^20; 0 if none does.

    Parameters
    ----------
    per_image
        Bytes that an image keeps for the pass back.
    fixed
        Bytes that are needed whatever the batch.
    device
        Where it trains.
    """
    most = (SHARE * free_bytes(device) - fixed) / (OVERHEAD * max(per_image, 1.0))
    return 0 if most < 1 else 2 ** min(20, int(most).bit_length() - 1)
