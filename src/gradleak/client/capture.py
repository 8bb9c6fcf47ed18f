"""Gradient capture: the gradients that a client shares in one step of federated learning."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.client.defences.base import noise_seed
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
# Losses ℓ(μ) of a margin μ.
MARGIN: dict[str, Callable[[Tensor], Tensor]] = {
    "logistic": lambda margin: nn.functional.softplus(-margin),
    "exponential": lambda margin: torch.exp(-margin),
    "hinge": lambda margin: torch.clamp(1.0 - margin, min=0.0),
}


def pick_device(name: str) -> torch.device:
    """Device `name` = cpu | cuda | mps, or auto, the first accelerator; `ConfigError` if absent."""
    # Convolutions in TF32 keep 10 bits, and autotuned algorithms differ from run to run.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    accelerators = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    available = [key for key, there in accelerators.items() if there] + ["cpu"]
    if name == "auto":
        return torch.device(available[0])
    if name not in available:
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
    features: Tensor | None = None,
) -> dict[str, np.ndarray]:
    """Gradient of the mean loss over a batch with respect to every parameter, by its name.

    The loss is a function of the last activation's output: cross-entropy of its softmax (COPA
    section 2), −output[label] (`gradleak.models.losses.RAW`), or ℓ(μ) of μ = y·output (R-GAP eq. 4,
    5). Large batches are processed in parts, whose gradients are summed.

    `images` (K, C, H, W) are in the network's input range; `labels` (K,) are true classes, −1 or 1
    for a margin loss. Clients compute in `precision` ``float32``, or in ``float64``. `kept` are
    ``all`` parameters, or those of the ``classifier`` alone, which needs no backward pass through
    the convolutions; `features` is then the output of `features_of` for these images, if known. In
    `mode` ``training`` norms use the batch's statistics, and dropout, drawn by `seed`, is active;
    in ``evaluation`` norms use their running statistics (mean 0 and variance 1 if untrained).

    Raises `NumericsError` if a gradient holds NaN or infinity, or is zero everywhere, and
    `ConfigError` if a norm in training mode has a single value in each channel to normalise.
    """
    if mode == "training":
        check_norms(chain, len(images))
    how: dict[str, Any] = {"precision": precision, "device": device, "mode": mode}
    if kept == "classifier" and features is None:
        features = features_of(chain, weights, images, **how)
    module = _module(chain, weights, **how)
    module.train(chain.has_dropout and mode == "training")
    parameters = {name: value for name, value in module.named_parameters() if _is_kept(name, kept)}
    truth, parts = torch.from_numpy(labels).to(device), _parts(chain, len(images))
    total: list[Tensor] = []

    def share(part: slice) -> Tensor:
        """Contribution of some of the images to the mean loss."""
        known = _features(module, chain, images[part]) if features is None else features[part]
        value = mean_loss(loss, module.classify(known), truth[part])
        return value if len(known) == len(images) else value * (len(known) / len(images))

    # The seed of dropout must not affect other random numbers.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        # With known features the rest is too fast for a progress report.
        for part in _told(parts) if features is None else parts:
            found = torch.autograd.grad(share(part), list(parameters.values()))
            total = [one.add_(other) for one, other in zip(total, found, strict=False)] or [*found]
    values = (value.contiguous().cpu().numpy() for value in total)
    out = dict(zip(parameters, values, strict=True))
    check_gradient(chain, out)
    return out


def _is_kept(name: str, kept: str) -> bool:
    return kept == "all" or name.startswith("fc")


def features_of(
    chain: Chain,
    weights: Mapping[str, np.ndarray],
    images: Images,
    *,
    precision: str,
    device: torch.device,
    mode: str = "training",
) -> Tensor:
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
        found = torch.cat([_features(module, chain, images[part]) for part in _told(parts)])
    return with_silent(chain, found, live)


def _module(
    chain: Chain, weights: Mapping[str, np.ndarray], precision: str, device: torch.device, mode: str
) -> ChainModule:
    if device.type == "mps" and precision == "float64":
        raise ConfigError("precision: float64 does not exist on device: mps; set device: cpu.")
    held = with_statistics(chain, weights) if mode == "evaluation" else without_statistics(weights)
    module: ChainModule = load(chain, held, DTYPES[precision], copy=False).to(device)
    return module.to(memory_format=_layout(chain))


def _features(module: ChainModule, chain: Chain, images: np.ndarray) -> Tensor:
    x, like = torch.from_numpy(images), next(module.parameters())
    return module.features(x.to(like.device, like.dtype, memory_format=_layout(chain)))


def _layout(chain: Chain) -> torch.memory_format:
    # Measured on two cores: VGG-16 at 224x224 runs forward in 0.7 of the time.
    return fast_layout(chain) if max(chain.input[1:]) >= LARGE else torch.contiguous_format


def _parts(chain: Chain, size: int) -> list[slice]:
    """Parts of a batch of `size` images that are processed at once."""
    at_once = images_at_once(chain)
    return [slice(first, min(first + at_once, size)) for first in range(0, size, at_once)]


def _told(parts: list[slice]) -> Iterator[slice]:
    """Parts of a batch; progress is reported only if there are several."""
    return progress(parts, "parts of a batch") if len(parts) > 1 else iter(parts)


def mean_loss(loss: str, output: Tensor, labels: Tensor) -> Tensor:
    """Mean of one of `LOSSES` over outputs (K, m) and labels (K,); `ConfigError` for another."""
    if loss == "cross_entropy":
        return nn.functional.cross_entropy(output, labels)
    if loss == RAW:
        return nn.functional.nll_loss(output, labels)
    if loss not in MARGIN:
        raise ConfigError(f"loss: {loss} is not known; choose one of {', '.join(LOSSES)}.")
    return MARGIN[loss](labels.to(output.dtype) * output[:, 0]).mean()


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
    _check_sizes(models, targets)
    how: dict[str, Any] = {"precision": precision, "device": pick_device(device), "mode": mode}
    known = _Features(targets, how.copy()) if kept == "classifier" else None
    slots: dict[str, np.ndarray] = {}
    unusable: list[dict[str, Any]] = []
    todo = list(runs(models.chains, seeds, len(targets.images)))
    for chain, seed, batch in progress(todo, "gradients"):
        true, own = targets.labels[batch], own_lock(chain, seed, client)
        weights = models.of(chain, seed) | own
        if loss in BINARY:
            true = signs(chain, weights, targets.inputs(batch), labels)
        how |= {"loss": loss, "kept": kept, "seed": noise_seed(seed, batch)}
        try:
            features = known.of(chain, seed, weights, batch) if known else None
            shared = capture(chain, weights, targets.batch(batch), true, **how, features=features)
        except NumericsError as error:
            shared = _no_gradient(weights, precision, kept)
            run = {"chain": chain.name, "seed": seed, "batch": batch}
            unusable.append({**run, "reason": str(error)})
        shared = of_lock(shared, own, lock)
        if granted:
            shared |= {"label": true, "class": targets.labels[batch]}
        for name, value in shared.items():
            key = f"{chain.name}/{name}"
            if key not in slots:
                slots[key] = np.empty((seeds, len(targets.images), *value.shape), value.dtype)
            slots[key][seed, batch] = value
    if unusable and len(unusable) == len(todo):
        raise NumericsError(
            f"None of the {len(unusable)} gradients can be used; the first: {unusable[0]['reason']}"
        )
    chosen = {"loss": loss, "labels": labels, "precision": precision, "lock": lock}
    return slots, {**_facts(models, targets, seeds, mode), "unusable": unusable, **chosen}


class _Features:
    """Features of batches, computed once if batches share their images."""

    def __init__(self, targets: TargetSet, how: Mapping[str, Any]) -> None:
        self._targets, self._how = targets, how
        self._network: tuple[str, int] | None = None
        self._kept: dict[bytes, Tensor] = {}

    def of(self, chain: Chain, seed: int, weights: Mapping[str, np.ndarray], batch: int) -> Tensor:
        """Features (K, n) of a batch, by a network with one seed's weights."""
        if self._network != (chain.name, seed):
            self._network, self._kept = (chain.name, seed), {}
        own, later = self._targets.indices[batch], self._targets.indices[batch + 1 :]
        found = self._kept.get(own.tobytes())
        if found is None:
            found = features_of(chain, weights, self._targets.batch(batch), **self._how)
            if (own == later).all(axis=1).any():
                self._kept[own.tobytes()] = found
        return found


