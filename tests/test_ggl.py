"""GGL: CMA-ES over a generator's latent vectors, its population in batches."""

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from chains import chain, conv, error, view
from gradleak.attacks.base import ManyAttack
from gradleak.attacks.optimization.engine.search_batch import Population
from gradleak.attacks.optimization.ggl import Ggl, divergence, indistinct
from gradleak.errors import NumericsError
from gradleak.training.generators import conditional_vae, files

SIZES = conditional_vae.Sizes((1, 8, 8), 3, latent=4, width=8)
SMOOTH = {"bias": True, "activation": "sigmoid"}
PLAIN = chain(conv(4, 3, 1, 1, **SMOOTH), channels=1, classes=3, last="identity")
RELU = {"activation": "relu", "norm": "batch"}
LAYERS = conv(4, 3, 2, 1, **RELU), conv(4, 3, 1, 1, **RELU, pool="global")
NORMED = chain(*LAYERS, channels=1, classes=3, last="identity")
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
    return saved(tmp_path_factory.mktemp("generator"), SIZES, module)


def saved(folder, sizes, module):
    """Path of a file with a generator."""
    weights = {name: value.numpy() for name, value in module.state_dict().items()}
    files.save(str(folder / "small.safetensors"), "conditional_vae", sizes, weights, {})
    return str(folder / "small.safetensors")


def drawn(path, seed=0, label=1):
    """Image (C, H, W) of a latent vector, in the range −0.5 … 0.5."""
    z = torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (1, SIZES.latent))).float()
    return files.read(path).images(z, torch.tensor([label]))[0].double().numpy() - 0.5


def ggl(path, **settings):
    return Ggl(generator="drawn", generator_file=path, **settings)


def view_of(path, seed=0, label=1, network=PLAIN, **more):
    return view(network, drawn(path, seed, label), label, **more)


def run(path, seen=None, seed=0, **settings):
    return ggl(path, **settings).run_many([seen or view_of(path)], [seed])[0]


@pytest.mark.parametrize("network", [PLAIN, NORMED], ids=["plain", "normed"])
def test_the_image_of_a_latent_vector_is_found(path, network):
    assert isinstance(ggl(path), ManyAttack)
    assert ggl(path).applies(network) is None
    found = run(path, view_of(path, network=network, granted=False), **SETTINGS)
    assert error(found, drawn(path)) < 1e-3 * np.var(drawn(path))
    assert found.images.shape == (1, *network.input)
    assert found.loss == found.trace[-1] < 1e-3 * found.trace[0]
    assert np.all(np.diff(found.trace) <= 0)
    ended = found.label, found.failure, found.evaluations, found.stop
    assert ended == (1, "", 720, "evaluations spent")


def test_a_run_depends_on_its_seed_alone_and_leaves_other_generators_as_they_are(path):
    short = {"generations": 3, "population": 6}
    seen = view_of(path)
    state, torchs = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    first, other = (run(path, seen, seed, **short) for seed in (5, 6))
    assert not np.array_equal(first.images, other.images)
    together = ggl(path, **short).run_many([view_of(path, 1), seen], [6, 5])
    np.testing.assert_array_equal(together[1].images, first.images)
    assert together[1].trace == first.trace
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert torch.equal(torch.random.get_rng_state(), torchs)
    several = run(path, seen, **short, starts=3)
    losses = [several.loss, *(other.loss for other in several.others)]
    assert len(set(losses)) == 3 and min(losses) == several.loss


def test_no_file_and_no_word_is_left(path, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    # PyCMA would read this and stop at once.
    (tmp_path / "cma_signals.in").write_text("{'maxiter': 0}")
    assert run(path, generations=4, population=6).evaluations == 24
    assert [one.name for one in tmp_path.iterdir()] == ["cma_signals.in"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("network", "hidden"), [(PLAIN, ""), (NORMED, ""), (NORMED, "conv1_norm.weight")]
)
def test_a_population_in_parts_is_as_one_by_one(path, network, hidden, monkeypatch):
    """And compares the gradients that were given, relative to the norm of these."""
    attack = ggl(path, precision="float64")
    seen = view_of(path, network=network)
    kept = {name: value for name, value in seen.gradients.items() if name != hidden}
    seen = dataclasses.replace(seen, gradients=kept)
    members = attack._members([seen], [attack._prepare(seen, 0)])
    assert set(members.network.names) == set(kept)
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.uniform(-0.5, 0.5, (11, 1, *network.input)))
    found = Population(members, 11).distances(images)
    single = torch.cat([Population(members, 1).distances(image[None]) for image in images])
    np.testing.assert_allclose(found, single, rtol=1e-12)
    monkeypatch.setattr(type(members.network), "at_once", lambda self, batch: 4)
    parts = Population(members, 11)
    assert parts._size == 4
    np.testing.assert_allclose(parts.distances(images), single, rtol=1e-12)
    other = view(network, images[0, 0].numpy())
    square = sum(np.sum((other.gradients[name] - value) ** 2) for name, value in kept.items())
    norm = sum(np.sum(value**2) for value in kept.values())
    np.testing.assert_allclose(found[0], square / norm, rtol=1e-6)


