"""MKOR: its parameters, what they do to gradients, and the images that come back."""

from collections import Counter

import numpy as np
import pytest
import torch

from chains import conv
from gradleak.attacks.base import AttackerView
from gradleak.attacks.class_fishing import ClassFishing
from gradleak.attacks.mkor import Mkor
from gradleak.errors import ConfigError, NumericsError
from gradleak.gradients import capture
from gradleak.inversion.features import describers
from gradleak.inversion.pixels import Layout, estimate
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.files import fingerprint
from gradleak.models.initial import initial_weights
from gradleak.servers.class_fishing import ClassFishingServer
from gradleak.servers.mkor import MkorServer, references
from gradleak.servers.plan import plan
from gradleak.servers.secret import Secret

CLASSES = 4
KINDS = {"relu": "max", "sigmoid": "average"}


def network(
    reduce="stride", activation="relu", classes=CLASSES, width=60, side=16, norm="none", dropout=0.0
):
    """Two convolutions that each halve the image, then a classifier of three layers."""
    more = {"padding": 1, "bias": True, "activation": activation, "padding_mode": "replicate"}
    more |= {"norm": norm, "stride": 2} if reduce == "stride" else {"pool": reduce}
    act = Activation(activation)
    hidden = [LinearSpec(width, True, act, dropout=dropout) for _ in range(2)]
    # Room for one shift layer with minima, for two without.
    specs = (conv(10, 3, **more), conv(26, 3, **more), *hidden, LinearSpec(classes))
    return Chain("net", (1, side, side), specs)


def batch(chain, labels, seed=0):
    """Images with values in [0, 1], smooth enough for neighbours to be alike."""
    draw = np.random.default_rng(seed)
    coarse = draw.uniform(0, 1, (len(labels), chain.input[0], 4, 4))
    factor = chain.input[1] // 4
    return coarse.repeat(factor, 2).repeat(factor, 3)


def noisy(chain, labels, seed=0):
    return np.random.default_rng(seed).uniform(0, 1, (len(labels), *chain.input))


def seen(chain, server, images, labels, loss="cross_entropy", precision="float64", method="mkor"):
    """What the malicious server sees of one batch."""
    sent, values = server.corrupt(chain, initial_weights(chain, 0), 5)
    shared = capture(
        chain,
        sent,
        images,
        np.asarray(labels),
        precision=precision,
        device=torch.device("cpu"),
        loss=loss,
    )
    mark = fingerprint(sent)
    settings = {"shifts": getattr(server, "shifts", None)}
    secret = Secret(method, mark, settings, values)
    return AttackerView(chain, sent, shared, None, 0.0, 1.0, loss, len(labels), None, secret, mark)


NAIVE = MkorServer(convolutions="naive", classifier="naive")
OURS = MkorServer(classifier="untouched", beta=0.05, spare="silent", noise=1e-6)
PAIRED = MkorServer(beta=0.05, spare="silent", noise=1e-6, sigma=1e-6)


def error(found, images, labels):
    """Largest error of each image against the mean of its class's images."""
    labels = np.asarray(labels)
    return {
        label: float(np.abs(found.images[k] - images[labels == label].mean(axis=0)).max())
        for k, label in enumerate(found.classes)
    }


# --- Paths through the convolutions ------------------------------------------------------------


def test_vgg16_has_the_channels_and_regions_of_the_paper():
    layers = []
    sizes = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    for number, filters in enumerate(sizes, start=1):
        pool = "max" if number in (2, 4, 7, 10, 13) else "none"
        more = {"padding_mode": "replicate", "pool": pool}
        layers.append(conv(filters, 3, padding=1, bias=True, activation="relu", **more))
    chain = Chain("vgg", (3, 224, 224), (*layers, LinearSpec(10)))
    paths = plan(chain)
    counts = [len(step.parent) for step in paths.steps]
    assert counts == [6] * 6 + [24] * 3 + [96] * 3 + [384]
    # Eq. (14), (15): I + J = 5, shifts of 4, 8 and 16 pixels.
    assert (paths.stride, paths.side, paths.average) == (32, 32, False)
    assert sorted(set(paths.first[:, 0])) == [4 * k for k in range(8)]
    # 332,160 of the last convolution's 2,359,808 parameters: 14 % (supplement 7).
    block = 384 * 96 * 9 + 384
    assert block == 332_160
    assert block / chain.convolutions[-1].shape.filters / (512 * 9 + 1) == pytest.approx(
        0.14, abs=0.001
    )


