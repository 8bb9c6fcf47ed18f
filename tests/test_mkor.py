"""MKOR's reconstruction and class fishing: the images that come back."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import mkor_cases
from chains import conv, shared
from gradleak.attacks.mkor.attack import Mkor
from gradleak.attacks.mkor.free_direction import settle
from gradleak.attacks.mkor.head import Head
from gradleak.attacks.mkor.recount import is_needed, whole
from gradleak.attacks.optimization.class_fishing import ClassFishing
from gradleak.data import embedded
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.servers.class_fishing import ClassFishingServer
from gradleak.servers.mkor import MkorServer
from mkor_cases import CLASSES, NAIVE, OURS, PAIRED, batch, error, given, network, noisy, seen

UNTOUCHED = MkorServer(classifier="untouched")
ORDER, ABSENT, CROSS = [2, 0, 3, 1], [2, 0, 0, 2, 2, 3], "cross_entropy"
WIDE = {"padding": 2, "padding_mode": "replicate", "bias": True, "activation": "relu"}
FLAT = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES),))


def counted(found):
    return dict(zip(found.classes, found.counts, strict=True))


MEANS = [
    # A strided network has regions of one pixel, so nothing but arithmetic is lost.
    *((server, "raw_logits", "relu", ORDER, {}, 1.0, 2e-4) for server in (NAIVE, PAIRED)),
    # Section 3.6: any slope of a Sigmoid.
    (NAIVE.model_copy(update={"beta": 3.0}), "raw_logits", "sigmoid", ORDER, {}, 1.0, 1e-4),
    *((server, CROSS, "relu", ABSENT, {"rows": "path"}, 1.0, 5e-3) for server in (NAIVE, PAIRED)),
    *((each, CROSS, "relu", ABSENT, {"rows": "all"}, 1.0, 5e-3) for each in (NAIVE, PAIRED, OURS)),
    # Clipping costs raw logits nothing, and is told from absent classes.
    (NAIVE, "raw_logits", "relu", ORDER, {}, 0.01, 2e-4),
    (OURS, CROSS, "relu", [0, 0, 0, 1, 1, 2], {"rows": "all"}, 0.3, 5e-3),
]


@pytest.mark.parametrize(
    ("server", "loss", "activation", "labels", "options", "clip", "limit"), MEANS
)
def test_classes_come_back_as_their_means(server, loss, activation, labels, options, clip, limit):
    view, images = given(server, labels, loss, network(activation=activation))
    for value in view.gradients.values():
        value *= clip
    found = Mkor(native=4, **options).run(view, 0)
    assert counted(found) == Counter(labels)
    assert max(error(found, images, labels).values()) < limit


def test_float32_raw_logits_come_to_rounding():
    view, images = given(NAIVE, ORDER, "raw_logits", precision="float32")
    mse = np.mean((Mkor(native=4).run(view, 0).images - images[np.argsort(ORDER)]) ** 2)
    assert -10 * np.log10(mse) > 120


MANY, SOME = (9, 14, 6, 11, 3, 17, 8, 12), (0, 14, 9, 17, 4, 12, 11, 13)


@pytest.mark.parametrize(("counts", "inverted"), [(MANY, False), (MANY, True), (SOME, False)])
def test_counts_are_right_where_a_gray_image_is_unlike_the_batch(counts, inverted):
    """No place of an image has ink of two classes, and those of a class are alike."""
    chain = Chain("fc", (1, 8, 8), (LinearSpec(len(counts)),))
    labels = np.repeat(np.arange(len(counts)), counts)
    ink = np.random.default_rng(0).uniform(0.2, 1.0, chain.input)
    owner = np.arange(ink.size).reshape(ink.shape) % (2 * len(counts))
    images = np.stack([np.where(owner == label, ink, 0.0) for label in labels])
    view = seen(chain, UNTOUCHED, 1.0 - images if inverted else images, labels)
    gray = Head(chain, view.weights, view.loss).probabilities(np.full((1, 64), 0.5))[0]
    assert np.abs(80 * (gray - view.gradients["fc1.bias"]) - counts).max() > 1
    assert counted(Mkor(rows="all").run(view, 0)) == Counter(labels.tolist())


def test_counts_of_digits():
    """Probabilities at class means are those of images nearly, and digits of a class are unlike."""
    chain = Chain("code", (1, 28, 28), (conv(1, 5, **WIDE), conv(1, 5, **WIDE), LinearSpec(10)))
    data = embedded.build("digits", "test")
    picked = np.random.default_rng(0).choice(len(data.images), 100, replace=False)
    images, labels = data.images[picked] / 255.0, np.asarray(data.labels)[picked]
    true = np.bincount(labels, minlength=10)
    for bias, most in ((0.0, 4), (5.0, 0)):
        view = seen(chain, UNTOUCHED.model_copy(update={"output_bias": bias}), images, labels)
        found = Mkor(rows="all", free="range" if bias else "median").run(view, 0)
        off = np.abs(np.bincount(found.classes, found.counts, 10) - true)
        assert off.sum() <= most and sum(found.counts) == 100


def test_noise_leaves_counts_to_a_gray_image_and_they_add_up_by_largest_remainder():
    values = np.array([2.4, 1.4, 3.2])
    assert is_needed(values, 7) and not is_needed(values, 9)
    assert not is_needed(np.array([2.1, 0.9, 4.0]), 7)
    assert whole(np.array([2.6, -0.3, 3.9, 0.8]), 7).tolist() == [2, 0, 4, 1]


def test_an_output_bias_gives_all_classes_but_one():
    view, images = given(OURS.model_copy(update={"output_bias": 10.0}), range(4))
    errors = error(Mkor(rows="all", native=4).run(view, 0), images, range(4))
    assert max(errors[label] for label in (1, 2, 3)) < 2e-3


def test_without_an_output_bias_classes_differ_by_one_image():
    """Cross-entropy leaves one direction open, the same for all classes of a full batch."""
    chain, labels = network(), range(CLASSES)
    # Far from 0 and 1, so that nothing is clipped.
    images = 0.4 + 0.2 * batch(chain, labels)
    off = Mkor(rows="all", native=4).run(seen(chain, OURS, images, labels), 0).images - images
    size = np.linalg.svd(off.reshape(CLASSES, -1), compute_uv=False)
    assert size[1] < 0.02 * size[0]
    ignored = Mkor(coupling="ignore", native=4).run(seen(chain, PAIRED, images, labels), 0)
    assert np.mean(off**2) < 0.1 * np.mean((ignored.images - images[list(ignored.classes)]) ** 2)


def test_neighbours_settle_the_open_direction_of_many_smooth_images():
    chain = network(classes=40, width=120)
    labels = np.arange(40)
    draw = np.random.default_rng(3)
    grid = np.linspace(0, 1, 16)
    # Two flat parts, parted by an edge that lies elsewhere in each image.
    images = []
    for a, r, lo, hi in draw.uniform([0, 0.2, 0, 0.8], [1.5, 1.1, 0.2, 1], (40, 4)):
        beyond = grid[:, None] * np.cos(a) + grid[None] * np.sin(a) > r
        images.append(np.where(beyond, *draw.permutation([lo, hi]))[None])
    images = np.stack(images)
    view = seen(chain, OURS, images, labels)
    found = (Mkor(rows="all", free=free).run(view, 0).images for free in ("median", "range"))
    median, middle = (np.mean((each - images) ** 2) for each in found)
    assert median < 0.5 * middle


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_the_open_direction_is_settled_without_neighbours(shape):
    """A grid one region wide has none across; of one region, the middle of the range decides."""
    dark = np.random.default_rng(0).uniform(0.1, 0.3, (10, 2, *shape))
    found, middle = (settle(dark, np.full(10, 0.5), kind) for kind in ("median", "range"))
    assert (dark + 0.5 * found).min() >= 0 and (dark + 0.5 * found).max() <= 1
    assert shape != (1, 1) or found == pytest.approx(middle, rel=1e-12)  # one equation, no sums


def test_a_batch_of_one_class_gives_its_mean():
    view, images = given(OURS, [1] * 6)
    found = Mkor(rows="all", native=4).run(view, 0)
    assert counted(found) == {1: 6}
    assert error(found, images, [1] * 6)[1] < 5e-3


def test_average_pools_give_means_and_least_squares_sharpens_them():
    server, chain = NAIVE.model_copy(update={"beta": 0.2}), network("average", "sigmoid")
    view, images = given(server, range(4), "raw_logits", chain)
    kinds = "direct", "average", "least_squares"
    direct, average, squares = (Mkor(estimate=kind).run(view, 0).images for kind in kinds)
    mean, sharp = (np.mean((found - images) ** 2) for found in (average, squares))
    assert sharp < 0.7 * mean and mean < np.var(images)
    # Regions of 4x4 that begin at every pixel; elsewhere black.
    inside = direct != view.low
    assert 0.5 < inside.mean() < 1
    assert np.mean((direct - images)[inside] ** 2) < np.var(images)


ALL_PIXELS = [(NAIVE, "path", "raw_logits", ORDER, 1e-5), (OURS, "all", CROSS, ABSENT, 1e-3)]


@pytest.mark.parametrize(("server", "rows", "loss", "labels", "limit"), ALL_PIXELS)
def test_a_network_that_keeps_all_pixels_gives_them_back(server, rows, loss, labels, limit):
    """The authors' modified network: two copies of the image, and one fully connected layer."""
    specs = (conv(3, 5, **WIDE), conv(3, 5, **WIDE), LinearSpec(CLASSES))
    chain = Chain("net", (3, 16, 16), specs)
    images = noisy(chain, labels)
    found = Mkor(rows=rows).run(seen(chain, server, images, labels, loss), 0)
    assert max(error(found, images, labels).values()) < limit


