"""Gradient capture: the gradients that a client shares in one step of federated learning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.client.defences.apply import noise_seed
from gradleak.client.gradient_checks import check_gradient
from gradleak.client.shared_parameters import Private, of_lock, own_lock
from gradleak.data.targets import Images, TargetSet
from gradleak.errors import ConfigError, NumericsError
from gradleak.models.build import (
    ChainModule,
    check_norms,
    fast_layout,
    images_at_once,
    load,
    with_statistics,
    without_statistics,
)
from gradleak.models.chain import Chain
from gradleak.models.dead_channels import drop_silent, live_channels, with_silent
from gradleak.models.files import ModelFile, fingerprint, runs
from gradleak.models.locks import is_key
from gradleak.models.losses import BINARY, LOSSES, RAW
from gradleak.models.numpy_autodiff import margin_label
from gradleak.runtime.progress import progress

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Smallest side of images that are processed with channels last.
LARGE = 64


def pick_device(name: str) -> torch.device:
    """Device for `name` = auto | cpu | cuda | mps; auto takes the first accelerator available.

    Raises `ConfigError` if the device is not on this machine.
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
    weights: Mapping[str, np.ndarray],
    images: Images,
    labels: np.ndarray,
    *,
    precision: str,
    device: torch.device,
    loss: str = "cross_entropy",
    kept: str = "all",
    seed: int = 0,
    mode: str = "training",
    features: torch.Tensor | None = None,
) -> dict[str, np.ndarray]:
    """Gradient of the mean loss over a batch with respect to every parameter.

    The loss is a function of the last activation's output: cross-entropy of its softmax (COPA
    section 2), −output[label] (`gradleak.models.losses.RAW`), or ℓ(μ) of μ = y·output (R-GAP eq. 4,
    5). Large batches are processed in parts, whose gradients are summed.

    Parameters
    ----------
    chain, weights
        The network; weights as ``{parameter: array}``, stored in float32.
    images
        (K, C, H, W) in the network's input range.
    labels
        True classes (K,); −1 or 1 for a margin loss.
    precision
        ``float32`` as clients compute it, or ``float64``.
    device
        Device to compute on.
    loss
        One of `gradleak.models.losses.LOSSES`.
    kept
        ``all`` parameters, or those of the ``classifier`` alone, which needs no backward pass
        through the convolutions.
    seed
        Seed of dropout.
    mode
        ``training``: norms use the batch's statistics, and dropout is active. ``evaluation``:
        norms use their running statistics (mean 0 and variance 1 if untrained).
    features
        Output of `features_of` for these images, if known; for `kept`: ``classifier`` only.

    Raises
    ------
    NumericsError
        If a gradient holds NaN or infinity, or is zero everywhere.
    ConfigError
        If a norm in training mode has a single value in each channel to normalise.
    """
    if mode == "training":
        check_norms(chain, len(images))
    if kept == "classifier" and features is None:
        features = features_of(
            chain, weights, images, precision=precision, device=device, mode=mode
        )
    module = _module(chain, weights, precision, device, mode)
    parameters = {
        name: value
        for name, value in module.named_parameters()
        if kept == "all" or name.startswith("fc")
    }
    module.train(chain.has_dropout and mode == "training")
    truth = torch.from_numpy(labels).to(device)

    def share(part: slice) -> torch.Tensor:
        """Contribution of some of the images to the mean loss."""
        known = (
            module.features(_inputs(chain, images[part], precision, device))
            if features is None
            else features[part]
        )
        value = mean_loss(loss, module.classify(known), truth[part])
        return value if len(known) == len(images) else value * (len(known) / len(images))

    # The seed of dropout must not affect other random numbers.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        parts = _parts(chain, len(images))
        # With known features the rest is too fast for a progress report.
        found = _summed(
            share, list(parameters.values()), _told(parts) if features is None else parts
        )
    out = {
        name: value.contiguous().cpu().numpy()
        for name, value in zip(parameters, found, strict=True)
    }
    check_gradient(chain, out)
    return out


