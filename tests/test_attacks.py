"""Closed forms, their parts and MKOR's: cases that each must solve, and kinds of failure."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from chains import chain, conv, fully_connected, image, seen, view
from gradleak.analysis.copa_index import layer_system
from gradleak.attacks.base import AttackerView
from gradleak.attacks.closed_form.copa import Copa
from gradleak.attacks.closed_form.fully_connected import beginnings, from_delta, last_layer
from gradleak.attacks.closed_form.least_squares import OPTIMISERS, LayerProblem, adam, square_sum
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.label_inference import is_positive, recover_label
from gradleak.attacks.mkor.attack import Mkor
from gradleak.attacks.mkor.free_direction import settle
from gradleak.attacks.mkor.pixels import Axis, Regions, estimate
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.runner import build
from gradleak.errors import NumericsError
from gradleak.models.activations import INVERTIBLE, Activation
from gradleak.models.build import activation_module
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import deltas
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import ConvShape
from mkor_cases import PAIRED, batch, error, network
from mkor_cases import seen as seen_by_server

# Every layer of these has full column rank, so that the image is determined.
DETERMINED = {
    "plain": chain(conv(4, 3), conv(6, 3)),
    "bias": chain(conv(4, 3, bias=True), conv(6, 3, bias=True)),
    "padded": chain(conv(6, 3, padding=1), conv(9, 3, padding=1)),
    "strided": chain(conv(12, 4, stride=2), conv(18, 2)),
    "one layer": chain(conv(6, 3)),
    "sigmoid": chain(conv(4, 3, activation="sigmoid"), conv(6, 3, activation="sigmoid")),
    "leaky": chain(conv(4, 3, activation="leaky_relu"), conv(6, 3), last="sigmoid"),
    "no fc bias": chain(conv(4, 3), conv(6, 3), bias=False),
}
UNDETERMINED = chain(conv(3, 4, stride=2), conv(2, 2))
LACKING = chain(conv(2, 4, stride=2), side=10, channels=3)


@pytest.mark.parametrize("method", ["rgap", "copa"])
@pytest.mark.parametrize("network", DETERMINED.values(), ids=DETERMINED.keys())
def test_determined_networks_give_the_image(method, network):
    # LeakyReLU's kink leaves COPA's random start in local minima (docs/copa.md).
    start = {"start": "rgap"} if method == "copa" else {}
    attack = build({"method": method, **start})
    target = image(network)
    found = attack.run(view(network, target), 0)
    assert found.image.shape == network.input
    np.testing.assert_allclose(found.image, target, atol=1e-4)
    assert [layer.layer for layer in found.layers][-1] == "conv1"
    assert all(layer.stop for layer in found.layers)


@pytest.mark.parametrize("method", ["rgap", "copa"])
def test_contract_of_closed_forms(method):
    """Beside that of every attack (test_contracts)."""
    attack = build({"method": method})
    assert attack.applies(UNDETERMINED) is None
    skip = chain(conv(2, 3), conv(2, 3, padding=1, skip=1))
    assert "conv2 has a skip connection" in attack.applies(skip)
    assert "use dlg" in attack.applies(skip)
    relu = chain(conv(4, 3, activation="relu"))
    assert (attack.applies(relu) is None) == (method == "rgap")
    # The view has no place for an original: what an attack could peek at is listed here.
    assert " ".join(f.name for f in fields(AttackerView)) == (
        "chain weights gradients labels low high loss batch starts secret fingerprint mode keys"
    )


def magnification(network, seen, target):
    """Length of the image's error over that of layer 2's residual, at most, at the solution.

    To first order: with the residual r = [U2 a(Y) − V; (I − P)(Y − b)] (eq. 7), whose derivative is
    J, Y is off by J^+ r, and the image x by U1^+ [dY; −d(K1 x)] (eq. 6).
    """
    first, second = network.convolutions
    delta = deltas(network, seen.weights, target, 1)
    systems = [layer_system(layer, seen.weights, delta) for layer in (first, second)]
    x, convolution = target.ravel(), systems[0].convolution
    bias = seen.weights.get("conv1.bias", np.zeros(first.shape.filters))
    y = convolution.apply(x) + np.repeat(bias, first.shape.positions)
    dense = convolution.dense()
    outside = np.eye(y.size) - dense @ np.linalg.pinv(dense)
    derivative = first.activation.derivative
    jacobian = np.concatenate([systems[1].dense() * derivative(y), outside])
    # K1 is linear in dJ/dZ1 = W2^T dJ/dZ2 ⊙ a'(Y).
    bend = (derivative(y + 1e-5) - derivative(y - 1e-5)) / 2e-5
    back = systems[1].convolution.adjoint(delta["conv2"].ravel()) * bend
    grid = (-1, *delta["conv1"].shape)
    parts = [GradientConstraint(part, first.shape) for part in np.diag(back).reshape(grid)]
    moved = np.stack([part.apply(x) for part in parts], axis=1)
    image_of_y = np.linalg.pinv(systems[0].dense()) @ np.concatenate([np.eye(y.size), -moved])
    return np.linalg.norm(image_of_y @ np.linalg.pinv(jacobian), 2)


# Beyond some 1,200 steps Adam's gradients are rounding, by which a step of fixed rate leaves the
# minimum again, at another time under each CPU's kernels.
RANDOM = [(name, "lbfgs", 1000) for name in ("bias", "padded", "sigmoid", "no fc bias")]
RANDOM += [("plain", name, {"adam": 1000}.get(name, 500)) for name in OPTIMISERS]


@pytest.mark.parametrize(("name", "optimiser", "iterations"), RANDOM)
def test_copa_finds_the_image_from_a_random_start(name, optimiser, iterations):
    """It is as near as what the search left of layer 2's objective says, and that is near.

    Twice the bound, for what is not of first order.
    """
    target = image(DETERMINED[name])
    given = view(DETERMINED[name], target)
    attack = Copa(start="random", optimiser=optimiser, iterations=iterations)
    found = attack.run(given, 3)
    left = np.sqrt(found.layers[1].trace[-1])
    bound = 2 * magnification(DETERMINED[name], given, target) * left
    assert bound < 0.1 * np.linalg.norm(target)
    assert np.linalg.norm(found.image - target) <= bound


def test_rgap_is_the_minimum_norm_solution_of_the_first_layer():
    network, target = LACKING, image(LACKING)
    seen = view(network, target)
    found = RGap().run(seen, 0)
    # The FC input is exact, so layer 1's system is the true one.
    found_deltas = deltas(network, seen.weights, target, 1)
    dense = layer_system(network.convolutions[0], seen.weights, found_deltas).dense()
    expected = np.linalg.pinv(dense, rcond=1e-11) @ (dense @ target.ravel())
    np.testing.assert_allclose(found.image.ravel(), expected, atol=1e-7)
    assert np.mean((found.image - target) ** 2) > 1e-3


def test_copa_keeps_its_random_start_where_nothing_is_known():
    seen = view(LACKING, image(LACKING))
    runs = (RGap(), 0), (Copa(), 0), (Copa(), 1)
    minimum, first, second = (attack.run(seen, seed).image for attack, seed in runs)
    assert min(np.linalg.norm(first - other) for other in (minimum, second)) > 1.0
    np.testing.assert_allclose(Copa(start="rgap").run(seen, 0).image, minimum, atol=1e-10)


def test_pull_back_holds_where_appendix_b_asks_for_it():
    network = chain(conv(6, 3), conv(1, 4, stride=2))
    seen = view(network, image(network))
    bound, free = Copa().run(seen, 0), Copa(pull_back="algorithm_1").run(seen, 0)
    assert [layer.equation for layer in bound.layers] == ["9", "7", "6"]
    assert [layer.equation for layer in free.layers] == ["9", "5", "6"]
    # Under eq. (7) layer 2's input comes from some image, which layer 1 then fits: all that
    # remains of its residual is the gradient constraint's. Under eq. (5) there is no such image.
    assert 20 * bound.layers[-1].residual < free.layers[-1].residual


def test_layer_problem_gradient_is_the_derivative():
    network = chain(conv(6, 3, bias=True), conv(4, 3))
    weights, draw = initial_weights(network, 0), np.random.default_rng(0).standard_normal
    first, second = (
        Convolution(weights[f"{layer.name}.weight"], layer.shape) for layer in network.convolutions
    )
    values, offset = (draw(size) for size in second.shape)
    activation = Activation("tanh")
    problem = LayerProblem(second, values, activation, lambda y: y - first.project(y), offset)
    y, step = draw((2, second.shape[1]))
    values = [square_sum(problem.residuals(y + h * step)) for h in (-1e-6, 1e-6)]
    slope = 2 * problem.gradient(y, problem.residuals(y)) @ step
    assert slope == pytest.approx((values[1] - values[0]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("last", INVERTIBLE)
def test_label_and_fc_input_come_from_the_last_layer(bias, last):
    network = chain(conv(3, 3), bias=bias, last=last, classes=5)
    for label in range(5):
        seen = view(network, image(network, label), label, granted=False)
        assert recover_label(seen) == label
        w, g = seen.weights, seen.gradients
        given = (w["fc1.weight"], g["fc1.weight"], g.get("fc1.bias"))
        (found,) = last_layer(*given, Activation(last), label)
        np.testing.assert_allclose(np.outer(found.delta, found.x), g["fc1.weight"], atol=1e-12)


def test_failures_are_one_sentence_each():
    networks = DETERMINED["plain"], DETERMINED["no fc bias"]
    seen, without_bias = (view(one, image(one)) for one in networks)

    def changed(**gradients):
        return replace(seen, gradients={**seen.gradients, **gradients})

    zero = changed(**{k: 0 * v for k, v in seen.gradients.items()})
    nan = changed(**{"conv1.weight": np.full((4, 2, 3, 3), np.nan)})
    # Saturated units: Tanh is exactly 1 in float32, and atanh(1) is infinite.
    saturated = changed(**{"fc1.weight": np.ones((4, 96)), "fc1.bias": np.ones(4)})
    for words, call in (
        ("NaN or infinity", lambda: RGap().run(nan, 0)),
        ("gradient of conv1.weight is zero everywhere", lambda: RGap().run(zero, 0)),
        ("check the label", lambda: RGap().run(replace(without_bias, labels=(2,)), 0)),
        ("name 0 classes", lambda: recover_label(replace(zero, labels=None))),
        ("divide by zero", lambda: from_delta(np.ones((2, 3)), np.zeros(2))),
        ("inverse is infinite", lambda: RGap().run(saturated, 0)),
        ("inverse is infinite", lambda: Activation("sigmoid").inverse(np.array([0.0, 0.5]))),
    ):
        with pytest.raises(NumericsError, match=words):
            call()


@pytest.mark.parametrize("name", ["identity", "tanh", "sigmoid", "leaky_relu", "relu"])
def test_activations_match_pytorch(name):
    activation = Activation(name, 0.2)
    z = np.linspace(-3, 3, 31)
    tensor = torch.from_numpy(z).requires_grad_()
    value = activation_module(activation)(tensor)
    (slope,) = torch.autograd.grad(value.sum(), tensor)
    np.testing.assert_allclose(activation.forward(z), value.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(activation.derivative(z), slope.numpy(), atol=1e-12)
    if name in INVERTIBLE:
        np.testing.assert_allclose(activation.inverse(activation.forward(z)), z, atol=1e-9)


def test_adam_is_pytorchs():
    shape = ConvShape(1, 2, (2, 2), (1, 1), (0, 0), (3, 3))
    draw = np.random.default_rng(0)
    operator = Convolution(draw.standard_normal((2, 1, 2, 2)), shape)
    problem = LayerProblem(operator, draw.standard_normal(8), Activation("tanh"))
    start = draw.standard_normal(9)
    found = adam(problem, start, 250)
    y = torch.tensor(start, requires_grad=True)
    weight, values = torch.tensor(operator.dense()), torch.tensor(problem.values)
    search = torch.optim.Adam([y], lr=1e-2, eps=1e-8)
    losses = [(weight @ torch.tanh(y) - values).square().sum()]
    for _ in range(250):
        search.zero_grad()
        losses[-1].backward()
        search.step()
        losses.append((weight @ torch.tanh(y) - values).square().sum())
    losses = [loss.item() for loss in losses]
    np.testing.assert_allclose(found.y, y.detach().numpy(), rtol=1e-8)
    # The value at the start, after each hundred steps and at the end; no penalty adds nothing.
    np.testing.assert_allclose(found.trace, [losses[k] for k in (0, 100, 200, 250)], rtol=1e-8)
    assert square_sum(problem.residuals(start)) == pytest.approx(losses[0])


def test_an_input_that_may_be_negative_is_not_positive():
    """A mean of 0.5 moves the range below 0; from 0 on it is positive."""
    single = fully_connected()
    given = view(single, image(single, low=0.0), loss="logistic", low=0.0)
    assert is_positive(given) and not is_positive(replace(given, low=-0.5))


@pytest.mark.parametrize("seed", range(4))
def test_a_granted_label_is_held_against_the_last_bias(seed):
    given, _, label = seen(fully_connected(8, 6, bias=True), seed=seed)
    search, bent = InvertingGradients(iterations=1), replace(given, labels=(-label,))
    found = search.run_many([given, bent], [0, 0])
    assert [isinstance(one, NumericsError) for one in found] == [False, True]


def test_the_margin_is_held_against_the_last_bias():
    given, _, _ = seen(fully_connected(8, bias=True))
    # The same ∂ℓ/∂w and ∂ℓ/∂b, but another b gives another μ.
    bent = given.weights | {"fc2.bias": given.weights["fc2.bias"] + 1.0}
    for weights, word in ((given.weights, ""), (bent, "differ")):
        (one,) = beginnings(given, weights, given.gradients)
        assert word in one.note and bool(word) == bool(one.note)


def test_every_beginning_of_an_odd_network_is_answered():
    """No bias and the identity: x, −x and their twins all give the same gradient."""
    network = fully_connected(8, activation="identity")
    given, _, _ = seen(network, low=-0.5, side="same", granted=False)
    found = RGap().run(given, 0)
    assert len(beginnings(given, given.weights, given.gradients)) == 1 + len(found.others) == 4


# --- MKOR ----------------------------------------------------------------------------------------


def test_an_original_size_divides_square_images():
    assert Mkor(native=4).applies(network(side=16)) is None
    for native, size in ((5, (1, 16, 16)), (4, (1, 16, 8)), (4, (1, 8, 16))):
        assert "native" in Mkor(native=native).applies(replace(network(side=16), input=size))


def test_paths_are_solved_again_at_the_features_found():
    """Cross-entropy sends back what depends on the image: so δ of a gray one is a beginning."""
    labels = [2, 0, 0, 2, 2, 3]
    images = 0.02 * batch(network(), labels)
    given = seen_by_server(network(), PAIRED.model_copy(update={"beta": 1.0}), images, labels)
    found = (Mkor(native=4, refinements=n).run(given, 0) for n in (0, 1))
    before, after = (max(error(one, images, labels).values()) for one in found)
    assert after < 0.1 * before


RAMP = np.linspace(0.0, 0.5, 6)
EDGES = [np.broadcast_to(ramp, (1, 6, 6)) for ramp in (RAMP[:, None], RAMP)]
# Regions without neighbours on a side.
ROWS = [0.5 * np.arange(h * w).reshape(1, h, w) / max(h, w) for h, w in ((1, 1), (1, 3), (3, 1))]
DRAWN = np.r_[0.0, 1.0, np.random.default_rng(0).uniform(0, 1, 9)]
FLAT = [*((s, DRAWN) for s in EDGES), *((s, np.linspace(0.1, 0.9, 11)) for s in ROWS)]


@pytest.mark.parametrize(("s", "values"), FLAT)
def test_an_edge_between_rows_or_columns_settles_the_direction(s, values):
    """Flat images, so that all differences between neighbours are of s."""
    found = settle(values[:, None, None, None] - s, np.ones(11), "median")
    np.testing.assert_allclose(found, s, atol=1e-6)


def test_unknown_blocks_lie_between_known_ones():
    axis = Axis(np.arange(6), 1, 6, 6)
    known = np.array([False, True, False, False, True, False])
    cells = np.array([np.nan, 1.0, np.nan, np.nan, 4.0, np.nan])
    spread = axis.spread(known) @ np.nan_to_num(cells)
    np.testing.assert_allclose(spread, [1, 1, 2, 3, 4, 4])


def test_least_squares_leaves_out_rows_and_columns_that_were_pruned():
    starts = np.arange(0, 8, 2), np.arange(0, 12, 2)
    ramp = np.add.outer(np.linspace(0, 0.4, 8), np.linspace(0, 0.6, 12))
    means = ramp.reshape(4, 2, 6, 2).mean(axis=(1, 3))[None, None]
    means[:, :, :, 4] = np.nan
    found = estimate(Regions(means, means, starts, 2), (8, 12), "least_squares", None, 0.0)
    assert found.shape == (1, 1, 8, 12)
    np.testing.assert_allclose(found[0, 0, 1:-1, 1:-1], ramp[1:-1, 1:-1], atol=0.05)