@pytest.mark.parametrize("reduce", ["max", "average"])
def test_describers_are_what_their_regions_hold(reduce):
    activation = {"max": "relu", "average": "sigmoid"}[reduce]
    chain = network(reduce, activation)
    beta = 1.0 if activation == "relu" else 0.01
    sent, values = MkorServer(convolutions="naive", classifier="naive", beta=beta).corrupt(
        chain, initial_weights(chain, 0), 1
    )
    images = noisy(chain, range(3))
    with torch.no_grad():
        features = load(chain, sent, torch.float64).features(torch.from_numpy(images)).numpy()
    values["references"] = references(chain, sent)
    paths = plan(chain)
    secret = Secret("mkor", "", {}, values)
    found = describers(chain, sent, paths, secret, features)
    for channel in range(found.shape[1]):
        for row in range(found.shape[2]):
            for column in range(found.shape[3]):
                top, left = paths.first[channel] + paths.stride * np.array([row, column])
                part = images[:, 0, top : top + paths.side, left : left + paths.side]
                whole = top >= 0 and left >= 0 and part.shape[1:] == (paths.side, paths.side)
                if not whole:
                    continue
                if reduce == "average":
                    expected, tolerance = part.mean(axis=(1, 2)), 5e-3
                else:
                    take = np.max if paths.sign[channel] > 0 else np.min
                    expected, tolerance = take(part, axis=(1, 2)), 1e-5
                np.testing.assert_allclose(found[:, channel, row, column], expected, atol=tolerance)


def test_bounds_hold_every_pixel_and_are_the_tightest():
    """Eq. (17) to (19) against a loop over pixels and regions."""
    chain = network("max")
    sent, values = NAIVE.corrupt(chain, initial_weights(chain, 0), 1)
    images = noisy(chain, range(2))
    with torch.no_grad():
        features = load(chain, sent, torch.float64).features(torch.from_numpy(images)).numpy()
    paths = plan(chain)
    found = describers(chain, sent, paths, Secret("mkor", "", {}, values), features)
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
    errors = []
    for shifts in (0, 1):
        server = MkorServer(convolutions="naive", classifier="naive", shifts=shifts)
        found = Mkor().run(seen(chain, server, images, labels, "raw_logits"), 0)
        errors.append(np.mean((found.images - images) ** 2))
    assert errors[1] < 0.5 * errors[0]


# --- What the weights look like ------------------------------------------------------------------


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
            if spare == "noise" and len(foreign):
                assert np.abs(filters[foreign]).max() < 0.002
            else:
                np.testing.assert_array_equal(filters[foreign], own[channel][foreign])
        before = chosen
    assert not np.array_equal(values["channel1"], np.arange(len(values["channel1"])))


def test_silent_channels_give_nothing_whatever_the_image():
    chain = network("max")
    sent, values = OURS.corrupt(chain, initial_weights(chain, 0), 5)
    module = load(chain, sent, torch.float64)
    images = torch.from_numpy(
        np.concatenate([noisy(chain, range(50)).round(), noisy(chain, range(50))])
    )
    maps = torch.relu(module.conv1(images))
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
    assert dict(zip(found.classes, found.counts, strict=True)) == Counter(labels)
    assert max(error(found, images, labels).values()) < 5e-3


def test_paths_of_an_untouched_classifier_are_refused():
    chain, labels = network(), [0, 1, 2, 3]
    with pytest.raises(NumericsError, match="set rows: all"):
        Mkor().run(seen(chain, OURS, batch(chain, labels), labels), 0)


def test_an_output_bias_gives_all_classes_but_one():
    chain, labels = network(), [0, 1, 2, 3]
    images = batch(chain, labels)
    server = MkorServer(
        classifier="untouched", beta=0.05, spare="silent", noise=1e-6, output_bias=10.0
    )
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
    mean, sharp = (
        np.mean((Mkor(estimate=kind).run(view, 0).images - images) ** 2)
        for kind in ("average", "least_squares")
    )
    assert mean < np.var(images)
    assert sharp < 0.7 * mean