def features_of(
    chain: Chain,
    weights: Mapping[str, np.ndarray],
    images: Images,
    *,
    precision: str,
    device: torch.device,
    mode: str = "training",
) -> torch.Tensor:
    """Output of the convolutions for images (K, C, H, W), flat (K, n); parameters as of `capture`.

    Large batches are processed in the parts of `capture`. Channels that no image in this range can
    activate are left out, since they give 0 (`gradleak.models.dead_channels`).
    """
    parts = _parts(chain, len(images))
    low = min(float(images[part].min()) for part in parts)
    high = max(float(images[part].max()) for part in parts)
    live = live_channels(chain, weights, low, high)
    module = _module(chain, weights, precision, device, mode)
    drop_silent(module, live)
    with torch.no_grad():
        found = torch.cat(
            [
                module.features(_inputs(chain, images[part], precision, device))
                for part in _told(parts)
            ]
        )
    return with_silent(chain, found, live)


def _module(
    chain: Chain,
    weights: Mapping[str, np.ndarray],
    precision: str,
    device: torch.device,
    mode: str,
) -> ChainModule:
    if device.type == "mps" and precision == "float64":
        raise ConfigError("precision: float64 does not exist on device: mps; set device: cpu.")
    held = with_statistics(chain, weights) if mode == "evaluation" else without_statistics(weights)
    module: ChainModule = load(chain, held, DTYPES[precision], copy=False).to(device)
    return module.to(memory_format=_layout(chain))


