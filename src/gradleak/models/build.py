"""Chains as PyTorch modules."""

import sys
from collections.abc import Mapping
from itertools import product
from math import prod

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvLayer, ConvPart, LinearLayer
from gradleak.models.locks import KEY, names_of
from gradleak.models.pools import window_of

ACTIVATIONS = 2**28  # values stored for the backward pass of one part of a batch: 1 GiB in float32
AT_A_TIME = 16  # largest number of channels that oneDNN computes at a time
EPSILON = 1e-5  # added to the variance by batch norms
STATISTICS = (("running_mean", np.zeros), ("running_var", np.ones))


def activation_module(activation: Activation) -> nn.Module:
    """Return the PyTorch module of an activation."""
    if activation.name == "leaky_relu":
        return nn.LeakyReLU(activation.slope)
    kinds = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU, "identity": nn.Identity}
    return kinds[activation.name]()


def pooled(x: torch.Tensor, pool: str) -> torch.Tensor:
    """Pool images (B, O, H, W) by `pool`, as of `gradleak.models.chain.ConvLayer`."""
    if pool == "none":
        return x
    if pool == "global":
        return x.mean((2, 3), keepdim=True)
    window = window_of(pool)
    assert window is not None
    of = functional.max_pool2d if window.kind == "max" else functional.avg_pool2d
    return of(x, window.side, window.stride, window.padding)


