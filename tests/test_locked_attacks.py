"""Gradients of locked networks: what is shared of a lock, and what attacks make of the rest."""

import dataclasses

import numpy as np
import pytest

import chains
from chains import conv, models, saved, shared
from conftest import refused
from figure_files import target_set
from gradleak.attacks.base import AttackerView
from gradleak.attacks.closed_form.keylock_inversion import Unlock, tail_of
from gradleak.attacks.keylock import key_of, open_lock
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine.lbfgs import CHANGE
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.runner import Views
from gradleak.client.defences.apply import defend_all
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.client.shared_parameters import LOCK
from gradleak.errors import ConfigError, NumericsError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, is_key, is_private, private
from test_locks import lock_of

CLASSES, SIZE, LENGTH = 4, (3, 8, 8), 11


def chain(lock="sigmoid", layers=("conv1",), kernel=3, padding=1, activation="sigmoid", **second):
    specs = (
        conv(8, kernel, 2, padding, True, activation),
        conv(12, 3, 1, 1, True, "sigmoid", **second),
        LinearSpec(CLASSES),
    )
    specs = with_lock(specs, layers, Lock(LENGTH, Activation(lock)))
    return Chain("net", SIZE, specs, spread=0.5)


def skipped(layers=("conv1", "conv2_skip")):
    """With a projection, and norms behind the second layer's convolutions that are not locked."""
    return chain(layers=layers, skip=2, projection=True, norm="batch")


def lenet(lock="sigmoid", **more):
    """As LeNet begins: every phase of the stride meets the padding."""
    return chain(lock, kernel=5, padding=2, **more)


BOTH = pytest.mark.parametrize("which", [chain(), skipped()], ids=["conv1", "skipped"])
SEARCHES = pytest.mark.parametrize("attack", [Dlg, InvertingGradients])


class Client:
    """A client whose lock weights have moved since the server sent them."""

    def __init__(self, moved=0.0):
        self.moved = moved

    def of(self, chain, seed):
        own = private(initial_weights(chain, seed)) | draw_key(chain, 0, seed)
        return {n: v if is_key(n) else (v + self.moved).astype(np.float32) for n, v in own.items()}


def targets(count=2):
    return target_set(count, shape=SIZE, labels=[1])


def captured(which, lock="withheld", client=None, seeds=1, count=1):
    more = {"client": client or Client(), "lock": lock}
    return chains.captured(models(which, seeds=seeds), targets(count), seeds, **more)


def view(lock="withheld", which=None, client=None, seed=0):
    """What the attacker has of the first image under one draw of weights."""
    which = which or chain()
    tensors, facts = captured(which, lock=lock, client=client, seeds=seed + 1)
    found = {name.split("/")[1]: value[seed, 0] for name, value in tensors.items()}
    keys = {name: found.pop(name) for name in list(found) if is_key(name)}
    label = int(found.pop("label")[0])
    found.pop("class")
    more = {"mode": facts["mode"][which.name], "keys": keys}
    return AttackerView(which, initial_weights(which, seed), found, (label,), 0.0, 1.0, **more)


def unlocked(seen):
    """The same view with zeros in the place of the lock's gradients."""
    gradients = {name: value * (not is_private(name)) for name, value in seen.gradients.items()}
    return dataclasses.replace(seen, gradients=gradients)


@pytest.mark.parametrize("lock", LOCK)
@pytest.mark.parametrize(
    ("which", "layer"), [(chain(), "conv1"), (skipped(["conv2_skip"]), "conv2_skip")]
)
def test_what_is_withheld_is_not_in_the_file(which, layer, lock):
    tensors, facts = captured(which, lock=lock)
    names = {name.removeprefix("net/") for name in tensors}
    norms = {"conv2_norm.weight", "conv2_norm.bias"} if layer == "conv2_skip" else set()
    layers = {"conv1", "conv2", "fc1", layer}
    plain = {f"{one}.{part}" for one in layers for part in ("weight", "bias")} | norms
    plain |= {f"{layer}_key"} if lock in ("key", "both") else set()
    plain |= lock_of(layer) if lock in ("gradient", "both") else set()
    assert names == plain - {"conv2_skip.bias"} | {"label", "class"}
    assert facts["lock"] == lock and facts["mode"] == {"net": "training"}
    # Nor is a lock weight hidden under another name.
    own = Client().of(which, 0)
    for name, value in tensors.items():
        assert is_key(name.removeprefix("net/")) or not any(
            np.array_equal(np.ravel(value), np.ravel(secret)) for secret in own.values()
        )