def test_smoothing_is_a_mean_of_neighbours_weighted_by_distance():
    view, _ = given(NAIVE, range(4), "raw_logits", network("max"))
    plain = Mkor().run(view, 0).images
    # A narrower range tells the order: first the filter, then the limits.
    smooth = Mkor(smooth=5).run(replace(view, low=0.3, high=0.7), 0).images
    weights = np.exp(-np.add.outer(np.arange(-2, 3) ** 2, np.arange(-2, 3) ** 2) / 200.0)
    padded = np.pad(plain, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))
    expected = (windows * weights).sum(axis=(-2, -1)) / weights.sum()
    assert plain.min() < 0.3 and plain.max() > 0.7
    np.testing.assert_allclose(smooth, np.clip(expected, 0.3, 0.7), atol=1e-6)


def test_a_single_layer_needs_no_path():
    """Eq. (6): one fully connected layer on the image itself; without a bias, up to brightness."""
    labels = [3, 0, 2]
    images = noisy(FLAT, labels)
    unbiased = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES, bias=False),))
    views = (seen(chain, UNTOUCHED, images, labels, "raw_logits") for chain in (FLAT, unbiased))
    whole, found = (Mkor().run(view, 0) for view in views)
    assert max(error(whole, images, labels).values()) < 1e-6
    for k, label in enumerate(found.classes):
        true, image = images[labels.index(label)], found.images[k]
        assert np.corrcoef(true.ravel(), image.ravel())[0, 1] > 1 - 1e-9
        assert not np.allclose(true, image, atol=0.05)


