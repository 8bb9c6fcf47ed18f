"""MKOR's reconstruction and class fishing: the images that come back."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

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
from mkor_cases import CLASSES, NAIVE, OURS, PAIRED, batch, error, network, noisy, received, seen

UNTOUCHED = MkorServer(classifier="untouched")
FLAT = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES),))


def counted(found):
    return dict(zip(found.classes, found.counts, strict=True))


# --- Reconstruction ------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [NAIVE, PAIRED], ids=["naive", "paired"])
def test_raw_logits_give_every_class_exactly(server):
    """A strided network has regions of one pixel, so nothing but arithmetic is lost."""
    chain, labels = network(), [2, 0, 3, 1]
    images = batch(chain, labels)
    found = Mkor(native=4).run(seen(chain, server, images, labels, "raw_logits"), 0)
    assert found.classes == (0, 1, 2, 3)
    assert found.counts == (1, 1, 1, 1)
    assert max(error(found, images, labels).values()) < 2e-4


def test_float32_raw_logits_come_to_rounding():
    chain, labels = network(), [2, 0, 3, 1]
    images = batch(chain, labels)
    view = seen(chain, NAIVE, images, labels, "raw_logits", "float32")
    mse = np.mean((Mkor(native=4).run(view, 0).images - images[np.argsort(labels)]) ** 2)
    assert -10 * np.log10(mse) > 120


@pytest.mark.parametrize(
    ("server", "rows"),
    [(NAIVE, "path"), (NAIVE, "all"), (PAIRED, "path"), (PAIRED, "all"), (OURS, "all")],
)
def test_cross_entropy_with_an_absent_class_gives_class_means(server, rows):
    chain, labels = network(), [2, 0, 0, 2, 2, 3]
    images = batch(chain, labels)
    found = Mkor(rows=rows, native=4).run(seen(chain, server, images, labels), 0)
    assert counted(found) == Counter(labels)
    assert max(error(found, images, labels).values()) < 5e-3


MANY = (9, 14, 6, 11, 3, 17, 8, 12)


def dark(chain, counts):
    """Images with no place that two classes ink, alike within a class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    ink = np.random.default_rng(0).uniform(0.2, 1.0, chain.input)
    owner = np.arange(ink.size).reshape(ink.shape) % (2 * len(counts))
    return np.stack([np.where(owner == label, ink, 0.0) for label in labels]), labels


@pytest.mark.parametrize(
    ("counts", "inverted"),
    [(MANY, False), (MANY, True), ((0, 14, 9, 17, 4, 12, 11, 13), False)],
    ids=["dark", "bright", "absent"],
)
def test_counts_are_right_where_a_gray_image_is_unlike_the_batch(counts, inverted):
    chain = Chain("fc", (1, 8, 8), (LinearSpec(len(counts)),))
    images, labels = dark(chain, counts)
    images = 1.0 - images if inverted else images
    view = seen(chain, UNTOUCHED, images, labels)
    gray = Head(chain, view.weights, view.loss).probabilities(np.full((1, 64), 0.5))[0]
    assert np.abs(80 * (gray - view.gradients["fc1.bias"]) - counts).max() > 1
    assert counted(Mkor(rows="all").run(view, 0)) == Counter(labels.tolist())


def test_counts_of_digits():
    """Probabilities at class means are those of images nearly, and digits of a class are unlike."""
    conv_ = {"padding": 2, "padding_mode": "replicate", "bias": True, "activation": "relu"}
    chain = Chain("code", (1, 28, 28), (conv(1, 5, **conv_), conv(1, 5, **conv_), LinearSpec(10)))
    data = embedded.build("digits", "test")
    picked = np.random.default_rng(0).choice(len(data.images), 100, replace=False)
    images, labels = data.images[picked] / 255.0, np.asarray(data.labels)[picked]
    true = np.bincount(labels, minlength=10)
    for bias, most in ((0.0, 4), (5.0, 0)):
        view = seen(chain, UNTOUCHED.model_copy(update={"output_bias": bias}), images, labels)
        found = Mkor(rows="all", free="range" if bias else "median").run(view, 0)
        off = np.abs(np.bincount(found.classes, found.counts, 10) - true)
        assert off.sum() <= most and sum(found.counts) == 100