def test_a_client_computes_with_its_own_lock():
    moved = Client(0.3)
    with_own, _ = captured(chain(), lock="both", client=moved)
    with_first, _ = captured(chain(), lock="both")
    np.testing.assert_array_equal(with_own["net/conv1_key"], with_first["net/conv1_key"])
    assert not np.allclose(with_own["net/conv2.weight"], with_first["net/conv2.weight"])
    weights, images = initial_weights(chain(), 0) | moved.of(chain(), 0), targets(1)
    alone = shared(chain(), weights, images.batch(0), images.labels[0])
    for name, value in alone.items():
        np.testing.assert_array_equal(with_own[f"net/{name}"][0, 0], value)


def test_a_locked_network_needs_a_client_and_a_known_way_of_sharing():
    with refused("net is locked, but no client is given", kind=ConfigError):
        chains.captured(models(chain()), targets(1))
    with refused("lock: 'open' is not known; choose one of withheld, ", kind=ConfigError):
        captured(chain(), lock="open")


def test_views_have_keys_apart_from_gradients(tmp_path):
    captures = captured(chain(), lock="both", seeds=2, count=2)
    seen = [one for one, *_ in Views(*saved(tmp_path, models(chain(), seeds=2), *captures))]
    assert len(seen) == 4
    for number, one in enumerate(seen):
        key = draw_key(chain(), 0, number // 2)["conv1_key"]
        np.testing.assert_array_equal(one.keys["conv1_key"], key)
        assert not any(is_key(name) for name in (*one.gradients, *one.weights))


def test_a_defence_leaves_keys_alone():
    tensors, facts = captured(chain(), lock="both")
    before, _ = captured(chain(), lock="both")
    defend_all(models(chain()), targets(1), tensors, facts, GaussianNoise(level=0.5), Client())
    np.testing.assert_array_equal(tensors["net/conv1_key"], before["net/conv1_key"])
    for name in ("conv1.weight", "conv1_lock_scale.weight"):
        assert not np.array_equal(tensors[f"net/{name}"], before[f"net/{name}"])


@pytest.mark.parametrize(
    "which",
    [*(chain(name, ("conv1", "conv2")) for name in ("sigmoid", "relu", "identity")), skipped()],
)
def test_the_gradient_of_a_lock_is_the_key_times_a_vector(which):
    """The paper holds that the key cannot be told from it; its rank of one says otherwise."""
    assert len(which.locked) == 2
    seen, without = view("gradient", which), view("withheld", which)
    assert not seen.keys
    dead = unlocked(seen).gradients
    for layer in which.locked:
        key = draw_key(which, 0, 0)[f"{layer.name}_key"]
        np.testing.assert_allclose(key_of(layer, seen.gradients), key, rtol=1e-6)
        assert key_of(layer, without.gradients) is key_of(layer, dead) is None


@BOTH
@pytest.mark.parametrize("mode", ["guess", "fit"])
@pytest.mark.parametrize("lock", LOCK)
def test_what_an_attacker_puts_in_the_place_of_a_lock(lock, mode, which):
    knows = lock in ("key", "both") or (lock, mode) == ("gradient", "fit")
    seen, names = view(lock, which), [layer.name for layer in which.locked]
    opening = open_lock(seen, mode, seed=5, starts=3)
    assert opening.mismatched == ((lock, mode) == ("gradient", "guess"))
    assert (opening.scaling is not None) == ((lock, mode) == ("withheld", "fit"))
    if opening.scaling is not None:
        assert opening.scaling.shape == (3, 2 * sum(layer.filters for layer in which.locked))
        assert len({start.tobytes() for start in opening.scaling}) == 3
        norms = [f"{name}_norm.{kind}" for name in names for kind in ("weight", "bias")]
        found = np.concatenate([opening.weights[name] for name in norms])
        np.testing.assert_array_equal(found, opening.scaling[0])
        assert not any(is_private(name) for name in (*opening.weights, *opening.shared))
        # A norm that is not locked is known.
        assert np.all(opening.weights.get("conv2_norm.weight", 1.0) == 1.0)
        return
    compared = {n for n in seen.gradients if mode == "guess" or not is_private(n)}
    assert opening.shared.keys() == compared
    for name in names:
        found, key = opening.weights[f"{name}_key"], draw_key(which, 0, 0)[f"{name}_key"]
        assert np.allclose(found, key, rtol=1e-5) == knows
        if not knows:
            other = open_lock(seen, mode, seed=6).weights[f"{name}_key"]
            assert not np.array_equal(found, other) and found.min() >= 0.0 and found.max() < 1.0


def test_a_granted_key_of_another_length_is_refused():
    seen = dataclasses.replace(view("key"), keys={"conv1_key": np.zeros(3)})
    with refused("takes a key of 11 values, but the one given has 3", kind=ConfigError):
        open_lock(seen, "guess", 0)


@BOTH
@SEARCHES
def test_the_key_opens_the_lock_and_a_guess_does_not(attack, which):
    """Under the true γ and β the truth has a distance of 0, under guessed ones not."""
    truth = targets(1).inputs(0)
    search = attack(iterations=1, precision="float64", start="reconstruction")
    tv = 1e-4 * (np.abs(np.diff(truth, axis=2)).mean() + np.abs(np.diff(truth, axis=3)).mean())
    least = tv if attack is InvertingGradients else 0.0
    for lock in LOCK:
        seen = dataclasses.replace(view(lock, which), starts=truth[None])
        (found,) = search.run_many([seen], [0])
        if lock in ("key", "both"):
            assert found.loss == pytest.approx(least, abs=1e-12)
        else:
            assert found.loss > least + 1e-4


@BOTH
@SEARCHES
def test_fitting_the_lock_matches_better_than_guessing(attack, which):
    settings = {"iterations": 150, "start": "uniform"}
    guessed, fitted, again = (
        attack(**settings, precision="float64", lock=lock).run_many([view(which=which)], [1])[0]
        for lock in ("guess", "fit", "fit")
    )
    assert fitted.loss < 0.5 * guessed.loss
    np.testing.assert_array_equal(fitted.images, again.images)


def test_grnn_fits_a_lock_beside_its_generator():
    fast = {"iterations": 250, "rate": 1e-3, "momentum": 0.9, "latent": 32, "tv": 0.0}
    guess, fit = (
        Grnn(**fast, lock=lock).run_many([view(seed=1)], [0])[0].loss for lock in ("guess", "fit")
    )
    assert fit < 0.7 * guess


def test_views_that_fit_and_views_that_know_do_not_mix():
    alive = view("gradient")
    dead, attack = unlocked(alive), Dlg(lock="fit", iterations=3)
    assert_apart(attack, [dead, alive, dead])


def assert_apart(attack, views):
    """Each as if it were alone."""
    for number, found in enumerate(attack.run_many(views, range(len(views)))):
        (alone,) = attack.run_many([views[number]], [number])
        np.testing.assert_allclose(alone.images, found.images, atol=1e-9)
        assert alone.stop == found.stop and alone.evaluations == found.evaluations


PATIENT = (
    Dlg(iterations=300),
    InvertingGradients(iterations=100, patience=0.05),
    Grnn(iterations=200, patience=0.03, latent=8, rate=3e-3),
)


@pytest.mark.parametrize("attack", PATIENT, ids=lambda one: one.method)
def test_a_search_goes_on_where_a_guessed_key_leaves_a_part_of_the_distance(attack):
    """1 % of what is left may be more than all that the image has yet to gain."""
    which = chain("relu")
    ended, whole = (
        attack.run_many([view(lock, which)], [0])[0] for lock in ("withheld", "gradient")
    )
    assert ended.stop == CHANGE and ended.evaluations < attack.iterations
    assert whole.stop != CHANGE and whole.evaluations == attack.iterations


def test_views_with_a_part_left_and_views_without_do_not_mix():
    search = InvertingGradients(iterations=60, patience=0.05, precision="float64")
    assert_apart(search, [view("gradient"), view("both"), view("gradient")])


# --- The closed form: exact up to brightness, without anything of the lock ------------------------


def assert_found(found):
    """The image up to its brightness."""
    assert not found.failure
    truth = targets(1).inputs(0)[0]
    scale = float((found.image * truth).sum() / (found.image**2).sum())
    np.testing.assert_allclose(scale * found.image, truth, atol=2e-4)
    assert max(one.residual for one in found.layers) < 1e-3
    assert [one.free for one in found.layers] == [0, 0, 0]


@pytest.mark.parametrize("moved", [0.0, 0.2])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "leaky_relu"])
def test_a_locked_image_is_found_up_to_its_brightness(activation, moved):
    """Whatever key made γ and β, and however far the lock's weights are from the server's."""
    found = Unlock().run(view("withheld", lenet(activation=activation), Client(moved)), 0)
    assert_found(found)
    assert found.image.max() == pytest.approx(1.0) and found.image.min() > -1e-3
    assert [one.layer for one in found.layers] == ["fc1", "conv2", "conv1"]


