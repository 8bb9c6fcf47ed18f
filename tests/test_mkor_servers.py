"""MKOR's paths and parameters: what the server writes into the weights."""

import numpy as np
import pytest
import torch

from gradleak.attacks.mkor.attack import Mkor
from gradleak.attacks.mkor.features import describers
from gradleak.attacks.mkor.pixels import Layout, estimate
from gradleak.models import vgg16
from gradleak.models.build import load
from gradleak.models.chain import Chain
from gradleak.models.initial import initial_weights
from gradleak.servers.mkor import MkorServer, references
from gradleak.servers.plan import plan
from gradleak.servers.secret import Secret
from mkor_cases import CLASSES, NAIVE, OURS, PAIRED, network, noisy, seen


def features_of(chain, sent, images):
    with torch.no_grad():
        return load(chain, sent, torch.float64).features(torch.from_numpy(images)).numpy()


def test_vgg16_has_the_channels_and_regions_of_the_paper():
    chain = Chain("vgg16", (3, 224, 224), vgg16.specs(10))
    paths = plan(chain)
    counts = [len(step.parent) for step in paths.steps]
    assert counts == [6] * 6 + [24] * 3 + [96] * 3 + [384]
    # Eq. (14), (15): I + J = 5, shifts of 4, 8 and 16 pixels.
    assert (paths.stride, paths.side, paths.average) == (32, 32, False)
    assert sorted(set(paths.first[:, 0])) == [4 * k for k in range(8)]
    # 332,160 of the last convolution's 2,359,808 parameters: 14 % (supplement 7).
    block = 384 * 96 * 9 + 384
    assert block == 332_160
    assert block / (512 * (512 * 9 + 1)) == pytest.approx(0.14, abs=0.001)


@pytest.mark.parametrize("reduce", ["max", "average"])
def test_describers_are_what_their_regions_hold(reduce):
    activation = {"max": "relu", "average": "sigmoid"}[reduce]
    chain = network(reduce, activation)
    beta = 1.0 if activation == "relu" else 0.01
    server = NAIVE.model_copy(update={"beta": beta})
    sent, values = server.corrupt(chain, initial_weights(chain, 0), 1)
    images, paths = noisy(chain, range(3)), plan(chain)
    secret = Secret("mkor", "", {}, values)
    found = describers(chain, sent, paths, secret, features_of(chain, sent, images))
    takes, tolerance = {"max": ((np.max, np.min), 1e-5), "average": ((np.mean,), 5e-3)}[reduce]
    for channel, row, column in np.ndindex(found.shape[1:]):
        top, left = paths.first[channel] + paths.stride * np.array([row, column])
        part = images[:, 0, top : top + paths.side, left : left + paths.side]
        if top >= 0 and left >= 0 and part.shape[1:] == (paths.side, paths.side):
            expected = takes[int(paths.sign[channel] < 0)](part, axis=(1, 2))
            np.testing.assert_allclose(found[:, channel, row, column], expected, atol=tolerance)


def test_bounds_hold_every_pixel_and_are_the_tightest():
    """Eq. (17) to (19) against a loop over pixels and regions."""
    chain = network("max")
    sent, values = NAIVE.corrupt(chain, initial_weights(chain, 0), 1)
    images, paths = noisy(chain, range(2)), plan(chain)
    secret = Secret("mkor", "", {}, values)
    found = describers(chain, sent, paths, secret, features_of(chain, sent, images))
    layout = Layout(paths, chain.convolutions[-1].grid, 1)
    ours = estimate(layout.regions(found), (16, 16), "bounds")
    for y in range(16):
        for x in range(16):
            upper, lower = np.full(2, np.inf), np.full(2, -np.inf)
            for channel, row, column in np.ndindex(found.shape[1:]):
                top, left = paths.first[channel] + paths.stride * np.array([row, column])
                if top <= y < top + paths.side and left <= x < left + paths.side:
                    value = found[:, channel, row, column]
                    if paths.sign[channel] > 0:
                        upper = np.fmin(upper, value)
                    else:
                        lower = np.fmax(lower, value)
            assert (upper >= images[:, 0, y, x] - 1e-5).all()
            assert (lower <= images[:, 0, y, x] + 1e-5).all()
            np.testing.assert_allclose(ours[:, 0, y, x], 0.5 * (upper + lower), atol=1e-5)


def test_more_shift_layers_give_finer_images():
    chain, labels = network("max"), range(CLASSES)
    # A bright bar that stands between the blocks of the pools.
    images = np.full((CLASSES, 1, 16, 16), 0.2)
    images[..., 6:10] = 0.9
    views = (NAIVE.model_copy(update={"shifts": shifts}) for shifts in (0, 1))
    views = (seen(chain, server, images, labels, "raw_logits") for server in views)
    coarse, fine = (np.mean((Mkor().run(view, 0).images - images) ** 2) for view in views)
    assert fine < 0.5 * coarse