def test_noise_leaves_counts_to_a_gray_image():
    values = np.array([2.4, 1.4, 3.2])
    assert is_needed(values, 7) and not is_needed(values, 9)
    assert not is_needed(np.array([2.1, 0.9, 4.0]), 7)


def test_counts_add_up_by_largest_remainder():
    assert whole(np.array([2.6, -0.3, 3.9, 0.8]), 7).tolist() == [2, 0, 4, 1]


def test_paths_of_an_untouched_classifier_are_refused():
    chain, labels = network(), [0, 1, 2, 3]
    with pytest.raises(NumericsError, match="set rows: all"):
        Mkor().run(seen(chain, OURS, batch(chain, labels), labels), 0)


def test_an_output_bias_gives_all_classes_but_one():
    chain, labels = network(), [0, 1, 2, 3]
    images = batch(chain, labels)
    server = OURS.model_copy(update={"output_bias": 10.0})
    found = Mkor(rows="all", native=4).run(seen(chain, server, images, labels), 0)
    errors = error(found, images, labels)
    assert max(errors[label] for label in (1, 2, 3)) < 2e-3


def test_without_an_output_bias_classes_differ_by_one_image():
    """Cross-entropy leaves one direction open, the same for all classes of a full batch."""
    chain, labels = network(), [0, 1, 2, 3]
    # Far from 0 and 1, so that nothing is clipped.
    images = 0.4 + 0.2 * batch(chain, labels)
    found = Mkor(rows="all", native=4).run(seen(chain, OURS, images, labels), 0)
    off = found.images - images
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
    images = np.stack(
        [
            np.where(
                grid[:, None] * np.cos(a) + grid[None] * np.sin(a) > r, *draw.permutation([lo, hi])
            )
            for a, r, lo, hi in draw.uniform([0, 0.2, 0, 0.8], [1.5, 1.1, 0.2, 1], (40, 4))
        ]
    )[:, None]
    view = seen(chain, OURS, images, labels)
    errors = {
        free: np.mean((Mkor(rows="all", free=free).run(view, 0).images - images) ** 2)
        for free in ("median", "range")
    }
    assert errors["median"] < 0.5 * errors["range"]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_the_open_direction_is_settled_without_neighbours(shape):
    """A grid one region wide has none across; of one region, the middle of the range decides."""
    dark = np.random.default_rng(0).uniform(0.1, 0.3, (10, 2, *shape))
    found, middle = (settle(dark, np.full(10, 0.5), kind) for kind in ("median", "range"))
    assert (dark + 0.5 * found).min() >= 0 and (dark + 0.5 * found).max() <= 1
    assert shape != (1, 1) or found == pytest.approx(middle, rel=1e-12)  # one equation, no sums


def test_inverse_sigmoids_are_exact_without_a_pool():
    """Section 3.6, any slope: a strided network keeps pixels apart."""
    chain, labels = network(activation="sigmoid"), [3, 1, 0, 2]
    images = batch(chain, labels)
    server = MkorServer(convolutions="naive", classifier="naive", beta=3.0)
    found = Mkor(native=4).run(seen(chain, server, images, labels, "raw_logits"), 0)
    assert max(error(found, images, labels).values()) < 1e-4


def test_average_pools_give_means_and_least_squares_sharpens_them():
    chain, labels = network("average", "sigmoid"), [0, 1, 2, 3]
    images = batch(chain, labels)
    server = MkorServer(convolutions="naive", classifier="naive", beta=0.2)
    view = seen(chain, server, images, labels, "raw_logits")
    direct, average, squares = (
        Mkor(estimate=kind).run(view, 0).images for kind in ("direct", "average", "least_squares")
    )
    mean, sharp = (np.mean((found - images) ** 2) for found in (average, squares))
    assert mean < np.var(images)
    # Regions of 4x4 that begin at every pixel; elsewhere black.
    inside = direct != view.low
    assert 0.5 < inside.mean() < 1
    assert np.mean((direct - images)[inside] ** 2) < np.var(images)
    assert sharp < 0.7 * mean


