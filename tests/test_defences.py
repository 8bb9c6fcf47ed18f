"""Defences: the contract, and what noise does to a gradient."""

import numpy as np
import pytest

from chains import chain, conv, image, view
from gradleak.defences.base import DEFENCES, Client, build
from gradleak.models.initial import initial_weights

NETWORK = chain(conv(4, 3, bias=True), conv(6, 3))
BATCH = np.stack([image(NETWORK, seed) for seed in range(3)])
CLIENT = Client(NETWORK, initial_weights(NETWORK, 0), BATCH, np.array([1, 0, 1]))
SETTINGS = {
    "soteria": {"method": "soteria", "prune": 0.3},
    "none": {"method": "none"},
    "gaussian_noise": {"method": "gaussian_noise", "level": 0.1, "relative": True},
}


@pytest.mark.parametrize("method", DEFENCES)
def test_contract(method):
    shared = dict(view(NETWORK, image(NETWORK), precision="float32").gradients)
    before = {name: value.copy() for name, value in shared.items()}
    defence = build(SETTINGS[method])
    first, again = (defence.apply(CLIENT, shared, 3) for _ in range(2))
    assert first.keys() == shared.keys()
    for name, value in first.items():
        assert (value.shape, value.dtype) == (shared[name].shape, shared[name].dtype)
        np.testing.assert_array_equal(value, again[name])
        np.testing.assert_array_equal(shared[name], before[name])


def test_noise_has_the_level_that_is_asked_for():
    generator = np.random.default_rng(0)
    shared = {"wide": 5.0 * generator.standard_normal(40_000), "one": np.array([2.0])}
    relative = build({"method": "gaussian_noise", "level": 0.1, "relative": True})
    absolute = build({"method": "gaussian_noise", "level": 0.1, "relative": False})
    for defence, deviation in ((relative, 0.5), (absolute, 0.1)):
        noise = defence.apply(CLIENT, shared, 0)["wide"] - shared["wide"]
        assert noise.std() == pytest.approx(deviation, rel=0.02)
        assert abs(noise.mean()) < 0.02 * deviation
    assert 0 < abs(relative.apply(CLIENT, shared, 0)["one"][0] - 2.0) < 1.0


def test_levels_differ_in_nothing_but_the_level():
    shared = {"a": np.random.default_rng(1).standard_normal(100)}
    small, large = (
        build({"method": "gaussian_noise", "level": level, "relative": False})
        for level in (0.01, 0.1)
    )
    drawn = [defence.apply(CLIENT, shared, 5)["a"] - shared["a"] for defence in (small, large)]
    np.testing.assert_allclose(10 * drawn[0], drawn[1], atol=1e-12)
    other = small.apply(NETWORK, shared, 6)["a"] - shared["a"]
    assert np.abs(other - drawn[0]).max() > 0
