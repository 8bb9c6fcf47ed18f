"""Small networks for tests, what their clients share, and systems of single layers."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from gradleak.attacks.base import AttackerView
from gradleak.client.capture import capture, capture_all, signs
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.system import LayerSystem

# Settings of a target set.
TARGETS = {"indices": None, "first": 0, "batch": 1, "names": None, "draw": "consecutive"}
TARGETS |= {"size": None, "resize": "repeat", "relabel": 0, "offset": 0.0, "std": 1.0}


def conv(filters, kernel, stride=1, padding=0, bias=False, activation="tanh", slope=0.01, **more):
    sides = ((side, side) for side in (kernel, stride, padding))
    return ConvSpec(filters, *sides, bias, Activation(activation, slope), **more)


def chain(*convolutions, side=8, channels=2, classes=4, bias=True, last="tanh", name="small"):
    last_layer = LinearSpec(classes, bias, Activation(last))
    return Chain(name, (channels, side, side), (*convolutions, last_layer))


def net(*layers, size, name="net"):
    return Chain(name, size, layers)


def fully_connected(*sizes, side=6, channels=1, activation="leaky_relu", slope=0.2, bias=False):
    """Fully connected layers with one output at the end, as a binary loss wants it."""
    hidden = [LinearSpec(size, bias, Activation(activation, slope)) for size in sizes]
    return Chain("fcn", (channels, side, side), (*hidden, LinearSpec(1, bias)))


def image(network, seed=0, low=-0.5):
    return np.random.default_rng(seed).uniform(low, low + 1.0, network.input)


def error(found, target):
    """Mean squared error of a reconstruction, of one image (C, H, W) or several."""
    return float(np.mean((found.images.reshape(target.shape) - target) ** 2))


def view(
    network,
    target,
    label=1,
    seed=0,
    precision="float64",
    granted=True,
    loss="cross_entropy",
    low=-0.5,
    weights=None,
    **more,
):
    """What an attacker sees of one image (C, H, W) or of a batch (K, C, H, W) with K labels."""
    weights = initial_weights(network, seed) if weights is None else weights
    images = target[None] if target.ndim == 3 else target
    labels = np.atleast_1d(label)
    found = shared(network, weights, images, labels, precision=precision, loss=loss)
    known = tuple(int(one) for one in labels) if granted else None
    return AttackerView(network, weights, found, known, low, low + 1.0, loss, len(images), **more)


def shared(network, weights, images, labels, precision="float64", **more):
    """Gradients of one batch."""
    more |= {"precision": precision, "device": torch.device("cpu")}
    return capture(network, weights, images, np.asarray(labels), **more)


def captured(models, targets, seeds=1, precision="float64", granted=True, **more):
    """Tensors and metadata of a gradient file."""
    more |= {"precision": precision, "granted": granted, "device": "cpu"}
    return capture_all(models, targets, seeds=seeds, **more)


def convolutional(activation, bias=False, filters=(12, 24), slope=0.2, last_bias=False):
    layers = [conv(n, 3, bias=bias, activation=activation, slope=slope) for n in filters]
    return chain(*layers, classes=1, bias=last_bias, last="identity")


def seen(network, loss="logistic", side="opposite", seed=0, low=0.0, granted=True, **options):
    """View of one random image, labelled as the network says (``same``) or not."""
    target = image(network, seed, low)
    weights = options.pop("weights", None) or initial_weights(network, seed)
    label = int(signs(network, weights, target[None], side)[0])
    made = view(
        network, target, label, loss=loss, low=low, granted=granted, weights=weights, **options
    )
    return made, target, label


@st.composite
def conv_shapes(draw, most_filters=5, most_channels=4, most_kernel=4, most_stride=3):
    """Geometries of small convolutions."""

    def pair(low, high):
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    kernel, padding = pair(1, most_kernel), pair(0, 2)
    size = tuple(
        draw(st.integers(max(1, k - 2 * p), 8)) for k, p in zip(kernel, padding, strict=True)
    )
    channels, filters = draw(st.integers(1, most_channels)), draw(st.integers(1, most_filters))
    return ConvShape(channels, filters, kernel, pair(1, most_stride), padding, size)


def parts(shape, seed=0):
    """Weight and dJ/dZ of a layer, and the generator that drew them."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((shape.filters, shape.channels, *shape.kernel))
    return weight, generator.standard_normal((shape.filters, *shape.output)), generator


def system(shape, seed=0, scale=1.0, masked=False, pinned=False):
    weight, delta, generator = parts(shape, seed)
    keep = generator.random(shape.filters * shape.positions) < 0.6 if masked else None
    pins = generator.random(shape.unknowns) < 0.3 if pinned else None
    constraint = GradientConstraint(scale * delta, shape)
    return LayerSystem(Convolution(weight, shape), constraint, keep, pins)


def padded_oracle(whole):
    """[W; K; E] with every padded pixel an unknown, from the padded layer's own dense matrices."""
    shape = whole.convolution.conv_shape
    (down, across), (height, width) = shape.padding, shape.size
    size = (height + 2 * down, width + 2 * across)
    wide = replace(shape, padding=(0, 0), size=size)
    delta = whole.gradient.delta.reshape(shape.filters, *shape.output)
    inside = np.zeros((shape.channels, *size), dtype=bool)
    inside[:, down : down + height, across : across + width] = True
    own = Convolution(whole.convolution.weight, wide), GradientConstraint(delta, wide)
    units = np.eye(inside.size)[~inside.ravel()]
    return np.concatenate([*(one.dense() for one in own), units])


def dense_rank(matrix):
    """Rank of U, rows scaled to length 1, and whether the SVD leaves no doubt of it.

    It errs by about 1e-14 of the largest value, so that one between 1e-12 and 1e-8 may be 0 or not.
    """
    lengths = np.linalg.norm(matrix, axis=1)
    lengths[lengths <= 1e-13 * lengths.max(initial=0)] = np.inf
    values = np.linalg.svdvals(matrix / lengths[:, None])
    clear = not np.any((values > 1e-12 * values[0]) & (values < 1e-8 * values[0]))
    return int(np.sum(values > 1e-10 * values[0])), clear
