"""FedKL's propositions: what an attacker computes from weights and gradients alone."""

import numpy as np
import pytest

from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError
from gradleak.models.locks import public
from gradleak.runtime.tidy import TABLES
from papers.fedkl.proofs import inference, measures, networks, table
from papers.fedkl.proofs.inference import Affine, head, regression, through_norm
from papers.fedkl.proofs.measures import Run, relative
from papers.fedkl.proofs.networks import CONV, HEAD, Net

PLAIN = Net("plain", "relu", 16)
PADDED = Net("padded", "relu", 16, padding=1)
LOCKED = Net("locked", "relu", 16, padding=1, lock="identity", key=64)


IMAGE = np.random.default_rng(0).random((3, 8, 8))


def _solved(net, image=IMAGE, factor=1.0):
    """What is found of an image, with γ times a factor; the truth; the image's direction."""
    chain, weights, gradients = net.captured(image, 3, 0, norm=True)
    true = networks.inside(chain, weights, image, 3)
    known = None if net.lock else Affine(factor * true.scale, true.shift)
    seen = chain.convolutions[0], public(weights), public(gradients)
    found = through_norm(*seen, head(weights, gradients, HEAD), known)
    x = image.reshape(3, -1) - (0 if net.padding else image.reshape(3, -1).mean(1, keepdims=True))
    return found, true, x.ravel()


def _misfit(found, x):
    return relative(found.x * (found.x @ x), x)


def test_a_regression_gives_its_sample_away_once_the_scale_is_known():
    theta, x, y = np.array([1.0, -2.0, 0.5]), np.array([0.2, 0.4, 0.9]), 1.5
    gradient, _ = networks.regression_gradient(theta, 0.0, x[None], np.array([y]))
    assert gradient == pytest.approx(2 * x * (theta @ x - y))
    plain = regression(theta, gradient)
    assert np.isnan(plain.target) and plain.input == pytest.approx(gradient)
    known = regression(theta, gradient, output=float(theta @ x))
    assert (known.input, known.target) == (pytest.approx(x), pytest.approx(y))
    gradient, d_bias = networks.regression_gradient(theta, 0.7, x[None], np.array([y]))
    biased = regression(theta, gradient, bias=0.7, bias_gradient=d_bias)
    assert (biased.input, biased.target) == (pytest.approx(x), pytest.approx(y))


def test_the_last_layer_tells_label_probabilities_and_its_input():
    chain = networks.two_layers(IMAGE.shape)
    weights = networks.weights_of(chain, 1)
    gradients = networks.shared(chain, weights, IMAGE, 7, "float64")
    found = head(weights, gradients, "fc2")
    assert (found.label, found.negative) == (7, 1)
    assert found.probabilities.sum() == pytest.approx(1) and found.probabilities.min() > 0
    hidden = weights["fc1.weight"] @ IMAGE.ravel() + weights["fc1.bias"]
    assert found.features == pytest.approx(np.maximum(hidden, 0), abs=1e-6)
    assert measures.two_layers(Run(IMAGE, 7, 1))["input_error"] < 1e-12


@pytest.mark.parametrize("filters", [16, 2])
def test_a_convolutions_input_where_the_system_has_full_rank(filters):
    net = Net("net", "relu", filters, padding=1)
    chain, weights, gradients = net.captured(IMAGE, 3, 0, norm=False)
    last = head(weights, gradients, HEAD)
    found = inference.through_convolution(chain.convolutions[0], weights, gradients, last)
    if filters == 16:
        assert found.free == 0 and found.x is not None
        assert relative(found.x, IMAGE.ravel()) < 1e-12
    else:
        # 128 outputs, of which ReLU shows some half, and 54 gradients for 192 unknowns.
        assert found.x is None and 192 - 128 - 54 < found.free < 192 - 54


@pytest.mark.parametrize("net", [PLAIN, PADDED, Net("l", "leaky_relu", 4, padding=1)])
def test_behind_a_norm_the_input_follows_and_epsilon_tells_its_contrast(net):
    found, true, x = _solved(net)
    assert found.free == 0 and _misfit(found, x) < 1e-10
    assert found.normalised == pytest.approx(true.u_hat[found.channels], abs=1e-8)
    assert found.factor == pytest.approx(np.linalg.norm(x), rel=1e-7)


def test_another_norm_does_not_fit_and_too_few_filters_leave_unknowns_free():
    found, _, x = _solved(PADDED, factor=1.5)
    # The direction needs no γ: s is linear in x. The contrast does.
    assert _misfit(found, x) < 1e-10
    assert abs(found.factor / np.linalg.norm(x) - 1) > 0.1
    other = np.random.default_rng(1).random(x.shape)
    assert _misfit(_solved(PADDED)[0], other) > 0.1
    found, _, _ = _solved(Net("few", "relu", 2))
    # 192 unknowns and 72 outputs at most, less brightness of three channels.
    assert 192 - 72 - 3 <= found.free < 192 and found.x.size == 0