def _check_sizes(models: ModelFile, targets: TargetSet) -> None:
    for chain in models.chains:
        if targets.shape != chain.input:
            raise ConfigError(
                f"{chain.name} takes images of {list(chain.input)}, but the targets have "
                f"{list(targets.shape)}; choose another target set or model."
            )


def _facts(models: ModelFile, targets: TargetSet, seeds: int, mode: str) -> dict[str, Any]:
    """Metadata of a gradient file that follow from its models and targets."""
    marks = {c.name: [fingerprint(models.of(c, s)) for s in range(seeds)] for c in models.chains}
    modal = {c.name: c.is_normalised or c.has_dropout for c in models.chains}
    modes = {name: mode if depends else "evaluation" for name, depends in modal.items()}
    sizes = {"seeds": seeds, "images": len(targets.images), "batch": targets.size}
    bounds = dict(zip(("low", "high"), targets.bounds, strict=True))
    return {"fingerprints": marks, "mode": modes, **sizes, **bounds}


def _no_gradient(
    weights: Mapping[str, np.ndarray], precision: str, kept: str
) -> dict[str, np.ndarray]:
    """NaN in place of a gradient that no attack can use."""
    return {
        name: np.full(value.shape, np.nan, precision)
        for name, value in without_statistics(weights).items()
        if not is_key(name) and _is_kept(name, kept)
    }