def test_nothing_of_the_lock_is_used():
    seen, given = (view(lock, lenet()) for lock in ("withheld", "both"))
    spoilt = {n: v if "_lock" not in n else np.full_like(v, 9.0) for n, v in seen.weights.items()}
    expected = Unlock().run(seen, 0).image
    for other in (given, dataclasses.replace(seen, weights=spoilt)):
        np.testing.assert_array_equal(Unlock().run(other, 3).image, expected)


def test_channels_that_the_lock_made_constant_are_left_out():
    which = lenet("relu")
    own = Client().of(which, 0)
    gamma = own["conv1_lock_scale.weight"] @ own["conv1_key"] + own["conv1_lock_scale.bias"]
    assert 0 < (gamma > 0).sum() < 8
    assert_found(Unlock().run(view("withheld", which), 0))


def test_what_padding_does_not_fix_is_counted():
    """Pixels that are never in a window with padding can be shifted together, in each channel."""
    found = Unlock().run(view("withheld", chain()), 0)
    assert found.layers[-1].free == SIZE[0]
    assert found.stop == "closed form; brightness is free; conv1 leaves 3 unknowns free"
    found = Unlock().run(view("withheld", chain(kernel=4, padding=0)), 0)
    assert found.layers[-1].free >= SIZE[0]
    assert found.image.mean((1, 2)) == pytest.approx(0.5)