def test_a_batch_of_one_class_gives_its_mean():
    chain, labels = network(), [1] * 6
    images = batch(chain, labels)
    found = Mkor(rows="all", native=4).run(seen(chain, OURS, images, labels), 0)
    assert (found.classes, found.counts) == ((1,), (6,))
    assert error(found, images, labels)[1] < 5e-3


def test_a_single_layer_needs_no_path():
    """Eq. (6): one fully connected layer on the image itself."""
    chain = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES),))
    labels = [3, 0, 2]
    images = noisy(chain, labels)
    view = seen(chain, MkorServer(classifier="untouched"), images, labels, "raw_logits")
    found = Mkor().run(view, 0)
    assert max(error(found, images, labels).values()) < 1e-6


def test_without_a_bias_the_scale_is_unknown():
    """Supplement 6: the image comes back up to brightness."""
    chain = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES, bias=False),))
    labels = [3, 0, 2]
    images = noisy(chain, labels)
    view = seen(chain, MkorServer(classifier="untouched"), images, labels, "raw_logits")
    found = Mkor().run(view, 0)
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
            shared = capture(
                chain,
                sent,
                images,
                np.array(labels),
                precision="float64",
                device=torch.device("cpu"),
                loss="raw_logits",
                seed=seed,
            )
            mark = fingerprint(sent)
            secret = Secret("mkor", mark, {"shifts": None}, values)
            view = AttackerView(
                chain, sent, shared, None, 0.0, 1.0, "raw_logits", 4, None, secret, mark
            )
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
    assert dict(zip(found.classes, found.counts, strict=True)) == Counter(labels)
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
    alone = capture(
        chain,
        view.weights,
        images[picked],
        np.array([2, 2]),
        precision="float64",
        device=torch.device("cpu"),
    )
    for name in ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"):
        np.testing.assert_allclose(view.gradients[name], alone[name] * 2 / 5, atol=1e-7)


def test_fishing_answers_for_its_class_alone():
    chain, labels = network(), [2, 0, 1, 3]
    view = seen(
        chain,
        ClassFishingServer(target=2),
        batch(chain, labels),
        labels,
        "cross_entropy",
        "float32",
        "class_fishing",
    )
    (found,) = ClassFishing(iterations=20).run_many([view], [0])
    assert (found.classes, found.counts, found.partial) == ((2,), (1,), True)
    assert len(found.images) == 1
    (found,) = ClassFishing(iterations=20).run_many(
        [
            seen(
                chain,
                ClassFishingServer(target=1),
                batch(chain, [2, 0]),
                [2, 0],
                "cross_entropy",
                "float32",
                "class_fishing",
            )
        ],
        [0],
    )
    assert isinstance(found, NumericsError)
    assert "No image of class 1" in str(found)


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "chain", "words"),
    [
        (PAIRED, network(width=7), ["fc1 has room for 3 pairs", "4 classes", "widen it to 8"]),
        (NAIVE, network(width=3), ["fc1 has room for 3 nodes"]),
        (MkorServer(shifts=5), network(), ["room for 2 four-direction layers", "shifts: 5"]),
        (MkorServer(beta=[1.0] * 3), network(), ["beta has 3 values", "2 convolutions"]),
        (MkorServer(spare="silent"), network(activation="sigmoid"), ["silent needs relu"]),
        (ClassFishingServer(target=9), network(), ["target: 9 is no class", "from 0 to 3"]),
        (
            NAIVE,
            Chain("net", (3, 8, 8), (conv(2, 3, bias=True, activation="relu"), LinearSpec(4))),
            ["conv1 has 2 filters", "needs 3", "widen"],
        ),
        (
            NAIVE,
            Chain("net", (1, 8, 8), (conv(2, 3, activation="tanh"), LinearSpec(4))),
            ["conv1 is followed by 'tanh'"],
        ),
        (
            NAIVE,
            Chain(
                "net",
                (1, 8, 8),
                (conv(2, 3, padding=1, activation="relu", pool="max"), LinearSpec(4)),
            ),
            ["conv1 has no bias", "bias: true"],
        ),
    ],
)
def test_a_network_without_room_is_refused_by_name(server, chain, words):
    with pytest.raises(ConfigError) as caught:
        server.corrupt(chain, initial_weights(chain, 0), 1)
    for word in words:
        assert word in str(caught.value)