def test_brightness_is_hidden_without_padding_and_contrast_only_by_epsilon():
    pale = 0.3 + 0.2 * IMAGE
    chain, weights, gradients = PLAIN.captured(IMAGE, 3, 0, norm=True)
    other = networks.shared(chain, weights, pale, 3, "float64")
    # The gradient hardly changes but for the convolution's, which has one over the contrast.
    same = [name for name in gradients if not name.startswith(f"{CONV}.")]
    assert len(same) == 4
    assert all(relative(other[name], gradients[name]) < 0.05 for name in same)
    (one, true, x), (two, _, y) = (_solved(PLAIN, image) for image in (IMAGE, pale))
    assert relative(two.x, one.x) < 1e-10
    assert two.factor / one.factor == pytest.approx(0.2, rel=1e-6)
    assert relative(y, 0.2 * x) < 1e-12
    # Equations (30) to (33) need their sums.
    found = measures.backwards(true)
    assert all(found[f"eq{n}"] < 1e-12 for n in (30, 31, 32, 33))
    assert found["eq33_printed"] > 0.05


@pytest.mark.parametrize("activation", ["identity", "relu", "sigmoid"])
def test_in_the_proofs_network_the_lock_hides_neither_input_nor_scale(activation):
    net = Net("locked", "relu", 16, padding=1, lock=activation, key=64)
    found, true, x = _solved(net)
    assert found.free == 0 and _misfit(found, x) < 1e-9
    assert found.affine.scale == pytest.approx(np.abs(true.scale[found.channels]), rel=1e-6)
    assert found.affine.shift == pytest.approx(true.shift[found.channels], abs=1e-8)
    assert found.factor == pytest.approx(np.linalg.norm(x), rel=1e-5)
    # A shift below 0 beside a small scale closes a channel, of which nothing is shown.
    assert found.channels.all() == (activation == "sigmoid")


def test_the_attacker_is_given_nothing_private():
    chain, weights, gradients = LOCKED.captured(IMAGE, 3, 0, norm=True)
    seen = {*public(weights), *public(gradients)}
    assert seen == {f"{CONV}.weight", f"{HEAD}.weight", f"{HEAD}.bias"}
    assert len(weights) == len(seen) + 5
    other = networks.weights_of(chain, 5)
    moved = weights | {name: other[name] for name in weights if name not in seen}
    gradients = networks.shared(chain, moved, IMAGE, 3, "float64")
    given = chain.convolutions[0], public(moved), public(gradients), head(moved, gradients, HEAD)
    assert _misfit(through_norm(*given, None), IMAGE.ravel()) < 1e-9


def test_the_locks_gradient_is_the_key():
    found = measures.locked(LOCKED, Run(IMAGE, 3, 0))
    assert found["key_error"] < 1e-12 and found["rank_one"] < 1e-12
    # The largest of 64 values in [0, 1) is a few hundredths from 1.
    assert 1e-4 < found["key_error_scaled"] < 0.2
    assert max(found[f"eq{n}"] for n in (34, 35, 36)) < 1e-12
    assert found["lock_gradient_error"] < 1e-9


def test_gradients_in_float32_do():
    net = Net("float32", "relu", 16, padding=1, lock="sigmoid", precision="float32")
    found, _, x = _solved(net)
    assert found.free == 0 and 1e-9 < _misfit(found, x) < 1e-4
    assert found.factor == pytest.approx(np.linalg.norm(x), rel=1e-2)


def _dataset(side=32, count=3):
    images = np.random.default_rng(0).integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    names = [str(k) for k in range(10)]
    return Dataset(images, np.arange(count), names, "photos10", "test", "embedded")


def test_the_table_is_tidy_and_counts_what_has_no_error(monkeypatch):
    monkeypatch.setattr(table, "IMAGES", 2)
    monkeypatch.setattr(table, "SEEDS", 1)
    found = table.table(_dataset(), "embedded", "smoke")
    assert list(found.columns) == TABLES
    assert not found.duplicated(["row", "column", "metric"]).any()
    assert set(found["row"]) == {"Claim 1", "Claim 2", "Claim 3", "Claim 4", "Proposition 2"}
    assert (found["n"] == 2).all() and (found["note"] != "").all()
    by = found.set_index(["row", "column", "metric"])
    few = by.loc[("Proposition 2", "ReLU, 3 filters, padding", "input_error")]
    assert few["n_ok"] == 0 and np.isnan(few["ours"])
    assert by.loc[("Proposition 2", "ReLU, 3 filters, padding", "free"), "low"] > 0
    assert by.loc[("Claim 1", "8 samples", "free"), "ours"] == 8 * 193 - 192
    exact = by[by["note"].str.startswith("eq.") & ~by["note"].str.contains("as printed")]
    assert len(exact) > 20 and (exact["high"] < 1e-6).all()


@pytest.mark.parametrize(("side", "count"), [(30, 9), (32, 1)])
def test_images_that_do_not_fit_are_refused(side, count):
    with pytest.raises(ConfigError, match=f"photos10 has {count} images of {side}x{side}"):
        table.table(_dataset(side, count), "embedded", "smoke")