def test_the_prior_holds_the_latent_vector_where_the_generator_was_trained(path):
    usual = np.random.default_rng(0).standard_normal((5, 400))
    assert np.all(np.abs(divergence(usual)) < 0.02)
    assert np.all(divergence(usual + 1.0) > 0.4)
    assert np.all(divergence(0.1 * usual) > 1.0)
    assert np.isfinite(divergence(np.zeros((1, 4)))).all()
    wide = np.array([[2.0, -2.0]])
    np.testing.assert_allclose(divergence(wide), 0.5 * (4.0 - 1.0 - np.log(4.0)))
    free, held = (run(path, **SETTINGS | {"prior": prior}) for prior in (0.0, 10.0))
    assert held.loss > free.loss


def test_candidates_that_are_not_finite_come_last(path, monkeypatch):
    true = Population.distances

    def broken(self, images):
        found = true(self, images)
        found[::2] = torch.nan
        return found

    monkeypatch.setattr(Population, "distances", broken)
    found = run(path, **SETTINGS | {"generations": 20})
    assert np.isfinite(found.loss) and found.loss < found.trace[0]
    monkeypatch.setattr(Population, "distances", lambda self, x: true(self, x) * torch.inf)
    assert "never finite" in run(path, generations=3, population=6).failure


def test_a_search_that_ends_far_away_has_failed(path):
    found = run(path, generations=1, population=4, failure_loss=1e-9)
    assert "where 1e-09 or more counts as failed" in found.failure
    assert np.all(np.isfinite(found.images))
    assert ggl(path).failure(1.99) == ""
    assert "relative squared distance" in ggl(path).failure(2.0)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("prior", [0.0, 0.001])
def test_a_gradient_that_says_nothing_of_the_image_fails(path, precision, prior):
    """Sigmoid after Sigmoid of small weights: what reaches the last layer is the same for all."""
    layers = [conv(4, 3, 1, 1, **SMOOTH) for _ in range(3)]
    network = chain(*layers, channels=1, classes=3, last="identity")
    settings = {"generations": 4, "population": 6, "precision": precision, "prior": prior}
    blank, telling = (
        run(path, view_of(path, network=dataclasses.replace(network, spread=size)), **settings)
        for size in (1e-3, 0.5)
    )
    assert "6 first candidates" in blank.failure and "says nothing of the image" in blank.failure
    assert (blank.stop, blank.evaluations) == ("candidates not told apart", 6)
    assert np.isfinite(blank.images).all()
    assert (telling.failure, telling.evaluations) == ("", 24)


def test_rounding_is_told_by_the_size_of_the_difference_not_by_its_share():
    for alike in ([1e-14, 4e-14], [1.0, 1.0 + 1e-7, np.nan]):
        assert indistinct(np.array(alike)) != ""
    for told in ([1e-14, 4e-12], [1.0, 1.0 + 1e-5], [np.nan, np.inf]):
        assert indistinct(np.array(told)) == ""


def test_an_early_end_is_told_in_pycmas_words(path, monkeypatch):
    steps = iter([0.1])

    def level(self, images):
        """Different candidates at first, then all alike."""
        return 3.0 + next(steps, 0.0) * torch.arange(len(images))

    monkeypatch.setattr(Population, "distances", level)
    found = run(path, population=8, prior=0.0)
    assert found.stop.startswith("cma: tolf") and found.evaluations < 8 * 100
    assert "distance of gradients of 3, where 2 or more counts" in found.failure


def test_what_ggl_refuses_is_said_in_a_sentence(path):
    for more, why in (
        (
            {"side": 16, "classes": 3},
            "takes images of [1, 16, 16], but the generator draws [1, 8, 8]",
        ),
        ({"classes": 5}, "has 5 outputs, but the generator knows 3 classes"),
    ):
        assert why in ggl(path).applies(chain(conv(4, 3), channels=1, **more))
    pair = view(PLAIN, np.stack([drawn(path, seed) for seed in range(2)]), [0, 1])
    refused = run(path, pair)
    assert isinstance(refused, NumericsError) and "of 2 images" in str(refused)
    with pytest.raises(ValidationError, match=r"generator\n  Field required"):
        Ggl()