@pytest.mark.parametrize(
    "server", [NAIVE, MkorServer(spare="silent", noise=1e-6, sigma=1e-6)], ids=["naive", "paired"]
)
def test_normalised_batches_come_back_up_to_brightness(server):
    """Section 3.5: γ x̂, calibrated by the histogram."""
    view, images = given(server, ORDER, "raw_logits", network(norm="batch"))
    found, true = Mkor(native=4).run(view, 0), images[np.argsort(ORDER)]
    assert np.corrcoef(found.images.ravel(), true.ravel())[0, 1] > 1 - 1e-4
    low, high = true.min(), true.max()
    np.testing.assert_allclose(found.images, (true - low) / (high - low), atol=0.02)


def test_parallel_paths_survive_dropout():
    """Section 3.5; a class whose every path was dropped is missing, not wrong."""
    chain = network(width=120, dropout=0.5)
    images, lost = batch(chain, ORDER), []
    for paths in (1, 12):
        server = PAIRED.model_copy(update={"paths": paths})
        sent, values = server.corrupt(chain, initial_weights(chain, 0), 5)
        assert values["nodes"].shape == (CLASSES, 2 * paths)
        lost.append(8 * CLASSES)
        for seed in range(8):
            gradients = shared(chain, sent, images, ORDER, loss="raw_logits", seed=seed)
            view = mkor_cases.received(chain, sent, gradients, values, 4, "raw_logits")
            with suppress(NumericsError):
                found = Mkor(native=4).run(view, 0)
                assert max(error(found, images, ORDER).values()) < 1e-2
                lost[-1] -= len(found.classes)
    assert lost[0] > 12 and lost[1] <= 2


def test_pruned_features_are_told_from_black_ones():
    view, images = given(NAIVE, ORDER, "raw_logits", network(activation="sigmoid"))
    view.gradients["fc1.weight"][:, ::7] = 0.0
    found = Mkor(native=4).run(view, 0)
    assert np.abs(found.images - images[np.argsort(ORDER)]).max() < 0.02


def test_fishing_leaves_the_gradient_of_one_class():
    view, images = given(ClassFishingServer(target=2, bias=20.0), [2, 0, 2, 1, 3])
    alone = shared(view.chain, view.weights, images[[0, 2]], [2, 2])
    for name in ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"):
        np.testing.assert_allclose(view.gradients[name], alone[name] * 2 / 5, atol=1e-7)
    # It answers for its class alone.
    how, attack = {"precision": "float32", "method": "class_fishing"}, ClassFishing(iterations=20)
    cases = (2, [2, 0, 1, 3]), (1, [2, 0])
    views = [given(ClassFishingServer(target=label), labels, **how)[0] for label, labels in cases]
    found, failed = (attack.run_many([view], [0])[0] for view in views)
    assert (counted(found), found.partial, len(found.images)) == ({2: 1}, True, 1)
    assert isinstance(failed, NumericsError) and "No image of class 1" in str(failed)
