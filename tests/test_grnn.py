"""GRNN: generators against PyTorch's own layers, its distance, and what the attack recovers."""

import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.grnn import PlainGenerator, plain
from chains import chain, conv, error, image, view
from gradleak.attacks.base import ManyAttack
from gradleak.attacks.optimization.engine import generators
from gradleak.attacks.optimization.engine.distances import Regressed, Squared
from gradleak.attacks.optimization.engine.generators import Generators, Layout, at_once, draw, makes
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
from gradleak.attacks.optimization.grnn import STREAM, Grnn
from gradleak.attacks.runner import build
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain, LinearSpec

# Wide enough to fix the image, and smooth.
SMALL = chain(conv(12, 3, 2, 1, True, "sigmoid"), last="identity")
FAST = {"iterations": 250, "rate": 1e-3, "momentum": 0.9, "latent": 32, "tv": 0.0}


def run(seen, seed=0, **settings):
    return Grnn(**settings).run_many([seen], [seed])[0]


def pair(layout, batch, members=3):
    """Generators side by side, and the same of PyTorch's layers."""
    drawn = [draw(layout, batch, (seed, 1)) for seed in range(members)]
    return Generators(layout, drawn, dtype=torch.float64), [
        PlainGenerator(layout, one).double() for one in drawn
    ]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("size", [(3, 32, 32), (2, 8, 8)])
def test_generators_and_their_steps_are_those_of_pytorchs_layers(size, batch):
    ours, theirs = pair(Layout(size, 5, 16), batch)
    optimisers = [torch.optim.RMSprop(one.parameters(), lr=1e-3, momentum=0.9) for one in theirs]
    draw_ = torch.Generator().manual_seed(0)
    weights = torch.randn(3, batch, *size, dtype=torch.float64, generator=draw_)
    for _ in range(4):
        pixels, logits = ours()
        expected = [one() for one in theirs]
        assert pixels.shape == (3, batch, *size)
        assert 0.0 < float(pixels.detach().min()) < float(pixels.detach().max()) < 1.0
        for found, value in zip((pixels, logits), zip(*expected, strict=True), strict=True):
            # ε counts to first order alone.
            torch.testing.assert_close(found, torch.stack(value), rtol=1e-4, atol=1e-6)
        torch.autograd.backward([pixels, logits], [weights, torch.ones_like(logits)])
        ours.step(1e-3, 0.9)
        for (x, y), w, optimiser in zip(expected, weights, optimisers, strict=True):
            optimiser.zero_grad()
            ((x * w).sum() + y.sum()).backward()
            optimiser.step()


def test_widths_are_the_authors_and_as_many_generators_pass_at_once_as_memory_holds(monkeypatch):
    small, large = Layout((3, 32, 32), 10), Layout((3, 256, 256), 10)
    assert small.widths == [128, 64, 32, 3] and small.blocks == [(128, 128), (64, 64), (32, 6)]
    assert Layout((1, 8, 8), 10).blocks == [(32, 2)]
    assert large.widths == [1024, 512, 256, 128, 64, 32, 3]
    assert draw(small, 1, (0,))["first.weight"].shape == (128, 256, 4, 4)
    assert at_once(large, torch.float32) < 16 < at_once(small, torch.float32)
    monkeypatch.setattr(generators, "MEMORY", 1)
    assert at_once(small, torch.float32) == 1


def trained(ours, steps, rate, loss):
    """Take steps down a loss of images and logits, and return what is drawn then."""
    for _ in range(steps):
        loss(*ours()).backward()
        ours.step(rate, 0.9)
    return ours()


def test_labels_that_are_known_leave_their_branch_alone():
    ours, _ = pair(Layout((1, 8, 8), 3, 8), 1)
    _, before = ours()
    _, after = trained(ours, 2, 0.1, lambda pixels, _: pixels.sum())
    torch.testing.assert_close(after, before)


def test_steps_in_parts_are_those_of_the_whole(monkeypatch):
    found = []
    for part in (7, 2**15):
        monkeypatch.setattr(generators, "PART", part)
        ours, _ = pair(Layout((1, 8, 8), 3, 8), 2, members=2)
        found.append(trained(ours, 3, 0.01, lambda x, y: x.square().sum() + y.sum())[0])
    assert torch.equal(*found)


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((3, 4, 2), (3, 5), (3, 2))
    return [torch.randn(*size, dtype=torch.float64, generator=generator) for size in sizes]


