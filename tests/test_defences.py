"""Defences: the contract, and what noise does to a gradient."""

import copy

import numpy as np
import pytest
import torch

from chains import chain, conv, image, view
from chains import shared as shared_by
from gradleak.client.defences.base import Client, build
from gradleak.client.defences.soteria import scores
from gradleak.models.build import load
from gradleak.models.initial import initial_weights
from gradleak.settings import registry

NETWORK = chain(conv(4, 3, bias=True), conv(6, 3))
BATCH = np.stack([image(NETWORK, seed) for seed in range(3)])
WEIGHTS, CLASSES = initial_weights(NETWORK, 0), np.array([1, 0, 1])


def alone(number):
    """Gradient of one image of the batch."""
    part = slice(number, number + 1)
    return shared_by(NETWORK, WEIGHTS, BATCH[part], CLASSES[part], "float32")


CLIENT = Client(NETWORK, WEIGHTS, BATCH, CLASSES, alone)
# A defence that is not here is tried with its defaults.
SETTINGS = {
    "clipping": {"method": "clipping", "norm": 1e-3},
    "soteria": {"method": "soteria", "prune": 0.3},
    "gaussian_noise": {"method": "gaussian_noise", "level": 0.1, "relative": True},
}


@pytest.mark.parametrize("method", registry.modules("defences"))
def test_contract(method):
    shared = dict(view(NETWORK, image(NETWORK), precision="float32").gradients)
    before = copy.deepcopy(shared)
    defence = build(SETTINGS.get(method, {"method": method}))
    first, again = (defence.apply(CLIENT, shared, 3) for _ in range(2))
    np.testing.assert_equal((shared, again), (before, first))
    shapes = ({name: (v.shape, v.dtype) for name, v in one.items()} for one in (first, shared))
    assert next(shapes) == next(shapes)


def test_noise_has_the_level_that_is_asked_for():
    generator = np.random.default_rng(0)
    shared = {"wide": 5.0 * generator.standard_normal(40_000), "one": np.array([2.0])}
    noisy = {"method": "gaussian_noise", "level": 0.1}
    relative, absolute = (build({**noisy, "relative": which}) for which in (True, False))
    for defence, deviation in ((relative, 0.5), (absolute, 0.1)):
        noise = defence.apply(CLIENT, shared, 0)["wide"] - shared["wide"]
        assert noise.std() == pytest.approx(deviation, rel=0.02)
        assert abs(noise.mean()) < 0.02 * deviation
    assert 0 < abs(relative.apply(CLIENT, shared, 0)["one"][0] - 2.0) < 1.0


def test_levels_differ_in_nothing_but_the_level():
    shared = {"a": np.random.default_rng(1).standard_normal(100)}
    noise = {"method": "gaussian_noise", "relative": False}
    small, large = (build({**noise, "level": level}) for level in (0.01, 0.1))
    drawn = [defence.apply(CLIENT, shared, 5)["a"] - shared["a"] for defence in (small, large)]
    np.testing.assert_allclose(10 * drawn[0], drawn[1], atol=1e-12)
    other = small.apply(CLIENT, shared, 6)["a"] - shared["a"]
    assert np.abs(other - drawn[0]).max() > 0


def test_clipping_scales_all_tensors_alike_and_only_down():
    shared = dict(view(NETWORK, image(NETWORK)).gradients)
    size = np.sqrt(sum(np.vdot(v, v) for v in shared.values()))
    for norm, scale in ((0.1 * size, 0.1), (2.0 * size, 1.0)):
        found = build({"method": "clipping", "norm": norm}).apply(CLIENT, shared, 0)
        for name, value in shared.items():
            np.testing.assert_allclose(found[name], scale * value, rtol=1e-9)


LARGE = {
    "small": NETWORK,
    "pools": chain(*(conv(2, 3, 1, 1, pool=pool) for pool in ("average", "max")), side=24),
    "strides": chain(conv(3, 3, stride=2, padding=1), conv(2, 3, bias=True), side=22),
    "global": chain(conv(3, 3, padding=1, pool="max3"), conv(4, 3, pool="global"), side=18),
    "overlapping": chain(conv(2, 3, padding=1, pool="max3"), conv(2, 3), side=26),
    "edges": chain(*(conv(2, 2 * p + 1, 1, p, padding_mode="replicate") for p in (1, 2)), side=14),
}


@pytest.mark.parametrize("network", LARGE.values(), ids=LARGE.keys())
def test_soteria_scores_are_those_of_each_image_and_feature_by_itself(network):
    batch = np.stack([image(network, seed) for seed in range(2)])
    client = Client(network, initial_weights(network, 0), batch, np.array([1, 0]))
    module = load(network, client.weights, torch.float64)
    expected = 0.0
    for one in torch.from_numpy(batch)[:, None]:
        rows = torch.autograd.functional.jacobian(lambda x: module.features(x)[0], one)
        values = module.features(one).detach().numpy()[0]
        expected = expected + rows.flatten(1).norm(dim=1).numpy() / np.abs(values)
    np.testing.assert_allclose(scores(client), expected, rtol=2e-3)
    shared = dict(view(network, image(network)).gradients)
    pruned = build(SETTINGS["soteria"]).apply(client, shared, 0)
    empty = ~pruned["fc1.weight"].any(axis=0)
    assert empty.mean() == pytest.approx(0.3, abs=1 / len(empty))
    assert expected[empty].max() <= expected[~empty].min() * (1 + 1e-3)
    np.testing.assert_array_equal(pruned["conv1.weight"], shared["conv1.weight"])
