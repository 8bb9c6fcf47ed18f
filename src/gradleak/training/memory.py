"""Memory of a batch, checked before hours of training."""

from collections.abc import Callable

import psutil
import torch

# Gradients of kept tensors and workspace of convolutions, relative to the kept bytes.
OVERHEAD = 1.5
# Share of the free memory that training may use.
SHARE = 0.9


def bytes_kept(loss: Callable[[], torch.Tensor]) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        kept = loss()
    # The graph keeps the storages alive, so that no address is reused.
    del kept
    return sum(sizes.values())


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def largest_batch(per_image: float, fixed: float, device: torch.device) -> int:
    """Batch that fits in free memory for training, a power of two up to 2^20; 0 if none does.

    `per_image` are the bytes that an image keeps for the backward pass, `fixed` those of any batch.
    """
    most = (SHARE * free_bytes(device) - fixed) / (OVERHEAD * max(per_image, 1.0))
    return 0 if most < 1 else 2 ** min(20, int(most).bit_length() - 1)
