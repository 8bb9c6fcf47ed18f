"""Gradients of locked networks: what is shared of a lock, and what attacks make of the rest."""

import dataclasses

import numpy as np
import pytest

import chains as chains_
from gradleak.attacks.base import AttackerView
from gradleak.attacks.keylock import key_of, open_lock
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.runner import Views
from gradleak.client.defences.apply import defend_all
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.client.shared_parameters import LOCK
from gradleak.data.targets import TargetSet
from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.files import ModelFile, save
from gradleak.models.initial import draw_key, family_weights, initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, is_key, is_private, private
from gradleak.runtime.artifacts import write_tensors

CLASSES, SIZE, LENGTH = 4, (3, 8, 8), 11
SIGMOID = Activation("sigmoid")


def chain(activation="sigmoid", layers=("conv1",)):
    specs = (
        ConvSpec(8, (3, 3), (2, 2), (1, 1), True, SIGMOID),
        ConvSpec(12, (3, 3), (1, 1), (1, 1), True, SIGMOID),
        LinearSpec(CLASSES),
    )
    lock = Lock(LENGTH, Activation(activation))
    return Chain("net", SIZE, with_lock(specs, layers, lock), spread=0.5)


def skipped(layers=("conv1", "conv2_skip")):
    """With a projection, and norms behind the second layer's convolutions that are not locked."""
    first, second, last = chain(layers=()).specs
    second = dataclasses.replace(second, skip=2, projection=True, norm="batch")
    lock = Lock(LENGTH, SIGMOID)
    return Chain("net", SIZE, with_lock((first, second, last), layers, lock), spread=0.5)


class Client:
    """A client whose lock weights have moved since the server sent them."""

    def __init__(self, moved=0.0):
        self.moved = moved

    def of(self, chain, seed):
        own = private(initial_weights(chain, seed)) | draw_key(chain, 0, seed)
        return {n: v if is_key(n) else (v + self.moved).astype(np.float32) for n, v in own.items()}


def model(*chains, seeds=2):
    return ModelFile(chains, family_weights(chains, seeds))


def targets(count=2):
    draw = np.random.default_rng(0)
    return TargetSet(
        images=draw.integers(0, 256, (count, 1, *SIZE), dtype=np.uint8),
        labels=draw.integers(0, CLASSES, (count, 1)),
        indices=np.arange(count)[:, None],
        offset=0.0,
        names=tuple(f"image {number}" for number in range(count)),
        source={},
        words={number: str(number) for number in range(CLASSES)},
    )


def captured(*chains, lock="withheld", client=None, seeds=1, count=1):
    more = {"client": client or Client(), "lock": lock}
    return chains_.captured(model(*chains, seeds=seeds), targets(count), seeds, **more)


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


@pytest.mark.parametrize("lock", LOCK)
def test_what_is_withheld_is_not_in_the_file(lock):
    tensors, facts = captured(chain(), lock=lock)
    names = {name.removeprefix("net/") for name in tensors}
    keys = {name for name in names if is_key(name)}
    locks = {name for name in names if is_private(name)} - keys
    assert bool(keys) == (lock in ("key", "both"))
    assert bool(locks) == (lock in ("gradient", "both"))
    assert names - keys - locks == {
        *(f"{layer}.{part}" for layer in ("conv1", "conv2", "fc1") for part in ("weight", "bias")),
        "label",
        "class",
    }
    assert facts["lock"] == lock and facts["mode"] == {"net": "training"}
    # Nor is a lock weight hidden under another name.
    own = Client().of(chain(), 0)
    for name, value in tensors.items():
        assert is_key(name.removeprefix("net/")) or not any(
            np.array_equal(np.ravel(value), np.ravel(secret)) for secret in own.values()
        )


@pytest.mark.parametrize("lock", LOCK)
def test_of_a_locked_projection_only_what_is_granted_is_in_the_file(lock):
    tensors, _ = captured(skipped(["conv2_skip"]), lock=lock)
    names = {name.removeprefix("net/") for name in tensors}
    assert {name for name in names if is_private(name)} == {
        *(["conv2_skip_key"] if lock in ("key", "both") else []),
        *(
            f"conv2_skip_lock_{kind}.{part}"
            for kind in ("scale", "shift")
            for part in ("weight", "bias")
            if lock in ("gradient", "both")
        ),
    }
    assert {"conv2_skip.weight", "conv2_norm.weight"} < names
    assert "conv2_skip_norm.weight" not in names