@pytest.mark.parametrize("transport", [0.0, 0.7])
def test_distances_and_their_derivatives_equal_autograd(transport):
    targets, found = gradients(0), [g.requires_grad_() for g in gradients(1)]
    norm = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    ways = [g - t for g, t in zip(found, targets, strict=True)]
    squared = sum(way.flatten(1).square().sum(1) for way in ways)
    moved = sum(
        (g.flatten(1).sort(1).values - t.flatten(1).sort(1).values).abs().mean(1)
        for g, t in zip(found, targets, strict=True)
    )
    regressed = Regressed(targets, norm, torch.full_like(norm, transport))
    for distance, expected in (
        (Squared(targets), squared),
        (regressed, squared + norm * squared.sqrt() + transport * moved),
    ):
        value, residuals, factor = distance([g.detach().clone() for g in found])
        torch.testing.assert_close(value, expected.detach())
        slopes = torch.autograd.grad(expected.sum(), found, retain_graph=True)
        for residual, slope in zip(residuals, slopes, strict=True):
            torch.testing.assert_close(residual * factor.view(-1, *[1] * (slope.ndim - 1)), slope)
    torch.testing.assert_close(regressed.squared, squared.detach())


def test_at_the_target_the_distance_and_its_derivative_are_zero():
    ones = torch.ones(3, dtype=torch.float64)
    value, residuals, factor = Regressed(gradients(0), ones, ones)(gradients(0))
    assert torch.isfinite(factor).all()
    assert not any(each.count_nonzero() for each in (value, *residuals))


@pytest.mark.parametrize("low", [0.0, -2.0])
def test_the_attack_walks_as_the_plain_loop(low):
    seen = view(SMALL, image(SMALL, 0, low), low=low)
    settings = {"iterations": 12, "latent": 16, "tv": 0.5}
    found = run(seen, 3, precision="float64", **settings)
    images, trace = plain(seen, 3, settings)
    np.testing.assert_allclose(found.trace, trace, rtol=1e-5)
    np.testing.assert_allclose(found.images, images, atol=1e-4)
    assert found.loss == min(found.trace) and found.evaluations == 12


def test_grnn_recovers_images_and_their_labels():
    targets = [image(SMALL, seed) for seed in range(3)]
    views = [view(SMALL, target, label) for label, target in enumerate(targets)]
    attack = Grnn(**FAST, starts=2)
    assert isinstance(attack, ManyAttack)
    together = attack.run_many(views, [0, 1, 2])
    for label, (found, target) in enumerate(zip(together, targets, strict=True)):
        assert (found.label, found.failure) == (label, "")
        assert error(found, target) < 0.2 * float(np.var(target))
        assert found.loss <= found.others[0].loss
        assert np.all(np.abs(found.images) <= 0.5)
        assert len(found.trace) == 100 and found.trace[-1] < 0.1 * found.trace[0]


def test_no_member_sees_another(monkeypatch):
    views = [view(SMALL, image(SMALL, seed), seed=seed) for seed in range(3)]
    attack = Grnn(**FAST | {"iterations": 10, "precision": "float64"}, starts=2)
    whole = attack.run_many(views, [0, 1, 2])
    for number, found in enumerate(whole):
        alone, other = (attack.run_many([views[number]], [number + n])[0] for n in (0, 10))
        np.testing.assert_allclose(alone.images, found.images, atol=1e-9)
        np.testing.assert_allclose(alone.trace, found.trace, rtol=1e-9)
        assert not np.array_equal(other.images, found.images)
    monkeypatch.setattr(generators, "at_once", lambda *_: 2)
    for one, part in zip(whole, attack.run_many(views, [0, 1, 2]), strict=True):
        np.testing.assert_allclose(one.images, part.images, atol=1e-9)


