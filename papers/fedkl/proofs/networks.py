"""The networks of FedKL's proofs, their shared gradients, and reference values from autograd."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from gradleak.client.capture import capture
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locks import Lock
from papers.fedkl.proofs.inference import EPSILON

CLASSES = 10
HIDDEN = 32
KERNEL = (3, 3)
CONV, HEAD = "conv1", "fc1"
# Distributions of γ and β of a norm without a lock.
SCALES, SHIFTS = (0.5, 1.5), (-0.5, 0.5)
# Seed of random numbers other than weights.
OTHERS = 7


@dataclass(frozen=True)
class Net:
    """A convolution, an activation and a fully connected layer (Claims 3 and 4, Proposition 2)."""

    words: str  # its name in text
    activation: str  # of the convolution, like the next two
    filters: int
    padding: int = 0
    # activation of the lock, if there is one (eq. 37 prints none: ``identity``)
    lock: str | None = None
    key: int = 1024  # length of the key
    precision: str = "float64"  # of the client's gradient

    def chain(self, size: tuple[int, int, int], *, norm: bool) -> Chain:
        """The network for images of `size` (C, H, W), with a norm or with a bias instead."""
        lock = None if self.lock is None else Lock(self.key, Activation(self.lock))
        padding, kind = (self.padding, self.padding), "batch" if norm else "none"
        own: dict[str, Any] = {"padding": padding, "bias": not norm, "norm": kind, "lock": lock}
        conv = ConvSpec(self.filters, KERNEL, activation=Activation(self.activation), **own)
        return Chain(self.words, size, (conv, LinearSpec(CLASSES)))

    def captured(
        self, image: np.ndarray, label: int, seed: int, *, norm: bool
    ) -> tuple[Chain, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The network for an image (C, H, W), its weights under a seed, and its gradient."""
        chain = self.chain(image.shape, norm=norm)
        weights = weights_of(chain, seed)
        return chain, weights, shared(chain, weights, image, label, self.precision)


def two_layers(pixels: tuple[int, int, int]) -> Chain:
    """Two fully connected layers with ReLU between them (Claim 2)."""
    hidden = LinearSpec(HIDDEN, activation=Activation("relu"))
    return Chain("Two layers, ReLU", pixels, (hidden, LinearSpec(CLASSES)))


def weights_of(chain: Chain, seed: int) -> dict[str, np.ndarray]:
    """Initial weights, the client's key, and γ and β of a norm as after training."""
    out = initial_weights(chain, seed) | draw_key(chain, client=0, seed=seed)
    generator = np.random.default_rng((seed, OTHERS))
    for name, limits in ((f"{CONV}_norm.weight", SCALES), (f"{CONV}_norm.bias", SHIFTS)):
        if name in out:
            out[name] = generator.uniform(*limits, len(out[name])).astype(np.float32)
    return out


def shared(
    chain: Chain, weights: dict[str, np.ndarray], image: np.ndarray, label: int, precision: str
) -> dict[str, np.ndarray]:
    """Gradient of the cross-entropy of one image (C, H, W) by all parameters."""
    options: dict[str, Any] = {"precision": precision, "device": torch.device("cpu")}
    return capture(chain, weights, image[None], np.array([label]), **options)


@dataclass(frozen=True)
class Inside:
    """Values and derivatives inside a normalised network, from autograd."""

    # û = (u − mean) / sqrt(variance + ε) and s = scale·û + shift: u (O, P), mean (O,)
    u: np.ndarray
    u_hat: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    # gradients of the loss with respect to them
    d_u: np.ndarray
    d_u_hat: np.ndarray
    d_s: np.ndarray
    d_mean: np.ndarray
    d_variance: np.ndarray


def inside(chain: Chain, weights: dict[str, np.ndarray], image: np.ndarray, label: int) -> Inside:
    """Values of eq. (24) to (33) from autograd, in float64."""
    module, layer = load(chain, weights, torch.float64), chain.convolutions[0]
    assert layer.norm == "batch"
    affine: Iterable[torch.Tensor]
    affine = (module.get_parameter(f"{CONV}_norm.{n}") for n in ("weight", "bias"))
    scale, shift = affine if layer.lock is None else module.unlocked(layer.name)
    u = module.get_submodule(CONV)(torch.from_numpy(image[None]).double())[0].flatten(1)
    mean = u.mean(1)
    variance = ((u - mean[:, None]) ** 2).mean(1)
    u_hat = (u - mean[:, None]) / torch.sqrt(variance + EPSILON)[:, None]
    s = scale[:, None] * u_hat + shift[:, None]
    features = module.activations[0](s).reshape(1, -1)
    loss = functional.cross_entropy(module.classify(features), torch.tensor([label]))
    found = torch.autograd.grad(loss, [u, u_hat, s, mean, variance])
    values = (u, u_hat, mean, variance, scale, shift, *found)
    return Inside(*(value.detach().numpy() for value in values))


def regression_gradient(
    theta: np.ndarray, bias: float, inputs: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, float]:
    """Autograd's ∂L/∂θ and ∂L/∂b of the mean squared error of θ·x + b; `inputs` (N, n)."""
    weight = torch.from_numpy(theta).requires_grad_()
    offset = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
    outputs = torch.from_numpy(inputs) @ weight + offset
    loss = functional.mse_loss(outputs, torch.from_numpy(targets))
    d_theta, d_bias = torch.autograd.grad(loss, [weight, offset])
    return d_theta.numpy(), float(d_bias)
