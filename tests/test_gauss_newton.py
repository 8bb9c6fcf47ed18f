"""Second order on the gradients: derivatives, preconditioner, and what the attack reaches."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import chains
from chains import chain, conv, error, image, net, seen, view
from gradleak.attacks.closed_form.known_layers import known_deltas
from gradleak.attacks.closed_form.layerwise import ConvolutionCache
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.optimization.engine import gauss_newton_solver as solver
from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients
from gradleak.attacks.optimization.engine.gauss_newton_solver import (
    Damped,
    Problem,
    conjugate_gradients,
    square,
)
from gradleak.attacks.optimization.engine.jacobian import Linearised
from gradleak.attacks.optimization.engine.preconditioner import Preconditioner, depth, normal_matrix
from gradleak.attacks.optimization.gauss_newton import GaussNewton
from gradleak.errors import NumericsError
from gradleak.models.activations import Activation
from gradleak.models.chain import LinearSpec
from gradleak.models.initial import initial_weights
from test_matching import matching
from test_matching import network as small


def run(given, seed=0, **settings):
    return chains.run(GaussNewton(**settings), given, seed)


def tensor(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def smooth(name="smooth"):
    """Its image is fixed by its gradients."""
    layers = (conv(6, 3, padding=1, activation="sigmoid"), conv(6, 3, stride=2, activation="tanh"))
    return chain(*layers, classes=1, last="identity", name=name)


def deficient():
    """As CNN6-d: its second layer lacks rank, and only LeakyReLU."""
    layers = [
        conv(filters, 3, stride, 1, activation="leaky_relu", slope=0.2)
        for filters, stride in ((6, 1), (5, 2), (8, 1))
    ]
    return chain(*layers, channels=3, classes=1, bias=False, last="identity", name="deficient")


def perturbed(network, noise=0.3, seed=0):
    shared, target, _ = seen(network, seed=seed)
    start = target + noise * np.random.default_rng(seed).standard_normal(target.shape)
    return replace(shared, starts=start[None, None]), target


def linearised(network, loss, members=2, batch=2, known=None):
    weights = initial_weights(network, 0)
    gradients = ChainGradients(network, weights, loss, dtype=torch.float64)
    labels = torch.ones((members, batch), dtype=torch.long)
    scale = torch.linspace(0.5, 2.0, members, dtype=torch.float64)
    images = tensor(members, batch, *network.input)
    return Linearised(gradients, images, labels, scale, known)


# PyTorch warns of its own torch.jit.script when torch.func.jvp is first used.
@pytest.mark.filterwarnings("ignore:.torch.jit.script.:FutureWarning")
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(
    ("loss", "activation"),
    [("cross_entropy", "tanh"), ("logistic", "sigmoid"), ("exponential", "leaky_relu")],
)
def test_the_jacobian_and_its_adjoint_equal_automatic_derivatives(loss, activation, skip):
    at = linearised(small(loss, activation, skip=skip), loss)

    def function(x):
        found = at.network(x, at.labels, at.scale)
        return [g.flatten(2) if g.ndim > 2 else g for g in found]

    direction = tensor(*at.images.shape, seed=1)
    values, moved = torch.func.jvp(function, (at.images,), (direction,))
    duals = [tensor(*value.shape, seed=2) for value in values]
    images = at.images.clone().requires_grad_()
    pulled = torch.autograd.grad(function(images), images, duals)[0]
    torch.testing.assert_close(at.gradients(), list(values))
    torch.testing.assert_close(at.forward(direction), list(moved))
    torch.testing.assert_close(at.adjoint(duals), pulled)


def test_known_deltas_stay_and_the_rest_follows_from_the_image():
    network = small("logistic", "sigmoid", skip=False)
    plain = linearised(network, "logistic")
    true = {"conv2": plain.left[1], "conv3": plain.left[2]}
    same = linearised(network, "logistic", known=true)
    torch.testing.assert_close(same.gradients(), plain.gradients())
    known = {name: tensor(*value.shape, seed=3) for name, value in true.items()}
    at = linearised(network, "logistic", known=known)
    direction, step = tensor(*at.images.shape, seed=1), 1e-6
    ends = [
        Linearised(at.network, at.images + t * direction, at.labels, at.scale, known).gradients()
        for t in (step, -step)
    ]
    moved = at.forward(direction)
    for ahead, behind, slope in zip(*ends, moved, strict=True):
        torch.testing.assert_close((ahead - behind) / (2 * step), slope, rtol=1e-5, atol=1e-9)
    duals = [tensor(*value.shape, seed=2) for value in moved]
    forward = sum(float((a * b).sum()) for a, b in zip(moved, duals, strict=True))
    assert forward == pytest.approx(float((at.adjoint(duals) * direction).sum()))


# One that passes rows of J on, and one that passes their products on.
@pytest.mark.parametrize("filters", [(9, 2), (4, 9)])
def test_the_normal_matrix_is_exact_where_only_images_move(filters):
    sizes = zip(filters, (2, 1), (1, 0), strict=True)
    first, second = (conv(n, 2, *more, False, "leaky_relu", 0.2) for n, *more in sizes)
    hidden = LinearSpec(3, False, Activation("leaky_relu", 0.2))
    network = net(first, second, hidden, LinearSpec(1, False), size=(2, 6, 6))
    # The hinge loss has no curvature, so that no δ moves.
    at = linearised(network, "hinge", members=1, batch=1)
    weights, pixels = [0.5, 2.0, 3.0, 0.7], at.images.numel()
    units = torch.eye(pixels, dtype=torch.float64).view(-1, *at.images.shape)
    parts = (zip(weights, at.forward(unit), strict=True) for unit in units)
    jacobian = torch.stack([torch.cat([w * p.flatten() for w, p in one]) for one in parts], 1)
    assert depth(network) == (2 if filters[1] == 9 else 1)
    found = normal_matrix(at, weights, len(network.layers))
    expected = jacobian.T @ jacobian
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5 * expected.max())
    vector = tensor(pixels)
    solved = torch.linalg.solve(expected + torch.eye(pixels), vector)
    found = Preconditioner(found, damping=1.0)(vector)
    torch.testing.assert_close(found, solved, rtol=1e-3, atol=1e-4)
    # A matrix without a factor leaves its diagonal.
    solve = Preconditioner(torch.tensor([[1.0, 3.0], [3.0, 1.0]]), damping=0.0)
    torch.testing.assert_close(solve(vector[:2]), vector[:2], rtol=0.1, atol=0)


def test_conjugate_gradients_need_one_step_with_the_inverse_at_hand():
    root = tensor(12, 12)
    matrix = root @ root.T + torch.eye(12)
    right = tensor(12, seed=1)
    solution, steps = conjugate_gradients(
        lambda v: matrix @ v, lambda v: torch.linalg.solve(matrix, v), right, 50, 1e-8
    )
    torch.testing.assert_close(matrix @ solution, right)
    assert steps == 1
    plain, steps = conjugate_gradients(lambda v: matrix @ v, lambda v: v, right, 50, 1e-8)
    torch.testing.assert_close(plain, solution)
    assert 1 < steps <= 20


def test_a_smooth_network_is_solved_from_a_perturbed_image_and_from_noise():
    shared, target = perturbed(smooth())
    noise = {"start": "normal", "layers": False}
    near, far = run(shared), run(shared, **noise)
    for found in (near, far):
        assert error(found, target) < 1e-12
        assert found.failure == "" and found.stop == "target reached"
        assert found.trace[-1] == found.loss < 1e-12 and found.evaluations < 200
    # The preconditioner saves iterations of conjugate gradients.
    assert 2 * far.evaluations < run(shared, **noise, precondition=False).evaluations
    several = run(shared, **noise, starts=3)
    first, second = several.others
    assert several.loss <= min(first.loss, second.loss) and error(several, target) < 1e-12


@pytest.mark.parametrize("seed", [0, 1])
def test_known_layers_solve_what_rgap_cannot_and_the_kinks_forbid(seed):
    shared, target, _ = seen(deficient(), seed=seed)
    closed = RGap().run(shared, 0)
    started = replace(shared, starts=closed.images[None])
    found = run(started)
    assert error(closed, target) > 0.1
    assert error(run(started, layers=False), target) > 1e-3
    assert error(found, target) < 1e-12 and found.evaluations < 200


def test_a_large_image_keeps_its_preconditioner_as_long_as_that_pays(monkeypatch):
    shared, target, _ = seen(deficient())
    started = replace(shared, starts=RGap().run(shared, 0).images[None])
    computed = Mock(wraps=normal_matrix)
    monkeypatch.setattr(solver, "normal_matrix", computed)
    taken = []
    monkeypatch.setattr(solver, "BOUND", 1e-3)
    for free in (4096, 0):
        monkeypatch.setattr(solver, "FREE", free)
        computed.reset_mock()
        found = run(started)
        assert error(found, target) < 1e-12
        taken.append(computed.call_count)
    assert taken[1] < taken[0]
    # One that does not fit is left out.
    monkeypatch.setattr("gradleak.operators.limits.MATRIX_BYTES", 0)
    computed.reset_mock()
    assert error(run(started), target) < 1e-12 and computed.call_count == 0


def test_a_factor_serves_another_damping_as_long_as_that_pays(monkeypatch):
    torch.manual_seed(0)
    rows = torch.randn(12, 8)
    matrix = rows.T @ rows
    factor = Preconditioner(matrix, 0.1)
    for damping in (0.1, 0.4, 0.01):
        # Bound on the condition number of one preconditioned with the other.
        first, own = (matrix.double() + one * torch.eye(8) for one in (0.1, damping))
        values = torch.linalg.eigvals(torch.linalg.solve(first, own)).real
        assert values.max() / values.min() <= factor.ratio(damping) * (1.0 + 1e-5)
    # Dampings below the least are one.
    least = Preconditioner(matrix, 0.0)
    assert least.ratio(0.5 * least.least) == 1.0 and solver.serves(least, 0.5 * least.least)
    # In a small image every other damping has a factor of its own.
    assert not solver.serves(factor, 0.2)
    monkeypatch.setattr(solver, "FREE", 0)
    assert not solver.serves(factor, 0.2)
    monkeypatch.setattr(solver, "BOUND", 1e-3)
    assert solver.serves(factor, 0.2) and not solver.serves(factor, 1e9)


def test_known_deltas_are_the_true_ones_and_a_wrong_label_leaves_none():
    shared, target, _ = seen(deficient())
    gradients = ChainGradients(shared.chain, shared.weights, "logistic", dtype=torch.float64)
    images, labels = torch.from_numpy(target)[None, None], torch.tensor([list(shared.labels)])
    names = (layer.name for layer in shared.chain.layers)
    true = dict(zip(names, gradients.walk(images, labels).left, strict=True))
    known = known_deltas(shared, ConvolutionCache())
    assert set(known) == {"conv2", "conv3"}
    for name, delta in known.items():
        expected = true[name][0].numpy()
        np.testing.assert_allclose(delta, expected, atol=1e-8 * np.abs(expected).max())
    wrong = replace(shared, labels=(-shared.labels[0],))
    assert known_deltas(wrong, ConvolutionCache()) == {}


def test_an_exact_start_costs_one_evaluation_and_stays():
    shared, target, _ = seen(deficient())
    # Out of range, so that a clipped start would show.
    low, high = target.min() + 0.1, target.max() - 0.1
    found = run(replace(shared, starts=target[None, None], low=low, high=high))
    np.testing.assert_array_equal(found.image, target)
    assert found.evaluations == 1 and found.stop == "target reached"


@pytest.mark.parametrize(("target", "low", "stages"), [(1e-12, 0.0, 1), (0.0, -2.0, 2)])
def test_the_image_is_searched_after_the_known_layers(target, low, stages, monkeypatch):
    """Unless these alone reach the target; the prior is that of a uniform image."""
    noted = Mock(wraps=Damped)
    monkeypatch.setattr("gradleak.attacks.optimization.engine.gauss_newton_solver.Damped", noted)
    run(replace(perturbed(deficient())[0], low=low), iterations=12, target=target)
    spreads = [call.kwargs["spread"] for call in noted.call_args_list]
    assert spreads == [(1.0 - low) ** 2 / 12.0] * stages


def test_members_do_not_influence_each_other_and_a_run_repeats_itself():
    views = [perturbed(smooth(), seed=seed)[0] for seed in range(2)]
    nan = {name: np.full_like(g, np.nan) for name, g in views[0].gradients.items()}
    views.insert(1, replace(views[0], gradients=nan))
    together = GaussNewton(iterations=3).run_many(views, [0, 1, 2])
    assert isinstance(together[1], NumericsError) and "holds NaN" in str(together[1])
    for number in (0, 2):
        alone, again = (run(views[number], number, iterations=3) for _ in range(2))
        np.testing.assert_allclose(alone.image, together[number].image, rtol=0, atol=1e-10)
        np.testing.assert_array_equal(alone.image, again.image)


@pytest.mark.parametrize("start", [1e4, np.nan, None])
def test_a_start_outside_of_the_range_is_moved_into_it_and_noise_replaces_none(start):
    shared, target, _ = seen(smooth())
    starts = None if start is None else np.full((1, 1, *target.shape), start)
    assert error(run(replace(shared, starts=starts)), target) < 1e-12


def test_gradients_of_no_image_are_a_failure():
    shared, _ = perturbed(smooth())
    draw = np.random.default_rng(0).standard_normal
    noise = {name: draw(g.shape) for name, g in shared.gradients.items()}
    noise["fc1.bias"] = shared.gradients["fc1.bias"]  # its sign is that of the granted label
    found = run(replace(shared, gradients=noise), iterations=5)
    assert "relative distance of gradients" in found.failure
    assert found.loss >= 0.5 and np.isfinite(found.image).all()


def test_a_batch_and_a_skip_go_without_preconditioner():
    layers = conv(2, 3, padding=1), conv(2, 3, padding=1, skip=1), LinearSpec(1, True)
    shared, target = perturbed(net(*layers, size=(2, 6, 6)), noise=0.05)
    assert error(run(shared), target) < 1e-6
    small = chain(conv(6, 3, activation="sigmoid"), side=5, classes=4, last="identity")
    pair = np.stack([image(small, seed, low=0.0) for seed in range(2)])
    start = pair + 0.05 * np.random.default_rng(0).standard_normal(pair.shape)
    found = run(view(small, pair, [0, 2], low=0.0, starts=start[None]))
    assert found.loss < 1e-10 and error(found, pair) < 1e-6


def test_the_distance_is_that_of_dlg():
    shared, _ = perturbed(smooth())
    attack = GaussNewton()
    members = attack._members([shared], [attack._prepare(shared, 0)])
    problem = Problem(members)
    given = members.starts, members.labels, members.targets, members.scale
    distance = matching(members.network, *given)
    assert problem.distance(members.starts) == pytest.approx(float(distance))
    at = problem.linearise(members.starts)
    assert square(problem.residual(at)) == pytest.approx(float(distance))
