"""Small networks for tests, what their clients share, and systems of single layers."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from gradleak.attacks.base import AttackerView
from gradleak.client.capture import capture, capture_all, signs
from gradleak.data.arrays import Dataset
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.build import load, with_statistics
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import draw_key, family_weights, initial_weights
from gradleak.models.losses import OF_CLASSES
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from gradleak.operators.system import LayerSystem
from gradleak.runtime.artifacts import write_tensors

# Settings of a target set.
TARGETS = {"indices": None, "first": 0, "batch": 1, "names": None, "draw": "consecutive"}
TARGETS |= {"size": None, "resize": "repeat", "relabel": 0, "offset": 0.0, "std": 1.0}

# What stands in every row of scores.
CASE = "paper result attack defence images targets precision mode training"
CASE = dict.fromkeys(CASE.split(), "x")


def dataset(count, *size):
    """Random images of three classes in turn."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, *size), dtype=np.uint8)
    names, source = ["ant", "bee", "cow"], ("tiny", "train", "by hand", "0" * 64)
    return Dataset(pixels, np.arange(count) % 3, names, *source)


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


def drawn_weights(network, seed, statistics=True):
    """Weights whose norms are not at their start, with running statistics, and a key."""
    draw, found = np.random.default_rng(seed), initial_weights(network, seed)
    found = (with_statistics(network, found) if statistics else found) | draw_key(network, 0, seed)
    ends = {"running_mean": (-0.3, 0.3), "running_var": (0.1, 2.0)}
    ends |= {"weight": (0.5, 1.5), "bias": (0.1, 0.3)}
    for name, value in found.items():
        if "_norm." in name:
            found[name] = draw.uniform(*ends[name.rpartition(".")[2]], value.shape)
    return {name: np.asarray(value, np.float32) for name, value in found.items()}


def image(network, seed=0, low=-0.5):
    return np.random.default_rng(seed).uniform(low, low + 1.0, network.input)


def error(found, target):
    """Mean squared error of a reconstruction, of one image (C, H, W) or several."""
    return float(np.mean((found.images.reshape(target.shape) - target) ** 2))


def view(network, target, label=1, seed=0, granted=True, low=-0.5, weights=None, **more):
    """What an attacker sees of one image (C, H, W) or of a batch (K, C, H, W) with K labels."""
    weights = initial_weights(network, seed) if weights is None else weights
    images = target[None] if target.ndim == 3 else target
    labels = np.atleast_1d(label)
    more = {"loss": "cross_entropy", "mode": "training", "batch": len(images), **more}
    how = {"precision": more.pop("precision", "float64"), "loss": more["loss"]}
    found = shared(network, weights, images, labels, mode=more["mode"], **how)
    known = tuple(int(one) for one in labels) if granted else None
    return AttackerView(network, weights, found, known, low, low + 1.0, **more)


def run(attack, seen, seed=0):
    """Answer of a search to one view, or why there is none."""
    return attack.run_many([seen], [seed])[0]


def shared(network, weights, images, labels, precision="float64", **more):
    """Gradients of one batch."""
    more |= {"precision": precision, "device": torch.device("cpu")}
    return capture(network, weights, images, np.asarray(labels), **more)


def models(*chains, seeds=1):
    return files.ModelFile(chains, family_weights(chains, seeds))


def saved(folder, sent, tensors, metadata):
    """Paths of a model file and a gradient file."""
    model, gradient = (str(folder / f"{name}.safetensors") for name in ("model", "gradient"))
    files.save(model, list(sent.chains), sent.weights, {})
    write_tensors(gradient, tensors, metadata)
    return model, gradient


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
    options |= {"loss": loss, "low": low, "granted": granted, "weights": weights}
    return view(network, target, label, **options), target, label


def plain_loss(loss, output, label):
    """Mean loss of a batch (K, m), from labels (K,) or dummy logits (K, m)."""
    soft = label.is_floating_point()
    if loss in OF_CLASSES:
        truth = torch.softmax(label, 1) if soft else torch.eye(output.shape[1])[label]
        scores = output if loss == "raw_logits" else torch.log_softmax(output, 1)
        return -(truth * scores).sum(1).mean()
    value = {
        "logistic": lambda mu: torch.nn.functional.softplus(-mu),
        "exponential": lambda mu: torch.exp(-mu),
        "hinge": lambda mu: torch.relu(1.0 - mu),
    }[loss]
    if not soft:
        return value(label[:, None] * output).mean()
    share = torch.sigmoid(label)
    return (share * value(output) + (1.0 - share) * value(-output)).mean()


def reference(chain, weights, images, labels, loss="cross_entropy", mode="training"):
    """Gradients of one member with a graph by their names, the usual way, and the module."""
    module = load(chain, weights, torch.float64).train(mode == "training")
    value = plain_loss(loss, module(images), labels)
    found = torch.autograd.grad(value, list(module.parameters()), create_graph=True)
    return dict(zip(dict(module.named_parameters()), found, strict=True)), module


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
