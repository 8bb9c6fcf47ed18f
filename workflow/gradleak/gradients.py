"""Gradient capture: what a client shares in one step of federated learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.errors import ConfigError, NumericsError
from gradleak.models.build import ChainModule, load
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, runs
from gradleak.targets import TargetSet

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def pick_device(name: str) -> torch.device:
    """Device for `name` = auto | cpu | cuda | mps; auto takes the first accelerator there is.

    Raises
    ------
    ConfigError
        If the device is not on this machine.
    """
    # Convolutions in TF32 keep 10 bits, and autotuned algorithms differ from run to run.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(key for key, there in available.items() if there))
    if not available.get(name, False):
        raise ConfigError(
            f"device: {name} is not available on this machine; set device: auto or cpu."
        )
    return torch.device(name)


def capture(
    chain: Chain,
    weights: dict[str, np.ndarray],
    image: np.ndarray,
    label: int,
    *,
    precision: str,
    device: torch.device,
) -> dict[str, np.ndarray]:
    """Gradient of the loss with respect to every parameter, for one image.

    J = cross-entropy of the softmax of the last activation's output (COPA section 2), network
    in evaluation mode.

    Parameters
    ----------
    chain, weights
        The network; weights as ``{parameter: array}``, stored in float32.
    image
        (C, H, W) in the range that the network is fed with.
    label
        True class.
    precision
        ``float32`` as clients compute it, or ``float64``.

    Raises
    ------
    NumericsError
        If a gradient holds NaN or infinity, or is zero everywhere.
    """
    if device.type == "mps" and precision == "float64":
        raise ConfigError("precision: float64 does not exist on device: mps; set device: cpu.")
    dtype = DTYPES[precision]
    module: ChainModule = load(chain, weights, dtype).to(device)
    batch = torch.from_numpy(image)[None].to(device=device, dtype=dtype)
    target = torch.tensor([label], device=device)
    loss = nn.functional.cross_entropy(module(batch), target)
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(loss, list(module.parameters()))
    out = {name: g.cpu().numpy() for name, g in zip(names, found, strict=True)}
    check_gradient(chain, out)
    return out


def check_gradient(chain: Chain, gradients: dict[str, np.ndarray]) -> None:
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


def capture_all(
    models: ModelFile, targets: TargetSet, *, seeds: int, precision: str, granted: bool, device: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradients of every chain, seed and target, as tensors and metadata of a gradient file.

    Keys are ``{chain}/{parameter}``, shape (seeds, targets, ...). The label is a tensor
    ``label`` (targets,) only if it is granted. No image is among them.
    """
    chosen = pick_device(device)
    images = len(targets.images)
    for chain in models.chains:
        if targets.images.shape[2:] != chain.input:
            raise ConfigError(
                f"{chain.name} takes images of {list(chain.input)}, but the targets have "
                f"{list(targets.images.shape[2:])}; choose another target set or model."
            )
    slots: dict[str, np.ndarray] = {}
    for chain, seed, batch in runs(models.chains, seeds, images):
        shared = capture(
            chain,
            models.of(chain, seed),
            targets.inputs(batch)[0],
            int(targets.labels[batch, 0]),
            precision=precision,
            device=chosen,
        )
        for name, value in shared.items():
            key = f"{chain.name}/{name}"
            if key not in slots:
                slots[key] = np.empty((seeds, images, *value.shape), value.dtype)
            slots[key][seed, batch] = value
    if granted:
        slots["label"] = targets.labels[:, 0].copy()
    metadata = {
        "loss": "cross-entropy of the softmax of the last activation's output",
        "mode": "evaluation",
        "precision": precision,
        "seeds": seeds,
        "images": images,
        "low": targets.offset,
        "high": 1.0 + targets.offset,
    }
    return slots, metadata