@pytest.mark.parametrize(
    ("server", "rows", "loss", "labels", "limit"),
    [
        (NAIVE, "path", "raw_logits", [2, 0, 3, 1], 1e-5),
        (OURS, "all", "cross_entropy", [2, 0, 0, 2, 2, 3], 1e-3),
    ],
)
def test_a_network_that_keeps_all_pixels_gives_them_back(server, rows, loss, labels, limit):
    """The authors' modified network: two copies of the image, and one fully connected layer."""
    more = {"padding": 2, "bias": True, "activation": "relu", "padding_mode": "replicate"}
    specs = (conv(3, 5, **more), conv(3, 5, **more), LinearSpec(CLASSES))
    chain = Chain("net", (3, 16, 16), specs)
    images = noisy(chain, labels)
    found = Mkor(rows=rows).run(seen(chain, server, images, labels, loss), 0)
    assert max(error(found, images, labels).values()) < limit


def test_smoothing_is_a_mean_of_neighbours_weighted_by_distance():
    chain, labels = network("max"), [0, 1, 2, 3]
    view = seen(chain, NAIVE, batch(chain, labels), labels, "raw_logits")
    plain = Mkor().run(view, 0).images
    # A narrower range tells the order: first the filter, then the limits.
    smooth = Mkor(smooth=5).run(replace(view, low=0.3, high=0.7), 0).images
    weights = np.exp(-np.add.outer(np.arange(-2, 3) ** 2, np.arange(-2, 3) ** 2) / 200.0)
    padded = np.pad(plain, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))
    expected = (windows * weights).sum(axis=(-2, -1)) / weights.sum()
    assert plain.min() < 0.3 and plain.max() > 0.7
    np.testing.assert_allclose(smooth, np.clip(expected, 0.3, 0.7), atol=1e-6)


def test_a_batch_of_one_class_gives_its_mean():
    chain, labels = network(), [1] * 6
    images = batch(chain, labels)
    found = Mkor(rows="all", native=4).run(seen(chain, OURS, images, labels), 0)
    assert (found.classes, found.counts) == ((1,), (6,))
    assert error(found, images, labels)[1] < 5e-3


def test_a_single_layer_needs_no_path():
    """Eq. (6): one fully connected layer on the image itself."""
    labels = [3, 0, 2]
    images = noisy(FLAT, labels)
    found = Mkor().run(seen(FLAT, UNTOUCHED, images, labels, "raw_logits"), 0)
    assert max(error(found, images, labels).values()) < 1e-6


def test_without_a_bias_the_scale_is_unknown():
    """Supplement 6: the image comes back up to brightness."""
    chain = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES, bias=False),))
    labels = [3, 0, 2]
    images = noisy(chain, labels)
    found = Mkor().run(seen(chain, UNTOUCHED, images, labels, "raw_logits"), 0)
    for k, label in enumerate(found.classes):
        true, image = images[labels.index(label)], found.images[k]
        assert np.corrcoef(true.ravel(), image.ravel())[0, 1] > 1 - 1e-9
        assert not np.allclose(true, image, atol=0.05)


def test_clipping_costs_raw_logits_nothing():
    chain, labels = network(), [2, 0, 3, 1]
    images = batch(chain, labels)
    view = seen(chain, NAIVE, images, labels, "raw_logits")
    plain = Mkor().run(view, 0)
    for value in view.gradients.values():
        value *= 0.01
    clipped = Mkor().run(view, 0)
    assert clipped.counts == plain.counts
    np.testing.assert_allclose(clipped.images, plain.images, atol=1e-5)


