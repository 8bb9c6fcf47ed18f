"""Gradient capture: what a client shares in one step of federated learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.defences.base import Defence
from gradleak.errors import ConfigError, NumericsError
from gradleak.losses import BINARY
from gradleak.models.build import ChainModule, load
from gradleak.models.chain import Chain
from gradleak.models.files import ModelFile, runs
from gradleak.models.passes import margin_label
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
    images: np.ndarray,
    labels: np.ndarray,
    *,
    precision: str,
    device: torch.device,
    loss: str = "cross_entropy",
) -> dict[str, np.ndarray]:
    """Gradient of the mean loss over a batch with respect to every parameter.

    The loss is taken of the last activation's output, network in evaluation mode: cross-entropy
    of its softmax (COPA section 2), or ℓ(μ) of μ = y·output (R-GAP eq. 4, 5).

    Parameters
    ----------
    chain, weights
        The network; weights as ``{parameter: array}``, stored in float32.
    images
        (K, C, H, W) in the range that the network is fed with.
    labels
        True classes (K,); −1 or 1 for a loss of a margin.
    precision
        ``float32`` as clients compute it, or ``float64``.
    device
        Where it is computed.
    loss
        One of `gradleak.losses.LOSSES`.

    Raises
    ------
    NumericsError
        If a gradient holds NaN or infinity, or is zero everywhere.
    """
    if device.type == "mps" and precision == "float64":
        raise ConfigError("precision: float64 does not exist on device: mps; set device: cpu.")
    dtype = DTYPES[precision]
    module: ChainModule = load(chain, weights, dtype).to(device)
    batch = torch.from_numpy(images).to(device=device, dtype=dtype)
    value = mean_loss(loss, module(batch), torch.from_numpy(labels).to(device))
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(value, list(module.parameters()))
    out = {name: g.cpu().numpy() for name, g in zip(names, found, strict=True)}
    check_gradient(chain, out)
    return out


def mean_loss(loss: str, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean of a loss over outputs (K, m) and labels (K,)."""
    if loss == "cross_entropy":
        return nn.functional.cross_entropy(output, labels)
    margin = labels.to(output.dtype) * output[:, 0]
    if loss == "logistic":
        return nn.functional.softplus(-margin).mean()
    if loss == "exponential":
        return torch.exp(-margin).mean()
    return torch.clamp(1.0 - margin, min=0.0).mean()


def signs(
    chain: Chain, weights: dict[str, np.ndarray], images: np.ndarray, labels: str
) -> np.ndarray:
    """Labels y (K,) of a loss of a margin: the network's own sign (``same``) or not (``opposite``).

    ``opposite`` leaves μ < 0, where the gradient tells it uniquely; ``same`` leaves μ > 0.
    """
    return np.array([margin_label(chain, weights, image, labels) for image in images])


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
    models: ModelFile,
    targets: TargetSet,
    *,
    seeds: int,
    precision: str,
    granted: bool,
    device: str,
    loss: str = "cross_entropy",
    labels: str = "dataset",
    defence: Defence | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradients of every chain, seed and batch, as tensors and metadata of a gradient file.

    Keys are ``{chain}/{parameter}``, shape (seeds, batches, ...). If labels are granted,
    ``{chain}/label`` (seeds, batches, K) are those of the loss and ``{chain}/class`` those of the
    data set. No image is among them. A gradient that no attack can use is stored as NaN, and
    ``unusable`` in the metadata says why: records of chain, seed, batch and reason.

    Raises
    ------
    NumericsError
        If no gradient at all can be used.
    """
    chosen = pick_device(device)
    batches = len(targets.images)
    for chain in models.chains:
        if targets.images.shape[2:] != chain.input:
            raise ConfigError(
                f"{chain.name} takes images of {list(chain.input)}, but the targets have "
                f"{list(targets.images.shape[2:])}; choose another target set or model."
            )
    slots: dict[str, np.ndarray] = {}
    unusable: list[dict[str, Any]] = []
    for chain, seed, batch in runs(models.chains, seeds, batches):
        weights, images = models.of(chain, seed), targets.inputs(batch)
        true = targets.labels[batch]
        if loss in BINARY:
            true = signs(chain, weights, images, labels)
        try:
            shared = capture(
                chain, weights, images, true, precision=precision, device=chosen, loss=loss
            )
            if defence is not None:
                shared = defence.apply(chain, shared, noise_seed(seed, batch))
        except NumericsError as error:
            shared = {name: np.full(w.shape, np.nan, precision) for name, w in weights.items()}
            unusable.append(
                {"chain": chain.name, "seed": seed, "batch": batch, "reason": str(error)}
            )
        if granted:
            shared |= {"label": true, "class": targets.labels[batch]}
        for name, value in shared.items():
            key = f"{chain.name}/{name}"
            if key not in slots:
                slots[key] = np.empty((seeds, batches, *value.shape), value.dtype)
            slots[key][seed, batch] = value
    if unusable and len(unusable) == len(models.chains) * seeds * batches:
        raise NumericsError(
            f"None of the {len(unusable)} gradients can be used; the first: {unusable[0]['reason']}"
        )
    metadata = {
        "unusable": unusable,
        "loss": loss,
        "labels": labels,
        "mode": "evaluation",
        "precision": precision,
        "seeds": seeds,
        "images": batches,
        "batch": targets.images.shape[1],
        "low": targets.offset,
        "high": 1.0 + targets.offset,
    }
    return slots, metadata


def noise_seed(seed: int, batch: int) -> int:
    """Seed of a defence's randomness: another for each draw of weights and each batch."""
    return 7_368_787 + 100_003 * seed + batch
