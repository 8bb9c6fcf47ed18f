"""Tasks of `benchmarks.growth` on networks: gradients, attacks, ranks, and one layer alone.

Each takes a size, and returns what its growth is measured over, `n`, with seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from skimage.data import astronaut
from skimage.transform import resize
from torch import nn

import gradleak
from benchmarks import dense
from benchmarks.growth_cases import FAILED
from benchmarks.growth_task import timed
from benchmarks.photo import NETWORKS, chain, shapes, unknowns
from benchmarks.runner import Facts
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.limits import solving_bytes
from gradleak.operators.shape import ConvShape
from gradleak.operators.system import LayerSystem

FILTERS = NETWORKS["four layers"]
PHOTO_SIDE = 224
DEEP_SIDE = 32
DEPTH_FILTERS = (16, 72, 80, 88, 96, 104, 112, 120)  # of a chain of as many layers, from the first
LOSS: Mapping[str, Any] = {"labels": [1], "loss": "logistic"}


@cache
def photo() -> torch.Tensor:
    """Astronaut of scikit-image, float32 (1, 3, 224, 224) in [0, 1]."""
    pixels = resize(astronaut(), (PHOTO_SIDE, PHOTO_SIDE), anti_aliasing=True)
    return torch.from_numpy(pixels.transpose(2, 0, 1)[None]).float()


def picture(side: int) -> torch.Tensor:
    """Return the photo at a side, float32 (1, 3, side, side)."""
    how: dict[str, Any] = {"mode": "bilinear", "antialias": True}
    return nn.functional.interpolate(photo(), (side, side), **how).clamp(0.0, 1.0)


def crops(count: int, side: int) -> torch.Tensor:
    """Parts of the photo at random places, float32 (count, 3, side, side)."""
    corners = np.random.default_rng(0).integers(0, PHOTO_SIDE - side + 1, (count, 2))
    return torch.stack([photo()[0, :, y : y + side, x : x + side] for y, x in corners.tolist()])


def network(side: int) -> nn.Module:
    """The four layers that read a photograph."""
    torch.manual_seed(0)
    return chain(FILTERS, side)


def of_side(side: int) -> tuple[nn.Module, torch.Tensor, Facts]:
    """Network, image, and the unknowns of the largest layer."""
    model = network(side)
    return model, picture(side), {"n": max(unknowns(model, side))}


def capture(side: int) -> Facts:
    """One image's gradient."""
    model, image, facts = of_side(side)
    work = partial(gradleak.capture, model, image, [1], loss=LOSS["loss"])
    return {**facts, "seconds": timed(work)[1]}


def rgap(side: int) -> Facts:
    """R-GAP from a gradient to its image."""
    model, image, facts = of_side(side)
    shared = gradleak.capture(model, image, [1], loss=LOSS["loss"])
    found, seconds = timed(lambda: gradleak.invert(shared, model, (3, side, side), "rgap", **LOSS))
    return {**facts, "seconds": seconds, "distance": found.distance}


def solving_mib(side: int) -> float:
    """MiB that solving the network's largest layer may take, from sizes."""
    return max(map(solving_bytes, shapes(network(side), side))) / 2**20


# Stops of searches that took all steps they were given.
SPENT = ("evaluations spent", "steps spent", "iterations done")


def stepped(side: int, attack: str, few: int, many: int, settings: Mapping[str, Any]) -> Facts:
    """Seconds of a step: the difference of two searches of few and many steps.

    What is left of the shorter search is ``once_s``, for factors and all else that is done once.
    """
    model, image, facts = of_side(side)
    shared = gradleak.capture(model, image, [1], loss=LOSS["loss"])
    taken = []
    for steps in (few, many):
        begin = time.process_time()
        how = {**LOSS, **settings, "iterations": steps}
        found = gradleak.invert(shared, model, (3, side, side), attack, **how)
        seconds = time.process_time() - begin
        # Of COPA, the steps of its nonlinear layers.
        own = [layer.iterations for layer in found.layers if layer.equation in ("5", "7")]
        taken.append((sum(own) / len(own) if own else steps, seconds))
        if not own and found.stop not in SPENT:
            return {**facts, "status": FAILED, "reason": f"It stopped early: {found.stop}."}
    (first, short), (last, long) = taken
    step = (long - short) / (last - first)
    facts |= {"steps": f"{first:g}, {last:g}", "distance": found.distance}
    return {**facts, "seconds": step, "once_s": max(short - first * step, 0.0)}