@pytest.mark.parametrize(
    "server", [NAIVE, MkorServer(spare="silent", noise=1e-6, sigma=1e-6)], ids=["naive", "paired"]
)
def test_normalised_batches_come_back_up_to_brightness(server):
    """Section 3.5: γ x̂, calibrated by the histogram."""
    chain, labels = network(norm="batch"), [2, 0, 3, 1]
    images = batch(chain, labels)
    found = Mkor(native=4).run(seen(chain, server, images, labels, "raw_logits"), 0)
    true = images[np.argsort(labels)]
    assert np.corrcoef(found.images.ravel(), true.ravel())[0, 1] > 1 - 1e-4
    low, high = true.min(), true.max()
    np.testing.assert_allclose(found.images, (true - low) / (high - low), atol=0.02)


def test_parallel_paths_survive_dropout():
    """Section 3.5; a class whose every path was dropped is missing, not wrong."""
    chain, labels = network(width=120, dropout=0.5), [2, 0, 3, 1]
    images = batch(chain, labels)
    lost = []
    for paths in (1, 12):
        server = MkorServer(beta=0.05, spare="silent", noise=1e-6, sigma=1e-6, paths=paths)
        sent, values = server.corrupt(chain, initial_weights(chain, 0), 5)
        assert values["nodes"].shape == (CLASSES, 2 * paths)
        missing = 0
        for seed in range(8):
            gradients = shared(chain, sent, images, labels, loss="raw_logits", seed=seed)
            view = received(chain, sent, gradients, values, 4, "raw_logits")
            try:
                found = Mkor(native=4).run(view, 0)
            except NumericsError:
                missing += CLASSES
                continue
            missing += CLASSES - len(found.classes)
            assert max(error(found, images, labels).values()) < 1e-2
        lost.append(missing)
    assert lost[0] > 12
    assert lost[1] <= 2


def test_clipping_is_told_from_absent_classes_under_cross_entropy():
    chain, labels = network(), [0, 0, 0, 1, 1, 2]
    images = batch(chain, labels)
    view = seen(chain, OURS, images, labels)
    for value in view.gradients.values():
        value *= 0.3
    found = Mkor(rows="all", native=4).run(view, 0)
    assert counted(found) == Counter(labels)
    assert max(error(found, images, labels).values()) < 5e-3


def test_pruned_features_are_told_from_black_ones():
    chain, labels = network(activation="sigmoid"), [3, 1, 0, 2]
    images = batch(chain, labels)
    server = MkorServer(convolutions="naive", classifier="naive", beta=1.0)
    view = seen(chain, server, images, labels, "raw_logits")
    view.gradients["fc1.weight"][:, ::7] = 0.0
    found = Mkor(native=4).run(view, 0)
    assert np.abs(found.images - images[np.argsort(labels)]).max() < 0.02


# --- Class fishing -------------------------------------------------------------------------------


def test_fishing_leaves_the_gradient_of_one_class():
    chain, labels = network(), [2, 0, 2, 1, 3]
    images = batch(chain, labels)
    view = seen(chain, ClassFishingServer(target=2, bias=20.0), images, labels)
    picked = np.flatnonzero(np.array(labels) == 2)
    alone = shared(chain, view.weights, images[picked], [2, 2])
    for name in ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"):
        np.testing.assert_allclose(view.gradients[name], alone[name] * 2 / 5, atol=1e-7)


def test_fishing_answers_for_its_class_alone():
    chain, how = network(), ("cross_entropy", "float32", "class_fishing")

    def fished(target, labels):
        images = batch(chain, labels)
        view = seen(chain, ClassFishingServer(target=target), images, labels, *how)
        return ClassFishing(iterations=20).run_many([view], [0])[0]

    found = fished(2, [2, 0, 1, 3])
    assert (found.classes, found.counts, found.partial) == ((2,), (1,), True)
    assert len(found.images) == 1
    found = fished(1, [2, 0])
    assert isinstance(found, NumericsError)
    assert "No image of class 1" in str(found)