def test_an_image_that_pools_do_not_divide_is_refused():
    chain = Chain(
        "net",
        (1, 6, 6),
        (conv(2, 3, padding=1, pool="max"), conv(2, 3, pool="max", padding=1), LinearSpec(2)),
    )
    with pytest.raises(ConfigError, match="conv2 gives 3x3, which a pool of 2x2 does not divide"):
        _ = chain.layers


def test_an_update_of_other_weights_is_refused():
    import dataclasses

    chain, labels = network(), [0, 1, 2, 3]
    view = seen(chain, NAIVE, batch(chain, labels), labels)
    stale = dataclasses.replace(view, fingerprint="0" * 64)
    with pytest.raises(NumericsError, match="not of the weights that this server sent"):
        Mkor().run(stale, 0)
    with pytest.raises(NumericsError, match="no secret to read"):
        Mkor().run(dataclasses.replace(view, secret=None), 0)


def test_a_classifier_that_lets_nothing_through_is_refused():
    chain, labels = network(), [0, 1, 2]
    sent, values = OURS.corrupt(chain, initial_weights(chain, 0), 5)
    sent["fc1.bias"][:] = -10.0
    sent["fc3.bias"][0] = 1.0
    shared = capture(
        chain,
        sent,
        batch(chain, labels),
        np.array(labels),
        precision="float64",
        device=torch.device("cpu"),
    )
    secret = Secret("mkor", fingerprint(sent), {"shifts": None}, values)
    view = AttackerView(
        chain, sent, shared, None, 0.0, 1.0, batch=3, secret=secret, fingerprint=fingerprint(sent)
    )
    with pytest.raises(NumericsError, match="closes every node"):
        Mkor(rows="all").run(view, 0)


def test_raw_logits_whose_bias_gradient_cannot_be_are_refused():
    chain, labels = network(), [0, 1, 2, 3]
    view = seen(chain, NAIVE, batch(chain, labels), labels, "raw_logits")
    view.gradients["fc3.bias"][:] = 0.3
    with pytest.raises(NumericsError, match=r"fc3\.bias sums to 1\.2"):
        Mkor().run(view, 0)


def test_a_gradient_of_zero_is_refused():
    chain, labels = network(), [0, 1, 2, 3]
    view = seen(chain, NAIVE, batch(chain, labels), labels)
    for value in view.gradients.values():
        value[:] = 0.0
    with pytest.raises(NumericsError, match="zero everywhere"):
        Mkor().run(view, 0)


def test_cross_entropy_without_an_output_bias_parameter_is_refused():
    chain = Chain("fc", (1, 8, 8), (LinearSpec(CLASSES, bias=False),))
    labels = [3, 0, 2]
    view = seen(chain, MkorServer(classifier="untouched"), noisy(chain, labels), labels)
    with pytest.raises(NumericsError, match="fc1 has no bias"):
        Mkor().run(view, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"estimate": "median"}, "estimate: median is not known"),
        ({"rows": "some"}, "rows: some is not known"),
        ({"rows": "all", "coupling": "ignore"}, "needs rows: path"),
        ({"native": 4, "estimate": "least_squares"}, "take one of them out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Mkor(**options)


def test_an_estimate_has_to_fit_the_pools():
    pooled = network("max"), network("average", "sigmoid")
    assert "has max pools" in Mkor(estimate="average").applies(pooled[0])
    assert "has average pools" in Mkor().applies(pooled[1])
    assert "native: 5 does not divide" in Mkor(native=5).applies(network())
    assert Mkor().applies(pooled[0]) is None


def test_nan_is_refused_by_name():
    chain, labels = network(), [0, 1, 2, 3]
    view = seen(chain, NAIVE, batch(chain, labels), labels)
    view.gradients["fc2.weight"][0, 0] = np.nan
    with pytest.raises(NumericsError, match=r"fc2.weight holds NaN"):
        Mkor().run(view, 0)
