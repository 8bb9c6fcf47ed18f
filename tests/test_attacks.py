"""Attacks: the contract, cases that each one must solve, and each kind of failure."""

import dataclasses

import numpy as np
import pytest
import torch

from chains import chain, conv, image, view
from gradleak.analysis.copa_index import layer_system
from gradleak.attacks.base import AttackerView
from gradleak.attacks.closed_form.copa import Copa
from gradleak.attacks.closed_form.fully_connected import from_delta, last_layer
from gradleak.attacks.closed_form.least_squares import OPTIMISERS, LayerProblem, square_sum
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.label_inference import recover_label
from gradleak.attacks.runner import build
from gradleak.errors import NumericsError
from gradleak.models.activations import INVERTIBLE, Activation
from gradleak.models.build import activation_module
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import deltas
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint

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
    skip = chain(conv(2, 3), dataclasses.replace(conv(2, 3, padding=1), skip=1))
    assert "conv2 has a skip connection" in attack.applies(skip)
    assert "use dlg" in attack.applies(skip)
    relu = chain(conv(4, 3, activation="relu"))
    assert (attack.applies(relu) is None) == (method == "rgap")
    # The view has no place for an original: what an attack could peek at is listed here.
    assert " ".join(f.name for f in dataclasses.fields(AttackerView)) == (
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


def assert_found(attack, network):
    """The image is as near as what the search left of layer 2's objective says, and that is near.

    Twice the bound, for what is not of first order.
    """
    target = image(network)
    seen = view(network, target)
    found = attack.run(seen, 3)
    left = np.sqrt(found.layers[1].trace[-1])
    bound = 2 * magnification(network, seen, target) * left
    assert bound < 0.1 * np.linalg.norm(target)
    assert np.linalg.norm(found.image - target) <= bound


@pytest.mark.parametrize("name", ["plain", "bias", "padded", "sigmoid", "no fc bias"])
def test_copa_finds_the_image_from_a_random_start(name):
    assert_found(Copa(start="random", iterations=1000), DETERMINED[name])


def test_rgap_is_the_minimum_norm_solution_of_the_first_layer():
    network, target = LACKING, image(LACKING)
    seen = view(network, target)
    found = RGap().run(seen, 0)
    # The FC input is exact, so layer 1's system is the true one.
    layer = network.convolutions[0]
    weights = dict(seen.weights)
    dense = layer_system(layer, weights, deltas(network, weights, target, 1)).dense()
    expected = np.linalg.pinv(dense, rcond=1e-11) @ (dense @ target.ravel())
    np.testing.assert_allclose(found.image.ravel(), expected, atol=1e-7)
    assert np.mean((found.image - target) ** 2) > 1e-3


def test_copa_keeps_its_random_start_where_nothing_is_known():
    seen = view(LACKING, image(LACKING))
    minimum, first, second = (
        attack.run(seen, seed).image for attack, seed in ((RGap(), 0), (Copa(), 0), (Copa(), 1))
    )
    assert np.linalg.norm(first - minimum) > 1.0
    assert np.linalg.norm(first - second) > 1.0
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


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_optimisers_reach_the_minimum_of_a_layer_problem(optimiser):
    # Beyond some 1,200 steps Adam's gradients are rounding, by which a step of fixed rate leaves
    # the minimum again, at another time under each CPU's kernels.
    iterations = {"adam": 1000}.get(optimiser, 500)
    assert_found(Copa(optimiser=optimiser, iterations=iterations), DETERMINED["plain"])


def test_layer_problem_gradient_is_the_derivative():
    network = chain(conv(6, 3, bias=True), conv(4, 3))
    generator, weights = np.random.default_rng(0), initial_weights(network, 0)
    first, second = (
        Convolution(weights[f"{layer.name}.weight"], layer.shape) for layer in network.convolutions
    )
    problem = LayerProblem(
        second,
        generator.standard_normal(second.shape[0]),
        Activation("tanh"),
        lambda y: y - first.project(y),
        generator.standard_normal(second.shape[1]),
    )
    y, step = generator.standard_normal((2, second.shape[1]))
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


def test_a_wrong_label_is_noticed_without_a_bias():
    network = DETERMINED["no fc bias"]
    seen = view(network, image(network), label=1)
    with pytest.raises(NumericsError, match="check the label"):
        RGap().run(dataclasses.replace(seen, labels=(2,)), 0)


def test_failures_are_one_sentence_each():
    network = DETERMINED["plain"]
    seen = view(network, image(network))

    def changed(**gradients):
        given = {name.replace("_", "."): value for name, value in gradients.items()}
        return dataclasses.replace(seen, gradients=dict(seen.gradients) | given)

    zero = dataclasses.replace(seen, gradients={k: 0 * v for k, v in seen.gradients.items()})
    nan = np.full((4, 2, 3, 3), np.nan)
    # Saturated units: Tanh is exactly 1 in float32, and atanh(1) is infinite.
    saturated = changed(fc1_weight=np.ones((4, 96)), fc1_bias=np.ones(4))
    for words, call in (
        ("NaN or infinity", lambda: RGap().run(changed(conv1_weight=nan), 0)),
        ("gradient of conv1.weight is zero everywhere", lambda: RGap().run(zero, 0)),
        ("name 0 classes", lambda: recover_label(dataclasses.replace(zero, labels=None))),
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
