"""GGL: CMA-ES over a generator's latent vectors, its population in batches."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from chains import chain, conv, view
from gradleak.attacks.base import ManyAttack
from gradleak.attacks.optimization.engine.candidate_distances import Population
from gradleak.attacks.optimization.ggl import Ggl, divergence, indistinct
from gradleak.errors import NumericsError
from gradleak.training.generators import conditional_vae, files

SIZES = conditional_vae.Sizes((1, 8, 8), 3, latent=4, width=8)
SMOOTH = {"bias": True, "activation": "sigmoid"}
PLAIN = chain(conv(4, 3, 1, 1, **SMOOTH), channels=1, classes=3, last="identity")
NORMED = chain(
    conv(4, 3, 2, 1, activation="relu", norm="batch"),
    conv(4, 3, 1, 1, activation="relu", norm="batch", pool="global"),
    channels=1,
    classes=3,
    last="identity",
)
SETTINGS = {"generations": 60, "population": 12, "prior": 0.0, "precision": "float64"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A generator of random weights whose images differ by z and by class."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = conditional_vae.Decoder(SIZES)
        torch.nn.init.normal_(module.embedding.weight)
        for norm in module.norms:
            torch.nn.init.normal_(norm.weight, 2.0)
        torch.nn.init.normal_(module.leave.weight, std=0.5)
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    where = str(tmp_path_factory.mktemp("generator") / "small.safetensors")
    files.save(where, "conditional_vae", SIZES, weights, {})
    return where


def drawn(path, seed=0, label=1):
    """Latent vector and its image (C, H, W) in the range −0.5 … 0.5."""
    z = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (1, SIZES.latent))).float()
    return z[0].numpy(), files.read(path).images(z, torch.tensor([label]))[0].double().numpy() - 0.5


def ggl(path, **settings):
    return Ggl(generator="drawn", generator_file=path, **settings)


def view_of(path, seed=0, label=1, network=PLAIN, **more):
    return view(network, drawn(path, seed, label)[1], label, **more)


@pytest.mark.parametrize("network", [PLAIN, NORMED], ids=["plain", "normed"])
def test_the_image_of_a_latent_vector_is_found(path, network):
    attack = ggl(path, **SETTINGS)
    assert isinstance(attack, ManyAttack)
    assert attack.applies(network) is None
    seen = view_of(path, network=network, granted=False)
    (found,) = attack.run_many([seen], [0])
    target = drawn(path)[1]
    error, spread = np.mean((found.images[0] - target) ** 2), np.var(target)
    assert error < 1e-3 * spread
    assert found.label == 1
    assert found.images.shape == (1, *network.input)
    assert not found.failure
    assert found.loss == found.trace[-1] < 1e-3 * found.trace[0]
    assert np.all(np.diff(found.trace) <= 0)
    assert found.evaluations == 720
    assert found.stop == "evaluations spent"


def test_equal_seeds_give_equal_images_and_nothing_else_is_touched(path):
    attack = ggl(path, generations=3, population=6)
    seen = view_of(path)
    before = copy.deepcopy(dict(seen.gradients))
    state, torchs = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    first, again = attack.run_many([seen], [5])[0], attack.run_many([seen], [5])[0]
    np.testing.assert_array_equal(first.images, again.images)
    assert first.trace == again.trace
    other = attack.run_many([seen], [6])[0]
    assert not np.array_equal(first.images, other.images)
    together = attack.run_many([view_of(path, 1), seen], [6, 5])
    np.testing.assert_array_equal(together[1].images, first.images)
    for name, value in before.items():
        np.testing.assert_array_equal(seen.gradients[name], value)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert torch.equal(torch.random.get_rng_state(), torchs)


def test_no_file_and_no_word_is_left(path, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    # PyCMA would read this and stop at once.
    (tmp_path / "cma_signals.in").write_text("{'maxiter': 0}")
    (found,) = ggl(path, generations=4, population=6).run_many([view_of(path)], [0])
    assert found.evaluations == 24
    assert [one.name for one in tmp_path.iterdir()] == ["cma_signals.in"]
    assert capfd.readouterr() == ("", "")


def test_each_start_draws_for_itself_and_the_best_is_the_answer(path):
    (found,) = ggl(path, generations=3, population=6, starts=3).run_many([view_of(path)], [0])
    losses = [found.loss, *(other.loss for other in found.others)]
    assert len(set(losses)) == 3
    assert min(losses) == found.loss


@pytest.mark.parametrize("network", [PLAIN, NORMED], ids=["plain", "normed"])
def test_a_population_in_parts_is_as_one_by_one(path, network, monkeypatch):
    attack = ggl(path, precision="float64")
    seen = view_of(path, network=network)
    members = attack._members([seen], [attack._prepare(seen, 0)])
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.uniform(-0.5, 0.5, (11, 1, *network.input)))
    whole = Population(members, 11)
    found = whole.distances(images)
    single = torch.cat([Population(members, 1).distances(image[None]) for image in images])
    np.testing.assert_allclose(found, single, rtol=1e-12)
    monkeypatch.setattr(
        "gradleak.attacks.optimization.engine.candidate_distances.at_once", lambda network, batch: 4
    )
    parts = Population(members, 11)
    assert parts._size == 4
    np.testing.assert_allclose(parts.distances(images), single, rtol=1e-12)
    # By its definition: relative to the norm of the shared gradient.
    other = view(network, images[0, 0].numpy())
    names = members.network.names
    square = sum(np.sum((other.gradients[n] - seen.gradients[n]) ** 2) for n in names)
    norm = sum(np.sum(seen.gradients[n] ** 2) for n in names)
    np.testing.assert_allclose(found[0], square / norm, rtol=1e-6)


def test_gradients_that_were_not_given_are_not_compared(path):
    attack = ggl(path, precision="float64")
    seen = view_of(path, network=NORMED)
    kept = {n: v for n, v in seen.gradients.items() if n != "conv1_norm.weight"}
    part = dataclasses.replace(seen, gradients=kept)
    members = attack._members([part], [attack._prepare(part, 0)])
    assert members.network.names == tuple(kept)
    images = torch.from_numpy(np.random.default_rng(1).uniform(-0.5, 0.5, (1, 1, *NORMED.input)))
    (found,) = Population(members, 1).distances(images)
    other = view(NORMED, images[0, 0].numpy())
    square = sum(np.sum((other.gradients[n] - kept[n]) ** 2) for n in kept)
    np.testing.assert_allclose(found, square / sum(np.sum(v**2) for v in kept.values()), rtol=1e-6)


def test_the_prior_holds_the_latent_vector_where_the_generator_was_trained():
    rng = np.random.default_rng(0)
    usual = rng.standard_normal((5, 400))
    assert np.all(np.abs(divergence(usual)) < 0.02)
    assert np.all(divergence(usual + 1.0) > 0.4)
    assert np.all(divergence(0.1 * usual) > 1.0)
    assert np.isfinite(divergence(np.zeros((1, 4)))).all()
    wide = np.array([[2.0, -2.0]])
    np.testing.assert_allclose(divergence(wide), 0.5 * (4.0 - 1.0 - np.log(4.0)))


def test_the_prior_counts(path):
    seen = view_of(path)
    (free,) = ggl(path, **SETTINGS).run_many([seen], [0])
    (held,) = ggl(path, **{**SETTINGS, "prior": 10.0}).run_many([seen], [0])
    assert held.loss > free.loss


def test_candidates_that_are_not_finite_come_last(path, monkeypatch):
    true = Population.distances

    def broken(self, images):
        found = true(self, images)
        found[::2] = torch.nan
        return found

    monkeypatch.setattr(Population, "distances", broken)
    (found,) = ggl(path, **{**SETTINGS, "generations": 20}).run_many([view_of(path)], [0])
    assert np.isfinite(found.loss)
    assert found.loss < found.trace[0]
    monkeypatch.setattr(Population, "distances", lambda self, x: true(self, x) * torch.inf)
    (lost,) = ggl(path, generations=3, population=6).run_many([view_of(path)], [0])
    assert "never finite" in lost.failure


def test_a_search_that_ends_far_away_has_failed(path):
    attack = ggl(path, generations=1, population=4, failure_loss=1e-9)
    (found,) = attack.run_many([view_of(path)], [0])
    assert "failure_loss: 1e-09" in found.failure
    assert np.all(np.isfinite(found.images))
    assert ggl(path).failure(1.99) == ""
    assert "relative squared distance" in ggl(path).failure(2.0)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("prior", [0.0, 0.001])
def test_a_gradient_that_says_nothing_of_the_image_fails(path, precision, prior):
    """Sigmoid after Sigmoid of small weights: what reaches the last layer is the same for all."""
    layers = [conv(4, 3, 1, 1, **SMOOTH) for _ in range(3)]
    network = chain(*layers, channels=1, classes=3, last="identity")
    attack = ggl(path, generations=4, population=6, precision=precision, prior=prior)
    blank, telling = (
        attack.run_many([view_of(path, network=dataclasses.replace(network, spread=size))], [0])[0]
        for size in (1e-3, 0.5)
    )
    assert "6 first candidates" in blank.failure
    assert "says nothing of the image" in blank.failure
    assert (blank.stop, blank.evaluations) == ("candidates not told apart", 6)
    assert np.isfinite(blank.images).all()
    assert not telling.failure
    assert telling.evaluations == 24


def test_rounding_is_told_by_the_size_of_the_difference_not_by_its_share():
    assert indistinct(np.array([1e-14, 4e-14]))
    assert indistinct(np.array([1.0, 1.0 + 1e-7, np.nan]))
    assert not indistinct(np.array([1e-14, 4e-12]))
    assert not indistinct(np.array([1.0, 1.0 + 1e-5]))
    assert not indistinct(np.array([np.nan, np.inf]))


def test_an_early_end_is_told_in_pycmas_words(path, monkeypatch):
    steps = iter([0.1])

    def level(self, images):
        """Different candidates at first, then all alike."""
        return 3.0 + next(steps, 0.0) * torch.arange(len(images))

    monkeypatch.setattr(Population, "distances", level)
    (found,) = ggl(path, population=8, prior=0.0).run_many([view_of(path)], [0])
    assert found.stop.startswith("cma: tolf")
    assert found.evaluations < 8 * 100
    assert "distance of gradients of 3, not below" in found.failure


def test_generators_of_other_images_do_not_apply(path):
    attack = ggl(path)
    large = chain(conv(4, 3), channels=1, side=16, classes=3)
    assert "takes images of [1, 16, 16], but the generator draws [1, 8, 8]" in attack.applies(large)
    many = chain(conv(4, 3), channels=1, classes=5)
    assert "has 5 outputs, but the generator knows 3 classes" in attack.applies(many)


def test_batches_and_other_settings_are_refused(path):
    pair = np.stack([drawn(path, seed)[1] for seed in range(2)])
    seen = view(PLAIN, pair, np.array([0, 1]))
    (refused,) = ggl(path).run_many([seen], [0])
    assert isinstance(refused, NumericsError)
    assert "of 2 images" in str(refused)
    with pytest.raises(ValidationError, match=r"generator\n  Field required"):
        Ggl()