def test_a_client_computes_with_its_own_lock():
    moved = Client(0.3)
    with_own, _ = captured(chain(), lock="both", client=moved)
    with_first, _ = captured(chain(), lock="both")
    np.testing.assert_array_equal(with_own["net/conv1_key"], with_first["net/conv1_key"])
    assert not np.allclose(with_own["net/conv2.weight"], with_first["net/conv2.weight"])
    weights = initial_weights(chain(), 0) | moved.of(chain(), 0)
    images = targets(1)
    alone = chains_.shared(chain(), weights, images.batch(0), images.labels[0])
    for name, value in alone.items():
        np.testing.assert_array_equal(with_own[f"net/{name}"][0, 0], value)


def test_a_locked_network_needs_a_client_and_a_known_way_of_sharing():
    with pytest.raises(ConfigError, match="net is locked, but no client is given"):
        chains_.captured(model(chain()), targets(1))
    with pytest.raises(ConfigError, match="lock: 'open' is not known; choose one of withheld, "):
        captured(chain(), lock="open")


def test_views_have_keys_apart_from_gradients(tmp_path):
    tensors, facts = captured(chain(), lock="both", seeds=2, count=2)
    path, gradient = str(tmp_path / "m.safetensors"), str(tmp_path / "g.safetensors")
    sent = model(chain())
    save(path, list(sent.chains), sent.weights, {})
    write_tensors(gradient, tensors, facts)
    seen = [one for one, *_ in Views(path, gradient)]
    assert len(seen) == 4
    for number, one in enumerate(seen):
        key = draw_key(chain(), 0, number // 2)["conv1_key"]
        np.testing.assert_array_equal(one.keys["conv1_key"], key)
        assert not any(is_key(name) for name in one.gradients)
        assert not any(is_key(name) for name in one.weights)


def test_a_defence_leaves_keys_alone():
    tensors, facts = captured(chain(), lock="both")
    before = {name: value.copy() for name, value in tensors.items()}
    defend_all(model(chain()), targets(1), tensors, facts, GaussianNoise(level=0.5), Client())
    np.testing.assert_array_equal(tensors["net/conv1_key"], before["net/conv1_key"])
    for name in ("conv1.weight", "conv1_lock_scale.weight"):
        assert not np.array_equal(tensors[f"net/{name}"], before[f"net/{name}"])


@pytest.mark.parametrize(
    "which",
    [*(chain(name, ("conv1", "conv2")) for name in ("sigmoid", "relu", "identity")), skipped()],
    ids=["sigmoid", "relu", "identity", "skipped"],
)
def test_the_gradient_of_a_lock_is_the_key_times_a_vector(which):
    """The paper holds that the key cannot be told from it; its rank of one says otherwise."""
    assert len(which.locked) == 2
    seen = view("gradient", which)
    assert not seen.keys
    for layer in which.locked:
        key = draw_key(which, 0, 0)[f"{layer.name}_key"]
        found = key_of(layer, seen.gradients)
        np.testing.assert_allclose(found, key, rtol=1e-6)
    without = view("withheld", which)
    assert all(key_of(layer, without.gradients) is None for layer in which.locked)


def test_a_lock_without_a_gradient_tells_no_key():
    dead = {
        name: value * (not is_private(name)) for name, value in view("gradient").gradients.items()
    }
    assert key_of(chain().locked[0], dead) is None


@pytest.mark.parametrize(
    ("lock", "mode", "fits", "knows"),
    [
        ("withheld", "guess", False, False),
        ("withheld", "fit", True, False),
        ("key", "guess", False, True),
        ("key", "fit", False, True),
        ("gradient", "guess", False, False),
        ("gradient", "fit", False, True),
        ("both", "guess", False, True),
        ("both", "fit", False, True),
    ],
)
def test_what_an_attacker_puts_in_the_place_of_a_lock(lock, mode, fits, knows):
    seen = view(lock)
    opening = open_lock(seen, mode, seed=5, starts=3)
    key = draw_key(chain(), 0, 0)["conv1_key"]
    assert (opening.scaling is not None) == fits
    if fits:
        assert opening.scaling.shape == (3, 16)
        assert len({start.tobytes() for start in opening.scaling}) == 3
        np.testing.assert_array_equal(opening.weights["conv1_norm.weight"], opening.scaling[0, :8])
        np.testing.assert_array_equal(opening.weights["conv1_norm.bias"], opening.scaling[0, 8:])
        assert not any(is_private(name) for name in (*opening.weights, *opening.shared))
        return
    found = opening.weights["conv1_key"]
    assert np.allclose(found, key, rtol=1e-5) == knows
    compared = {n for n in seen.gradients if mode == "guess" or not is_private(n)}
    assert opening.shared.keys() == compared
    if not knows:
        other = open_lock(seen, mode, seed=6).weights["conv1_key"]
        assert not np.array_equal(found, other) and found.min() >= 0.0 and found.max() < 1.0


def test_an_attacker_of_a_locked_projection_fits_its_scale_and_shift_too():
    which = skipped()
    opening = open_lock(view(which=which), "fit", seed=5, starts=2)
    assert opening.scaling.shape == (2, 2 * (8 + 12))
    norms = [
        f"{name}_norm.{kind}" for name in ("conv1", "conv2_skip") for kind in ("weight", "bias")
    ]
    found = np.concatenate([opening.weights[name] for name in norms])
    np.testing.assert_array_equal(found, opening.scaling[0])
    assert not any(is_private(name) for name in (*opening.weights, *opening.shared))
    # A norm that is not locked is known.
    np.testing.assert_array_equal(opening.weights["conv2_norm.weight"], np.ones(12))
    known = open_lock(view("gradient", which), "fit", seed=5).weights
    for name, key in draw_key(which, 0, 0).items():
        np.testing.assert_allclose(known[name], key, rtol=1e-6)


def test_a_granted_key_of_another_length_is_refused():
    seen = view("key")
    keys = {"conv1_key": np.zeros(3)}
    with pytest.raises(ConfigError, match="takes a key of 11 values, but the one given has 3"):
        open_lock(AttackerView(**{**vars(seen), "keys": keys}), "guess", 0)


@pytest.mark.parametrize("which", [chain(), skipped()], ids=["conv1", "skipped"])
@pytest.mark.parametrize("attack", [Dlg, InvertingGradients])
def test_the_key_opens_the_lock_and_a_guess_does_not(attack, which):
    """Under the true γ and β the truth has a distance of 0, under guessed ones not."""
    truth = targets(1).inputs(0)
    many = {"precision": "float64", "start": "reconstruction"}
    search = attack(iterations=1, **many)

    def loss(lock):
        seen = view(lock, which)
        seen = AttackerView(**{**vars(seen), "starts": truth[None]})
        (found,) = search.run_many([seen], [0])
        return found.loss

    tv = 1e-4 * (np.abs(np.diff(truth, axis=2)).mean() + np.abs(np.diff(truth, axis=3)).mean())
    least = tv if attack is InvertingGradients else 0.0
    assert loss("key") == pytest.approx(least, abs=1e-12)
    assert loss("both") == pytest.approx(least, abs=1e-12)
    assert loss("withheld") > least + 1e-4
    assert loss("gradient") > least + 1e-4


def test_grnn_fits_a_lock_too():
    """Its γ and β are trained beside the generator."""
    seen = view()
    many = {"precision": "float64", "rate": 1e-3, "tv": 0.0, "label": "from_view"}
    (guessed,) = Grnn(iterations=1, **many).run_many([seen], [1])
    (fitted,) = Grnn(iterations=1, lock="fit", **many).run_many([seen], [1])
    (later,) = Grnn(iterations=40, lock="fit", **many).run_many([seen], [1])
    assert fitted.loss == pytest.approx(guessed.loss, rel=0.5)
    assert later.loss < 0.7 * fitted.loss
    moving = Grnn(iterations=40, lock="fit", **many)
    (again,) = moving.run_many([seen], [1])
    (other,) = Grnn(iterations=40, **many).run_many([seen], [1])
    np.testing.assert_array_equal(later.images, again.images)
    assert not np.allclose(later.images, other.images, atol=1e-6)


@pytest.mark.parametrize("which", [chain(), skipped()], ids=["conv1", "skipped"])
@pytest.mark.parametrize("attack", [Dlg, InvertingGradients])
def test_fitting_the_lock_matches_better_than_guessing(attack, which):
    seen = view(which=which)
    many = {"iterations": 150, "precision": "float64", "start": "uniform"}
    (guessed,) = attack(**many).run_many([seen], [1])
    (fitted,) = attack(lock="fit", **many).run_many([seen], [1])
    assert fitted.loss < 0.5 * guessed.loss
    (again,) = attack(lock="fit", **many).run_many([seen], [1])
    np.testing.assert_array_equal(fitted.images, again.images)


def test_views_that_fit_and_views_that_know_do_not_mix():
    dead, alive = view("gradient"), view("gradient")
    gradients = {n: v * (not is_private(n)) for n, v in dead.gradients.items()}
    dead = AttackerView(**{**vars(dead), "gradients": gradients})
    attack = Dlg(lock="fit", iterations=3)
    together = attack.run_many([dead, alive, dead], [0, 1, 2])
    for number, one in enumerate((dead, alive, dead)):
        (alone,) = attack.run_many([one], [number])
        np.testing.assert_allclose(alone.images, together[number].images, atol=1e-9)
