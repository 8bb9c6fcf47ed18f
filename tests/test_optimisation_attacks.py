"""Searches over many images and starts at once: the minimiser, DLG, Inverting Gradients."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.optimize import minimize as scipy_minimize

from benchmarks import dlg as benchmark
from benchmarks.searches import Network
from chains import chain, conv, error, image, run, view
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine import lbfgs
from gradleak.attacks.optimization.engine.lbfgs import Settings, minimise
from gradleak.attacks.optimization.engine.search_batch import Best
from gradleak.attacks.optimization.gauss_newton import GaussNewton
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.optimization.optimization_attack import known_labels, variation
from gradleak.errors import ConfigError, NumericsError
from gradleak.library.attack_choice import chosen
from gradleak.models.initial import initial_weights
from gradleak.training.optimisers import adam_step
from test_branches import distance_of

LAYERS = (conv(4, 3, stride, 1, bias=True, activation="sigmoid") for stride in (1, 2))
SMALL = chain(*LAYERS, side=5, last="identity")
SIGNED = chain(*SMALL.specs[:-1], side=5, classes=1, last="identity")


def rosenbrock(x, members):
    """Rosenbrock functions of steepness 10^member."""
    x = x.detach().requires_grad_()
    steep = 10.0 ** members.double().unsqueeze(1)
    bend = steep * (x[:, 1:] - x[:, :-1] ** 2) ** 2
    value = (bend + (1.0 - x[:, :-1]) ** 2).sum(1)
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


def quadratic(x, members):
    """Convex, minimum 5 at 1, of condition 10^(2 member)."""
    spread = torch.logspace(0, 1, x.shape[1], dtype=x.dtype)
    weights = spread.log10().unsqueeze(0).mul(2.0 * members.unsqueeze(1)).mul(np.log(10)).exp()
    offset = x - 1.0
    return 5.0 + 0.5 * (weights * offset**2).sum(1), weights * offset


def start(members, variables):
    return torch.from_numpy(np.random.default_rng(0).standard_normal((members, variables)))


def test_each_problem_reaches_the_minimum_that_scipy_finds():
    first = start(4, 8)
    found = minimise(rosenbrock, first, Settings(gradient=1e-9, evaluations=1000))
    assert found.stop == [lbfgs.GRADIENT] * 4

    def plain(x, member):
        value, slope = rosenbrock(torch.from_numpy(x)[None], torch.tensor([member]))
        return value.item(), slope[0].numpy()

    options = {"maxiter": 5000, "gtol": 1e-9, "ftol": 0.0, "maxcor": 20}
    options = {"jac": True, "method": "L-BFGS-B", "options": options}
    for member in range(4):
        expected = scipy_minimize(plain, first[member].numpy(), (member,), **options)
        np.testing.assert_allclose(found.x[member], expected.x, atol=1e-6)
        trace, evaluations = found.trace[member], found.evaluations[member]
        assert evaluations < 2 * expected.nfev
        assert np.isfinite(trace).sum() == evaluations
        assert np.all(np.diff(trace[:evaluations]) <= 0)


def test_no_problem_sees_another():
    first = start(4, 8)
    settings = Settings(gradient=1e-6, evaluations=300, history=5)
    together = minimise(rosenbrock, first, settings)
    for member in range(4):
        alone = minimise(lambda x, m, k=member: rosenbrock(x, m + k), first[member, None], settings)
        assert alone.stop[0] == together.stop[member]
        # Sums of other lengths are rounded otherwise, and the steep ones magnify that.
        assert abs(alone.evaluations[0] - together.evaluations[member]) <= 5
        np.testing.assert_allclose(alone.x[0], together.x[member], atol=1e-5)


def test_a_minimum_above_zero_is_found_at_any_condition():
    # Beside 5, a value cannot tell of gradients much smaller than this.
    found = minimise(quadratic, start(3, 12), Settings(gradient=1e-5, evaluations=500))
    assert found.stop == [lbfgs.GRADIENT] * 3
    np.testing.assert_allclose(found.x, 1.0, atol=1e-4)
    np.testing.assert_allclose(found.value, 5.0)


def test_every_reason_to_stop_is_told():
    first = start(3, 12)

    def wall(x, members):
        # The gradient lies: every step goes up.
        return 1.0 + (x - first[members]).square().sum(1), torch.ones_like(x)

    for objective, settings, reason in (
        (quadratic, {"target": 6.0}, lbfgs.TARGET),
        *((quadratic, {"evaluations": count}, lbfgs.BUDGET) for count in (1, 3)),
        (rosenbrock, {"change": 0.9, "window": 2}, lbfgs.CHANGE),
        (wall, {}, lbfgs.NO_DECREASE),
    ):
        found = minimise(objective, first, Settings(**settings))
        assert found.stop == [reason] * 3
        if reason == lbfgs.BUDGET:
            np.testing.assert_array_equal(found.evaluations, settings["evaluations"])


def test_a_start_that_is_not_finite_stops_alone_and_infinite_trials_shorten_the_step():
    first = start(3, 4)
    first[1, 0] = torch.nan

    def barrier(x, members):
        value, slope = quadratic(x, torch.zeros_like(members))
        # Infinite beyond 1.1 in any variable, as where a network overflows.
        return torch.where((x > 1.1).any(1), torch.inf, value), slope

    found = minimise(barrier, first.clamp(max=1.0), Settings(gradient=1e-5, evaluations=200))
    assert found.stop[1] == lbfgs.NOT_FINITE
    assert np.isnan(found.value[1])
    assert found.evaluations[1] == 1
    np.testing.assert_allclose(found.x[[0, 2]], 1.0, atol=1e-4)


def test_slack_lets_a_search_climb_a_wall():
    def band(x, members):
        # 5 higher between 2 and 3, where the gradient tells nothing of it.
        wall = 5.0 * ((x[:, 0] > 2.0) & (x[:, 0] < 3.0))
        return 0.5 * x[:, 0] ** 2 + wall, x.sign()

    first = torch.full((1, 1), 3.5, dtype=torch.float64)
    settings = Settings(evaluations=200, target=0.01, window=100)
    strict = minimise(band, first, settings)
    loose = minimise(band, first, replace(settings, slack=1.0))
    assert strict.stop == [lbfgs.NO_DECREASE] and 3.0 <= strict.x[0, 0] < 3.01
    assert loose.stop == [lbfgs.TARGET]


def steep(network):
    return {name: 4.0 * value for name, value in initial_weights(network, 0).items()}


def view_of(target, label=1, *, network=SMALL, **more):
    return view(network, target, label, weights=steep(network), **more)


def test_dlg_recovers_images_from_every_start():
    targets = [image(SMALL, seed) for seed in range(3)]
    views = [view_of(t, label, granted=label != 1) for label, t in enumerate(targets)]
    attack = Dlg(starts=2, iterations=800, precision="float64")
    assert attack.applies(SMALL) is None
    every = attack.run_many(views, [5, 6, 7])
    for label, (found, target) in enumerate(zip(every, targets, strict=True)):
        (other,) = found.others
        assert {found.kind, other.kind} in ({"answer", "start 1"}, {"answer", "start 2"})
        assert found.loss <= other.loss
        assert found.label == label
        for answer in (found, other):
            assert error(answer, target) < 1e-6, answer.stop
            assert not answer.failure
            assert answer.images.shape == (1, *SMALL.input)
            assert 0 < answer.evaluations <= 800
            assert answer.trace[-1] == answer.loss < answer.trace[0]
            assert len(answer.trace) <= 100


def test_an_unknown_label_is_found_with_the_image():
    target = image(SMALL, 3)
    attack = Dlg(label="unknown", starts=3, iterations=1500, precision="float64")
    found = run(attack, view_of(target, 2, granted=False))
    assert found.label == 2 and error(found, target) < 1e-6
    found = run(attack, view_of(target, -1, loss="logistic", network=SIGNED, granted=False))
    assert found.label == -1 and found.loss < 1e-8


def test_a_batch_is_recovered_up_to_its_order():
    targets = np.stack([image(SMALL, 4), image(SMALL, 5)])
    found = run(Dlg(starts=2, iterations=1500, precision="float64"), view_of(targets, [0, 2]))
    assert found.images.shape == targets.shape
    assert error(found, targets) < 1e-4
    assert found.label is None


def test_given_starts_are_used_with_and_without_noise():
    target = image(SMALL, 0)
    near = np.stack([target[None] + 0.01, np.full((1, *SMALL.input), 0.3)])
    seen = view_of(target, starts=near)
    given = {"start": "reconstruction", "iterations": 1}
    found = run(Dlg(**given, starts=5, precision="float64"), seen)
    assert len(found.others) == 1
    np.testing.assert_allclose(found.images, near[0])
    noisy = run(Dlg(**given, starts=3, start_noise=0.1), seen)
    assert len({"answer", *(answer.kind for answer in noisy.others)}) == 3
    assert error(noisy, near[0]) == pytest.approx(0.01 * np.mean(near[0] ** 2), rel=0.5)
    lone = run(Dlg(**given), view_of(target))
    assert isinstance(lone, NumericsError) and "no start was given" in str(lone)
    wrong = replace(seen, starts=np.zeros((1, 2, *SMALL.input)))
    assert "have the shape (2, 2, 5, 5)" in str(run(Dlg(**given), wrong))


def test_one_view_that_cannot_be_attacked_leaves_the_others_as_they_are():
    target = image(SMALL, 0)
    good = view_of(target)
    zero = replace(good, gradients={name: 0.0 * value for name, value in good.gradients.items()})
    unknown = view_of(np.stack([target, target]), np.array([0, 1]), granted=False)
    attack = Dlg(starts=2, iterations=30, chunk=3)
    first, second, third, fourth = attack.run_many([good, zero, unknown, good], [0, 1, 2, 0])
    assert "zero everywhere" in str(second)
    assert "labels were not granted" in str(third)
    for other in (fourth, run(attack, good)):
        np.testing.assert_allclose(first.images, other.images, atol=1e-5)


def test_a_failed_start_is_told_without_the_original():
    seen, zeros = view_of(image(SMALL, 0)), np.zeros((1, *SMALL.input))
    strict = {"failure_loss": 1e-4, "failure_range": 0.1}
    assert Dlg().judge(1e-3, zeros, seen) == ""
    for settings, loss, images, words in (
        ({}, float("nan"), zeros, "not finite"),
        ({}, 1.0, zeros, "where 0.5 or more counts as failed"),
        ({}, 1e-3, zeros + 3.0, "where more than 1 counts as failed"),
        (strict, 1e-3, zeros, "where 0.0001 or more counts"),
        (strict, 1e-5, zeros + 1.0, "where more than 0.1 counts"),
    ):
        assert words in Dlg(**settings).judge(loss, images, seen)
    # A saturated start has no gradient of its own, and so a distance of 1.
    far = replace(seen, starts=np.full((1, 1, *SMALL.input), 1e6))
    found = run(Dlg(start="reconstruction", iterations=20), far)
    assert found.failure and np.all(np.isfinite(found.images))
    settings = {"failure_loss": 1e-9, "iterations": 3}
    for attack in (InvertingGradients(**settings), GaussNewton(start="normal", **settings)):
        assert "where 1e-09 or more counts as failed" in run(attack, seen).failure
    assert "never finite" in InvertingGradients().failure(float("inf"))
    assert InvertingGradients().failure(0.99) == "" != InvertingGradients().failure(1.0)


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_granted_signs_are_held_against_the_gradient(loss):
    more, pair = {"loss": loss, "network": SIGNED}, np.stack([image(SMALL, n) for n in (0, 1)])
    seen, both = view_of(pair[0], -1, **more), view_of(pair, [1, -1], **more)
    assert (known_labels(seen), known_labels(both)) == ((-1,), (1, -1))
    assert "contradicts" in str(run(Dlg(iterations=2), replace(seen, labels=(1,))))
    for known, labels, words in (
        (seen, (1,), r"y = 1 contradicts the gradient"),
        (seen, (0,), r"label 0 is not a label of the .* takes −1 or 1"),
        (both, (1, 2), "label 2 is not a label"),
    ):
        with pytest.raises(NumericsError, match=words):
            known_labels(replace(known, labels=labels))


@pytest.mark.parametrize("activation", ["leaky_relu", "relu", "tanh"])
def test_kinks_get_slack(activation, monkeypatch):
    noted = Mock(wraps=minimise)
    monkeypatch.setattr(lbfgs, "minimise", noted)
    network = chain(conv(4, 3, activation=activation), side=5, last="identity")
    run(Dlg(iterations=1), view(network, image(network)))
    (call,) = noted.call_args_list
    assert call.args[2].slack == float(activation != "tanh")


def test_inverting_gradients_matches_the_direction_within_the_box():
    targets = [image(SMALL, seed) for seed in range(2)]
    views = [view_of(target, label) for label, target in enumerate(targets)]
    attack = InvertingGradients(iterations=150, tv=0.0, precision="float64", starts=2)
    together = attack.run_many(views, [0, 1])
    for i, (found, target) in enumerate(zip(together, targets, strict=True)):
        assert found.loss == pytest.approx(distance_of(views[i], found.images), rel=1e-6)
        assert found.loss < 0.01 < found.trace[0] and found.label == i
        assert np.all(np.abs(found.images) <= 0.5) and error(found, target) < 0.03
        alone = run(attack, views[i], i)
        np.testing.assert_allclose(alone.images, found.images, atol=1e-6)


def test_total_variation_smooths():
    attacks = (InvertingGradients(iterations=60, tv=tv) for tv in (0, 1.0))
    rough, smooth = (run(attack, view_of(image(SMALL, 0))).images for attack in attacks)
    parts = ([np.abs(np.diff(one, axis=axis)).mean() for axis in (2, 3)] for one in (smooth, rough))
    assert sum(next(parts)) < 0.5 * sum(next(parts))


class ByBranches(InvertingGradients):
    only_branches = True


def test_balanced_steps_go_along_both_gradients_under_both_engines():
    target = view_of(image(SMALL, 0))
    settings = {"balance": 0.5, "precision": "float64", "start": "gray"}
    found = [
        run(kind(iterations=60, **settings), target) for kind in (InvertingGradients, ByBranches)
    ]
    np.testing.assert_allclose(*(one.images for one in found), atol=1e-9)
    assert (
        len(found[0].trace) == 60 and found[0].loss == found[0].trace[-1]
    )  # the last point counts
    assert found[0].loss == pytest.approx(distance_of(target, found[0].images), rel=1e-6)
    # A second step goes by both: without total variation it is another, and `tv` is none of it.
    two = [
        run(InvertingGradients(iterations=2, **settings | more), target).images
        for more in ({}, {"tv": 10.0}, {"balance": 0.0})
    ]
    np.testing.assert_array_equal(two[0], two[1])
    assert np.abs(two[0] - two[2]).max() > 1e-3


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_one_balance_does_for_networks_that_an_image_moves_more_or_less(scale):
    first = f"{SMALL.layers[0].name}.weight"
    weights = steep(SMALL)
    weights[first] = scale * weights[first]
    target = view(SMALL, image(SMALL, 0), weights=weights)
    settings = {"iterations": 300, "precision": "float64"}
    balanced = run(InvertingGradients(balance=0.5, start="gray", **settings), target)
    weighted = run(InvertingGradients(tv=0.01, **settings), target)
    assert error(balanced, image(SMALL, 0)) < 1e-3 < 0.01 < error(weighted, image(SMALL, 0))


def test_a_gray_start_is_near_the_middle_and_rates_fall():
    settings = {"start": "gray", "iterations": 1}
    for low, high in ((-0.5, 0.5), (0.0, 255.0)):
        own = replace(view_of(image(SMALL, 0)), low=low, high=high)
        begin = (run(InvertingGradients(**settings), own).images - low) / (high - low)
        assert abs(begin.mean() - 0.5) < 0.05 and 0.05 < begin.std() < 0.15
    rates = InvertingGradients(rate=0.2, balance=0.5, iterations=4)._rates()
    np.testing.assert_allclose(rates, 0.1 + 0.1 * np.cos(np.pi * np.arange(4) / 4))
    falling = InvertingGradients(rate=1.0, iterations=8)._rates()
    np.testing.assert_allclose(falling, [1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("name", ["inverting_gradients", "surrogate"])
def test_a_weight_of_total_variation_takes_the_place_of_the_balance(name):
    attack = chosen(name, {}, "cpu")
    assert (attack.balance, attack.start) == (0.5, "gray")
    attack = chosen(name, {"tv": 0.1}, "cpu")
    assert (attack.balance, attack.tv, attack.start) == (None, 0.1, "normal")
    assert chosen(name, {"tv": 0.1, "start": "uniform"}, "cpu").start == "uniform"
    assert chosen(name, {"balance": 0.3}, "cpu").start == "gray"
    assert chosen(name, {"balance": None}, "cpu").start == "normal"
    with pytest.raises(ConfigError, match=f"{name}: tv is a weight .* give one of them"):
        chosen(name, {"tv": 0.1, "balance": 0.5}, "cpu")


def test_an_image_one_pixel_high_has_variation_across_alone():
    line = torch.tensor([0.0, 1.0, 3.0]).view(1, 1, 1, 1, 3)
    assert variation(line, torch.abs).tolist() == variation(line.mT, torch.abs).tolist() == [1.5]


def test_of_balanced_steps_the_last_finite_point_counts():
    best = Best(torch.ones(2), torch.zeros(2, 1), torch.zeros(2, 0), last=True)
    for value in ([1.0, 1.0], [2.0, np.nan]):
        best.offer(torch.tensor(value), torch.tensor(value), torch.tensor(value)[:, None])
    assert best.distance.tolist() == [2.0, 1.0] and best.images.tolist() == [[2.0], [1.0]]


def test_the_benchmark_counts_successes_of_both():
    targets = np.stack([image(SMALL, seed) + 0.5 for seed in range(2)])
    given = Network(SMALL, steep(SMALL), targets, np.array([1, 2]), (0.0, 1.0))
    case = given.case(2, starts=2, stream=benchmark.STREAM, mode="training")
    entry, each, success = benchmark.rows(case, outer=20, threads=1)
    assert 0 < each["ours_s"] < entry["ours_s"]
    assert 0.5 * entry["ours_s"] <= success["ours_s"] <= 2 * entry["ours_s"]  # of 4 starts, 1 to 4
    assert entry["ratio"] == pytest.approx(entry["reference_s"] / entry["ours_s"])
    assert "2 images, 2 starts each, 400 evaluations at most" in entry["note"]
    assert entry["ours_error"] < benchmark.SUCCESS
    plain = benchmark.reference(case, 20)
    assert plain.errors.shape == plain.accepted.shape == (2, 2)
    assert plain.successes > 0
    assert np.all(plain.accepted[plain.errors < benchmark.SUCCESS])


def test_steps_of_inverting_gradients_are_those_of_adam():
    ours, theirs = (torch.linspace(-2.0, 2.0, 9, requires_grad=True) for _ in range(2))
    state = [[torch.zeros(9)], [torch.zeros(9)], [torch.zeros(())]]
    optimiser = torch.optim.Adam([theirs], lr=0.1)
    for _ in range(20):
        slope, theirs.grad = (torch.autograd.grad((x**4).sum(), x)[0] for x in (ours, theirs))
        with torch.no_grad():
            adam_step([ours], [slope], state, 0.1)
        optimiser.step()
    assert torch.equal(ours, theirs)