def test_paired_rows_are_those_of_the_paper():
    """Eq. (10) to (13)."""
    chain = network()
    honest = initial_weights(chain, 0)
    sent, values = PAIRED.corrupt(chain, honest, 5)
    nodes, path = values["nodes"], values["path"]
    assert len(set(nodes.ravel())) == 2 * CLASSES
    first, second, last = (sent[f"fc{k}.weight"] for k in (1, 2, 3))
    for n in range(CLASSES):
        a, b = nodes[n]
        alpha = first[b] / first[a]
        np.testing.assert_allclose(alpha, alpha[0], rtol=1e-4)
        assert alpha[0] < 0
        assert sent["fc1.bias"][b] / sent["fc1.bias"][a] == pytest.approx(alpha[0], rel=1e-4)
        np.testing.assert_array_equal(first[a], honest["fc1.weight"][a])
        # One positive weight leads on from each node, |W|; the others are noise.
        ends = [np.abs(second[:, node]).argmax() for node in (a, b)]
        assert ends[0] == ends[1]
        for node, product in zip((a, b), path[n], strict=True):
            kept = second[ends[0], node]
            assert kept == abs(honest["fc2.weight"][ends[0], node])
            others = np.delete(second[:, node], ends[0])
            assert np.abs(others).max() < 1e-4
            assert product == pytest.approx(kept * last[n, ends[0]])
        assert last[n, ends[0]] == abs(honest["fc3.weight"][n, ends[0]])
        assert sent["fc2.bias"][ends[0]] >= abs(honest["fc2.bias"][ends[0]])
    spare = np.setdiff1d(np.arange(60), nodes)
    np.testing.assert_array_equal(first[spare], honest["fc1.weight"][spare])
    np.testing.assert_array_equal(second[:, spare], honest["fc2.weight"][:, spare])


@pytest.mark.parametrize("spare", ["silent", "keep", "noise"])
def test_filters_are_those_of_eq_20(spare):
    chain = network()
    honest = initial_weights(chain, 0)
    server = MkorServer(beta=[0.3, 0.2], spare=spare, noise=1e-3)
    sent, values = server.corrupt(chain, honest, 5)
    before = np.arange(1)
    for number, step in enumerate(plan(chain).steps):
        chosen = values[f"channel{number + 1}"]
        assert len(set(chosen)) == len(step.parent)
        weight = sent[f"conv{number + 1}.weight"]
        own = honest[f"conv{number + 1}.weight"]
        other = np.setdiff1d(np.arange(len(weight)), chosen)
        np.testing.assert_array_equal(weight[other], own[other])
        for k, channel in enumerate(chosen):
            filters = weight[channel].copy()
            place = (before[step.parent[k]], *step.tap[k])
            assert filters[place] == pytest.approx((0.3, 0.2)[number] * step.sign[k])
            filters[place] = 0.0
            assert 0 < np.abs(filters[before]).max() < 0.002
            foreign = np.setdiff1d(np.arange(weight.shape[1]), before)
            if spare == "noise":
                assert np.abs(filters[foreign]).max(initial=0) < 0.002
            else:
                np.testing.assert_array_equal(filters[foreign], own[channel][foreign])
        before = chosen
    assert not np.array_equal(values["channel1"], np.arange(len(values["channel1"])))


def test_silent_channels_give_nothing_whatever_the_image():
    chain = network("max")
    sent, values = OURS.corrupt(chain, initial_weights(chain, 0), 5)
    images = np.concatenate([noisy(chain, range(50)).round(), noisy(chain, range(50))])
    maps = torch.relu(load(chain, sent, torch.float64).conv1(torch.from_numpy(images)))
    spare = np.setdiff1d(np.arange(10), values["channel1"])
    assert maps[:, spare].abs().max() == 0
    assert maps[:, values["channel1"]].abs().max() > 0


def test_corrupting_changes_no_input_and_repeats():
    chain = network()
    honest = initial_weights(chain, 0)
    before = {name: value.copy() for name, value in honest.items()}
    first, second = (PAIRED.corrupt(chain, honest, 5) for _ in range(2))
    for name, value in honest.items():
        np.testing.assert_array_equal(value, before[name])
        np.testing.assert_array_equal(first[0][name], second[0][name])
    assert first[0].keys() == honest.keys()
    other = PAIRED.corrupt(chain, honest, 6)[1]
    assert not np.array_equal(first[1]["channel2"], other["channel2"])


@pytest.mark.parametrize("reduce", ["stride", "max", "average"])
def test_references_are_what_constant_images_give(reduce):
    chain = network(reduce, "sigmoid" if reduce == "average" else "relu")
    weights = initial_weights(chain, 0)
    images = np.stack([np.full(chain.input, level) for level in (0.0, 0.5, 1.0)])
    expected = features_of(chain, weights, images)
    np.testing.assert_allclose(references(chain, weights), expected, atol=1e-12)