def rank(side: int) -> Facts:
    """Ranks, RA-i and c(M) of a network."""
    model, size = network(side), (3, side, side)
    found, seconds = timed(lambda: gradleak.rank(model, size, loss=LOSS["loss"]))
    return {"n": max(unknowns(model, side)), "seconds": seconds, "c": found.c}


def rank_of_depth(depth: int) -> Facts:
    """The same of a deeper network, at one side."""
    torch.manual_seed(0)
    model, size = chain(DEPTH_FILTERS[:depth], DEEP_SIDE), (3, DEEP_SIDE, DEEP_SIDE)
    found, seconds = timed(lambda: gradleak.rank(model, size, loss=LOSS["loss"]))
    return {"n": depth, "seconds": seconds, "c": found.c}


def layer(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, ConvShape]:
    """Weight, dJ/dZ (O, Ph, Pw), the right side of U x = v, and sizes of the first layer."""
    first = network(side).get_submodule("0")
    assert isinstance(first, nn.Conv2d)
    weight = first.weight.detach().double().numpy()
    shape = ConvShape(3, len(weight), (4, 4), (2, 2), (1, 1), (side, side))
    delta = np.random.default_rng(0).normal(size=(shape.filters, *shape.output))
    system = LayerSystem(Convolution(weight, shape), GradientConstraint(delta, shape))
    image = picture(side)[0].double().numpy().ravel()
    return weight, delta, system.apply(image), shape


def layer_solved(side: int) -> Facts:
    """One layer's system, built, factored and solved by ours."""
    weight, delta, values, shape = layer(side)

    def solve() -> np.ndarray:
        system = LayerSystem(Convolution(weight, shape), GradientConstraint(delta, shape))
        return system.solve(values).x

    return _layer_facts(solve, side)


def layer_dense(side: int) -> Facts:
    """The same by the dense matrix and `numpy.linalg.lstsq`, as R-GAP's authors solve it."""
    weight, delta, values, shape = layer(side)

    def solve() -> np.ndarray:
        matrix = dense.layer_matrix(weight, delta, shape)
        return np.asarray(np.linalg.lstsq(matrix, values, rcond=None)[0])

    return _layer_facts(solve, side)


def _layer_facts(solve: Callable[[], np.ndarray], side: int) -> Facts:
    found, seconds = timed(solve)
    image = picture(side)[0].double().numpy().ravel()
    error = float(np.linalg.norm(found - image) / np.linalg.norm(image))
    return {"n": found.size, "seconds": seconds, "distance": error}


def classifier(classes: int) -> nn.Module:
    """A convolution whose features are the pixels, and a classifier."""
    torch.manual_seed(0)
    pixels = 3 * DEEP_SIDE**2
    return nn.Sequential(
        nn.Conv2d(3, 3, 5, 1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(pixels, classes)
    )


def capture_batch(images: int) -> Facts:
    """Gradient of a batch of one image a class, under MKOR's weights."""
    sent, _ = gradleak.poison(classifier(images), (3, DEEP_SIDE, DEEP_SIDE))
    batch = crops(images, DEEP_SIDE)
    _, seconds = timed(lambda: gradleak.capture(sent, batch, range(images)))
    return {"n": images, "seconds": seconds}


def mkor(images: int) -> Facts:
    """MKOR's inversion of that gradient."""
    size = (3, DEEP_SIDE, DEEP_SIDE)
    sent, secret = gradleak.poison(classifier(images), size)
    shared = gradleak.capture(sent, crops(images, DEEP_SIDE), range(images))
    how: dict[str, Any] = {"batch": images, "secret": secret}
    _, seconds = timed(lambda: gradleak.invert(shared, sent, size, "mkor", **how))
    return {"n": images, "seconds": seconds}