def test_gradients_of_other_features_fail_or_contradict():
    seen = view("withheld", lenet())
    noisy = {
        name: value + np.random.default_rng(0).standard_normal(value.shape) * np.std(value)
        for name, value in seen.gradients.items()
    }
    seen = dataclasses.replace(seen, gradients=noisy)
    assert "contradict each other" in Unlock().run(seen, 0).failure


def test_where_it_does_not_apply_it_says_why():
    attack, alone = Unlock(), dataclasses.replace(lenet(), specs=lenet().specs[::2])
    assert attack.applies(lenet()) is attack.applies(lenet("relu")) is None
    for which, words in (
        *((one, "no lock on its first") for one in (chain(layers=()), skipped(["conv2_skip"]))),
        (skipped(), "net has no lock on its first convolution alone"),
        (lenet(activation="relu"), "followed by 'relu', which hides"),
        (lenet("identity"), "'identity' may make γ negative, whose sign"),
        (alone, "net has no convolution behind its lock"),
        (lenet(pool="max"), "conv1 has a pool"),
    ):
        assert words in attack.applies(which)
    with pytest.raises(NumericsError, match="set batch: 1 and mode: training"):
        attack.run(dataclasses.replace(view("withheld", lenet()), mode="evaluation"), 0)


def test_the_tail_is_the_network_behind_the_lock():
    tail = tail_of(lenet())
    assert tail.input == (8, 4, 4)
    assert [layer.name for layer in tail.layers] == ["conv1", "fc1"]
    assert draw_key(tail, 0, 0) == {}