class ChainModule(nn.Module):
    """A `Chain` as a module: (B, C, H, W) -> (B, classes).

    Parameters are named as the chain's layers (``conv1.weight``), so that files and attacks
    share one set of names. With `statistics`, batch norms keep a running mean and variance
    (momentum 0.1) in training and use them in evaluation; without, they always use the batch's. A
    client's key is a buffer, ``conv1_key``, which is not trained.
    """

    def __init__(self, chain: Chain, *, statistics: bool = False) -> None:
        super().__init__()
        self.chain = chain
        # Not registered as submodules: they have no parameters.
        self._unlock: dict[str, nn.Module] = {}
        for layer in chain.layers:
            if isinstance(layer, ConvLayer):
                # Gradients are listed, and so summed, in this order.
                own, *projected = layer.parts
                self._add_norm(own, statistics)
                for part in projected:
                    self.add_module(part.name, _convolution(part))
                    self._add_norm(part, statistics)
                self.add_module(own.name, _convolution(own))
            else:
                self.add_module(layer.name, nn.Linear(layer.inputs, layer.outputs, layer.bias))
        self.activations = nn.ModuleList(activation_module(a.activation) for a in chain.layers)

    def _add_norm(self, part: ConvPart, statistics: bool) -> None:
        """Add a convolution's batch norm and lock, if any."""
        lock, filters = part.lock, part.shape.filters
        if part.normed:
            norm = nn.BatchNorm2d(filters, affine=lock is None, track_running_stats=statistics)
            self.add_module(part.norm, norm)
        if lock is not None:
            for name in names_of(part.name).values():
                self.add_module(name, nn.Linear(lock.key, filters))
            self.register_buffer(f"{part.name}{KEY}", torch.zeros(lock.key))
            self._unlock[part.name] = activation_module(lock.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the last activation for images (B, C, H, W)."""
        return self.classify(self.features(x))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the convolutions for images (B, C, H, W), flat: (B, n)."""
        inputs = []
        for layer, activation in zip(self.chain.convolutions, self.activations, strict=False):
            inputs.append(x)
            z, *projected = (self._linear(part, inputs[-part.back]) for part in layer.parts)
            if layer.skip:
                z = z + (projected[0] if projected else inputs[-layer.skip])
            x = pooled(activation(z), layer.pool)
        return x.flatten(1)

    def _linear(self, part: ConvPart, x: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.get_submodule(part.name)(x)
        if not part.normed:
            return z
        norm = self.get_submodule(part.norm)
        if part.lock is None:
            return norm(z)
        assert isinstance(norm, nn.BatchNorm2d)
        # At once, as in a batch norm: another pass over z costs 2 % of ResNet-20's step.
        own = norm.training or norm.running_mean is None
        factors = (*self.unlocked(part.name), own, norm.momentum or 0.0, norm.eps)
        return functional.batch_norm(z, norm.running_mean, norm.running_var, *factors)

    def unlocked(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return γ and β (O,) from the key of the locked convolution `name` (FedKL eq. 37)."""
        # By getattr: get_submodule and get_buffer cost LeNet's step 1 %.
        key = getattr(self, f"{name}{KEY}")
        layers = (getattr(self, own) for own in names_of(name).values())
        # In full precision, since a long key makes long sums.
        with torch.autocast(key.device.type, enabled=False):
            scale, shift = (self._unlock[name](_affine(layer, key)) for layer in layers)
        return scale, shift

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        """Output of the last activation for outputs of the convolutions (B, n)."""
        pairs = list(zip(self.chain.layers, self.activations, strict=True))
        for layer, activation in pairs[len(self.chain.convolutions) :]:
            assert isinstance(layer, LinearLayer)
            x = activation(self.get_submodule(layer.name)(x))
            x = functional.dropout(x, layer.dropout, self.training) if layer.dropout else x
        return x


def _affine(layer: nn.Module, key: torch.Tensor) -> torch.Tensor:
    """Return W k + b in one operation; the layer's own backward pass takes three for a vector."""
    assert isinstance(layer, nn.Linear)
    return torch.addmv(layer.bias, layer.weight, key)


def _convolution(part: ConvPart) -> nn.Conv2d:
    shape = part.shape
    sizes = (shape.channels, shape.filters, shape.kernel, shape.stride, shape.padding)
    return nn.Conv2d(*sizes, padding_mode=part.padding_mode, bias=part.bias)


def fast_layout(chain: Chain) -> torch.memory_format:
    """Return channels last, in which convolutions are faster, where that is safe.

    oneDNN computes 8 channels at a time with AVX2 and 16 with AVX-512. For a 1x1 convolution with
    a stride and fewer channels in that layout it writes out of bounds when it computes the
    gradient of the weights (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    for shape in (part.shape for part in chain.parts):
        if shape.kernel == (1, 1) and max(shape.stride) > 1 and shape.channels < AT_A_TIME:
            return torch.contiguous_format
    return torch.channels_last


def with_statistics(chain: Chain, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add running statistics of untrained batch norms, 0 and 1, to the weights of a chain."""
    out = dict(weights)
    for part, (kind, start) in product(chain.parts, STATISTICS):
        if part.normed:
            out.setdefault(f"{part.norm}.{kind}", start(part.shape.filters, np.float32))
    return out


def without_statistics(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Remove running statistics from weights: batch norms then use those of the batch."""
    parts = tuple(part for part, _ in STATISTICS)
    return {name: value for name, value in weights.items() if not name.endswith(parts)}


def load(
    chain: Chain, weights: Mapping[str, np.ndarray], dtype: torch.dtype, *, copy: bool = True
) -> ChainModule:
    """Build the module of `chain` in evaluation mode with the given weights.

    Without a `copy` it shares memory with them, and must not be trained. Raises `ConfigError` if
    the chain is locked, and a key is missing or has another length.
    """
    check_keys(chain, weights)
    # No initial weights are drawn: for VGG-16 that would take a second.
    statistics = any(name.endswith(".running_mean") for name in weights)
    with torch.device("meta"):
        module = ChainModule(chain, statistics=statistics)
    own = {name: torch.from_numpy(value).to(dtype, copy=copy) for name, value in weights.items()}
    if statistics:
        counts = {n: v for n, v in module.state_dict().items() if n.endswith("batches_tracked")}
        own |= {name: torch.zeros_like(value, device="cpu") for name, value in counts.items()}
    module.load_state_dict(own, assign=True)
    return module.eval()


def check_keys(chain: Chain, weights: Mapping[str, np.ndarray]) -> None:
    """Raise `ConfigError` unless every locked layer has a key of its lock's length."""
    for layer in chain.locked:
        key = weights.get(f"{layer.name}{KEY}")
        if key is None:
            raise ConfigError(
                f"{chain.name}: {layer.name} is locked, but no key is given; add the client's own, "
                f"{layer.name}{KEY}."
            )
        if key.shape != (layer.lock.key,):
            raise ConfigError(
                f"{chain.name}: the lock of {layer.name} takes a key of {layer.lock.key} values, "
                f"but the one given has {key.size}; give the key that belongs to this model."
            )


def images_at_once(chain: Chain) -> int:
    """Number of images per pass that keeps stored values within `ACTIVATIONS`."""
    if chain.is_normalised:
        return sys.maxsize  # a batch that is normalised passes whole
    values = sum(3 * layer.shape.filters * layer.shape.positions for layer in chain.convolutions)
    return max(1, ACTIVATIONS // max(1, values))


def check_norms(chain: Chain, images: int) -> None:
    """Raise `ConfigError` unless batch norms get more than one value per channel from `images`."""
    for part in chain.parts:
        if part.normed and images * prod(part.shape.output) == 1:
            _, height, width = chain.input
            raise ConfigError(
                f"models.{chain.name}: the norm of {part.name} has one value a channel in a batch "
                f"of one image of {height}x{width}, and would make it 0; take larger images, or "
                "more in a batch (of a training, more images for each client)."
            )