def _inputs(chain: Chain, images: np.ndarray, precision: str, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(images).to(
        device=device, dtype=DTYPES[precision], memory_format=_layout(chain)
    )


def _layout(chain: Chain) -> torch.memory_format:
    # Measured on two cores: VGG-16 at 224x224 runs forward in 0.7 of the time.
    return fast_layout(chain) if max(chain.input[1:]) >= LARGE else torch.contiguous_format


def _summed(
    share: Callable[[slice], torch.Tensor],
    parameters: list[torch.Tensor],
    parts: Iterable[slice],
) -> list[torch.Tensor]:
    """Gradient of the sum of all parts' shares of a loss."""
    total: list[torch.Tensor] = []
    for part in parts:
        found = torch.autograd.grad(share(part), parameters)
        if total:
            for sum_, more in zip(total, found, strict=True):
                sum_ += more
        else:
            total = list(found)
    return total


def _parts(chain: Chain, size: int) -> list[slice]:
    """Parts of a batch of `size` images that are processed at once."""
    at_once = images_at_once(chain)
    return [slice(first, min(first + at_once, size)) for first in range(0, size, at_once)]


def _told(parts: list[slice]) -> Iterator[slice]:
    """Parts of a batch; progress is reported only if there are several."""
    return progress(parts, "parts of a batch") if len(parts) > 1 else iter(parts)


def mean_loss(loss: str, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean of a loss over outputs (K, m) and labels (K,).

    Raises `ConfigError` if `loss` is not in `gradleak.models.losses.LOSSES`.
    """
    if loss == "cross_entropy":
        return nn.functional.cross_entropy(output, labels)
    if loss == RAW:
        return nn.functional.nll_loss(output, labels)
    margin = labels.to(output.dtype) * output[:, 0]
    if loss == "logistic":
        return nn.functional.softplus(-margin).mean()
    if loss == "exponential":
        return torch.exp(-margin).mean()
    if loss == "hinge":
        return torch.clamp(1.0 - margin, min=0.0).mean()
    raise ConfigError(f"loss: {loss} is not known; choose one of {', '.join(LOSSES)}.")


def signs(
    chain: Chain, weights: dict[str, np.ndarray], images: np.ndarray, labels: str
) -> np.ndarray:
    """Labels y (K,) of a margin loss: the sign of the network's output (``same``) or its opposite.

    ``opposite`` gives μ < 0, where the gradient determines it uniquely; ``same`` gives μ > 0.
    """
    return np.array([margin_label(chain, weights, image, labels) for image in images])


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
    kept: str = "all",
    mode: str = "training",
    client: Private | None = None,
    lock: str = "withheld",
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Gradients of every chain, seed and batch, as tensors and metadata of a gradient file.

    Keys are ``{chain}/{parameter}``, shape (seeds, batches, ...). If labels are granted,
    ``{chain}/label`` (seeds, batches, K) are those of the loss and ``{chain}/class`` those of the
    data set. Images are not included. Locked networks run with the key and lock weights of
    `client`; `lock` selects what is shared of these (`gradleak.client.shared_parameters`). A
    gradient that no attack can use is stored as NaN, and ``unusable`` in the metadata lists chain,
    seed, batch and reason. ``fingerprints`` identify the weights of each gradient.

    Raises `NumericsError` if no gradient at all can be used.
    """
    chosen, batches = pick_device(device), len(targets.images)
    _check_sizes(models, targets)
    slots: dict[str, np.ndarray] = {}
    unusable: list[dict[str, Any]] = []
    known = _Features(targets, precision, chosen, mode) if kept == "classifier" else None
    for chain, seed, batch in progress(list(runs(models.chains, seeds, batches)), "gradients"):
        weights, true = models.of(chain, seed), targets.labels[batch]
        own = own_lock(chain, seed, client)
        weights |= own
        if loss in BINARY:
            true = signs(chain, weights, targets.inputs(batch), labels)
        try:
            shared = capture(
                chain,
                weights,
                targets.batch(batch),
                true,
                precision=precision,
                device=chosen,
                loss=loss,
                kept=kept,
                seed=noise_seed(seed, batch),
                mode=mode,
                features=known.of(chain, seed, weights, batch) if known else None,
            )
        except NumericsError as error:
            shared = _no_gradient(weights, precision, kept)
            unusable.append(
                {"chain": chain.name, "seed": seed, "batch": batch, "reason": str(error)}
            )
        shared = of_lock(shared, own, lock)
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
        **_facts(models, targets, seeds, mode),
        "unusable": unusable,
        "loss": loss,
        "labels": labels,
        "precision": precision,
        "lock": lock,
    }
    return slots, metadata


class _Features:
    """Features of batches, computed once if batches share their images."""

    def __init__(self, targets: TargetSet, precision: str, device: torch.device, mode: str) -> None:
        self._targets, self._precision, self._device = targets, precision, device
        self._mode = mode
        self._network: tuple[str, int] | None = None
        self._kept: dict[bytes, torch.Tensor] = {}

    def of(
        self, chain: Chain, seed: int, weights: Mapping[str, np.ndarray], batch: int
    ) -> torch.Tensor:
        """Features (K, n) of a batch, by a network with one seed's weights."""
        if self._network != (chain.name, seed):
            self._network, self._kept = (chain.name, seed), {}
        indices = self._targets.indices
        key = indices[batch].tobytes()
        if key in self._kept:
            return self._kept[key]
        found = features_of(
            chain,
            weights,
            self._targets.batch(batch),
            precision=self._precision,
            device=self._device,
            mode=self._mode,
        )
        if any(np.array_equal(indices[batch], other) for other in indices[batch + 1 :]):
            self._kept[key] = found
        return found


def _check_sizes(models: ModelFile, targets: TargetSet) -> None:
    """Refuse images that do not fit a network."""
    for chain in models.chains:
        if targets.shape != chain.input:
            raise ConfigError(
                f"{chain.name} takes images of {list(chain.input)}, but the targets have "
                f"{list(targets.shape)}; choose another target set or model."
            )


def _facts(models: ModelFile, targets: TargetSet, seeds: int, mode: str) -> dict[str, Any]:
    """Metadata of a gradient file that follow from its models and targets."""
    low, high = targets.bounds
    return {
        "fingerprints": {
            chain.name: [fingerprint(models.of(chain, seed)) for seed in range(seeds)]
            for chain in models.chains
        },
        "mode": {
            chain.name: mode if chain.is_normalised or chain.has_dropout else "evaluation"
            for chain in models.chains
        },
        "seeds": seeds,
        "images": len(targets.images),
        "batch": targets.size,
        "low": low,
        "high": high,
    }


def _no_gradient(
    weights: Mapping[str, np.ndarray], precision: str, kept: str
) -> dict[str, np.ndarray]:
    """NaN in place of a gradient that no attack can use."""
    return {
        name: np.full(value.shape, np.nan, precision)
        for name, value in without_statistics(weights).items()
        if not is_key(name) and (kept == "all" or name.startswith("fc"))
    }
