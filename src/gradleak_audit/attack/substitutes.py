"""Operations that PyTorch differentiates once alone, and what attackers run in their place."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from gradleak.attacks.optimization.engine.module_gradients import Twice
from gradleak.reading import gradients

# What `ModuleGradients.running` runs instead, and the beginnings of the operation's names in ATen.
FUSED = tuple(f"_scaled_dot_product_{kind}" for kind in ("flash", "efficient", "cudnn", "fused"))
SUBSTITUTES = {
    "hardsigmoid": ("relu6(x + 3) / 6", ("hardsigmoid",)),
    "fused attention": ("softmax(QKᵀ / √d) V in single steps", FUSED),
    "cuDNN's recurrent layers": ("PyTorch's own", ("_cudnn_rnn",)),
}

# Largest difference of gradients, relative to their norm, that rounding explains.
AGREE = 1e-4


class _Seen(TorchDispatchMode):
    """Keeps the names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def substituted(
    module: nn.Module, images: np.ndarray, labels: np.ndarray, loss: str, mode: str
) -> str:
    """Sentences on operations of a client's step that attackers replace; empty without any.

    The client's gradient for inputs (K, C, H, W) is computed both ways, and compared.
    """

    def run() -> dict[str, np.ndarray]:
        # The same dropout each time.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return gradients.gradient(module, images, labels, loss, mode)

    with _Seen() as seen:
        client = run()
    found = [
        f"{name} as {own}"
        for name, (own, starts) in SUBSTITUTES.items()
        if any(seen_name.startswith(starts) for seen_name in seen.names)
    ]
    if not found:
        return ""
    with sdpa_kernel(SDPBackend.MATH), Twice():
        attacker = run()
    size, apart = (
        np.sqrt(sum(float(np.sum(value.astype(np.float64) ** 2)) for value in values))
        for values in (client.values(), (attacker[name] - client[name] for name in client))
    )
    share = apart / max(size, 1e-300)
    return (
        f"Attacks ran {', '.join(found)}, since PyTorch has no second derivative of "
        f"{'it' if len(found) == 1 else 'them'}; the client ran the network as it is. First "
        f"derivatives {'agree' if share < AGREE else 'do NOT agree'}: computed both ways, the "
        f"gradient of the first batch differs by {share:.1g} of its norm."
    )