def test_a_known_label_is_not_searched_for():
    found = run(view(SMALL, image(SMALL), 2), **FAST, label="from_view")
    assert found.label == 2
    assert error(found, image(SMALL)) < 0.2 * float(np.var(image(SMALL)))
    batch = view(SMALL, np.stack([image(SMALL)] * 2), [0, 1], granted=False)
    assert isinstance(run(batch, label="from_view", iterations=1), NumericsError)
    assert run(batch, iterations=1).images.shape == (2, *SMALL.input)


def test_the_batch_of_one_generator_is_recovered_up_to_its_order():
    targets = np.stack([image(SMALL, 0), image(SMALL, 1)])
    found = run(view(SMALL, targets, [0, 2]), **FAST | {"iterations": 400})
    errors = [error(found, targets[list(order)]) for order in ((0, 1), (1, 0))]
    assert min(errors) < 0.3 * float(np.var(targets))
    assert found.label is None


@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_a_sign_is_found_with_the_image(loss):
    network = chain(conv(12, 3, 2, 1, True, "sigmoid"), classes=1, last="identity")
    seen = view(network, image(network), -1, loss=loss, granted=False)
    found = run(seen, **FAST | {"iterations": 100})
    assert found.label == -1 and found.loss < 0.1


def test_under_batch_norm_of_its_own_statistics():
    layer = conv(8, 3, 1, 1, activation="sigmoid", norm="batch")
    network = chain(layer, conv(8, 3, 2, 1, True, "sigmoid"), last="identity", name="normed")
    assert Grnn().applies(network) is None
    found = run(view(network, image(network)), **FAST | {"iterations": 150})
    assert found.loss < 0.1 * found.trace[0]


def test_the_wasserstein_term_counts():
    seen = view(SMALL, image(SMALL))
    short = FAST | {"iterations": 1}
    one, more = (run(seen, **short, wasserstein=weight) for weight in (0.0, 3.0))
    network = BranchGradients(SMALL, seen.weights, seen.loss, dtype=torch.float64)
    layout = Layout(SMALL.input, 4, 32)
    _, logits = Generators(layout, [draw(layout, 1, (0, 0, STREAM))], dtype=torch.float64)()
    ours = network(torch.from_numpy(one.images)[None], logits.detach())
    shared = [seen.gradients[name].ravel() for name in network.names]
    pairs = zip((np.sort(each.numpy().ravel()) for each in ours), map(np.sort, shared), strict=True)
    transport = sum(np.abs(a - b).mean() for a, b in pairs)
    square = sum(np.sum(b**2) for b in shared)
    assert more.loss - one.loss == pytest.approx(3.0 * transport / square, rel=1e-4)


def test_failures_are_told_without_the_original():
    attack = Grnn()
    assert attack.failure(0.4) == ""
    assert "where 0.5 or more counts" in attack.failure(0.5)
    assert "never finite" in attack.failure(float("inf"))
    seen = view(SMALL, image(SMALL))
    settings = {"iterations": 2, "failure_loss": 1e-9, "precision": "float64"}
    found = run(seen, **settings)
    assert "where 1e-09 or more counts" in found.failure
    huge = {name: np.full_like(w, 1e30) for name, w in seen.weights.items()}
    broken = dataclasses.replace(seen, weights=huge)
    good, bad = Grnn(**settings).run_many([seen, broken], [0, 1])
    np.testing.assert_allclose(good.images, found.images, atol=1e-9)
    assert bad.failure


def test_what_grnn_refuses_is_said_in_a_sentence():
    sizes = {(32, 32): True, (8, 8): True, (4, 4): False, (28, 28): False, (32, 64): False}
    assert {size: makes((3, *size)) for size in sizes} == sizes
    attack = Grnn()
    assert attack.applies(chain(conv(2, 3), side=28)) == (
        "small takes images of 28x28, but GRNN's generator makes squares whose side is a power of "
        "two from 8 on; resize the images."
    )
    padded = chain(conv(2, 3, padding_mode="replicate"), name="padded")
    assert "padded has replicated padding" in attack.applies(padded)
    drops = Chain("drops", (3, 8, 8), (LinearSpec(3, dropout=0.5), LinearSpec(4)))
    assert "dropout" in attack.applies(drops)
    assert attack.applies(drops, "evaluation") is None
    assert build({"method": "grnn", "iterations": 3, "tv": 1e-6}) == Grnn(iterations=3, tv=1e-6)
