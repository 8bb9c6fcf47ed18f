"""What FedKL's text leaves open: an attacker's lock weights, and those of a random key."""

import dataclasses

import numpy as np
import pytest

from conftest import refused
from gradleak.attacks.base import Reconstruction
from gradleak.attacks.optimization.fresh_lock import GrnnFreshLock, InvertingFreshLock, redrawn
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.client.client_keys import ClientFile
from gradleak.errors import ArtifactError
from gradleak.models import files
from gradleak.models.fresh_locks import draw_lock
from gradleak.models.initial import draw_key, initial_weights, parameter_shapes
from gradleak.models.locks import is_private, private, public
from gradleak.training.federated import NOBODY
from papers.fedkl.tables import random_keys
from test_locked_attacks import chain as locked
from test_locked_attacks import view
from training_cases import LOCKED, SETTINGS, accuracy, dataset, federation, split

RUN = {"images": "embedded", "scale": "smoke"}
SHORT = {"iterations": 3}


def test_a_lock_is_drawn_as_a_server_draws_it_from_another_stream():
    network = locked()
    drawn = draw_lock(network, np.random.default_rng(0))
    sent = private(initial_weights(network, 0))
    assert {name: value.shape for name, value in drawn.items()} == {
        name: shape for name, shape in parameter_shapes(network).items() if is_private(name)
    }
    limit = 1 / np.sqrt(network.locked[0].lock.key)
    for name, value in drawn.items():
        assert value.dtype == np.float32 and abs(value).max() <= limit
        assert not np.array_equal(value, sent[name])
    assert np.std(drawn["conv1_lock_scale.weight"]) == pytest.approx(limit / np.sqrt(3), rel=0.1)


def test_a_fresh_lock_replaces_nothing_but_the_locks_weights():
    seen = view()
    one, other = redrawn(seen, 7), redrawn(seen, 8)
    for name, value in seen.weights.items():
        same = np.array_equal(value, one.weights[name])
        assert same != is_private(name), name
    assert not np.array_equal(*(v.weights["conv1_lock_shift.bias"] for v in (one, other)))
    assert one.gradients is seen.gradients


@pytest.mark.parametrize("kind", [GrnnFreshLock, InvertingFreshLock])
def test_an_attacker_with_a_fresh_lock_does_not_read_the_servers(kind):
    seen = view()
    unknown = {
        name: value * np.nan if is_private(name) else value for name, value in seen.weights.items()
    }
    blind = dataclasses.replace(seen, weights=unknown)
    (one,), (other,) = (kind(**SHORT).run_many([v], [7]) for v in (seen, blind))
    assert isinstance(one, Reconstruction) and np.isfinite(one.images).all()
    np.testing.assert_array_equal(one.images, other.images)
    (guessed,) = InvertingGradients(**SHORT).run_many([seen], [7])
    assert not np.array_equal(one.images, guessed.images)


@pytest.fixture(scope="module")
def trained():
    return federation(LOCKED), federation(LOCKED).run()


@pytest.fixture(autouse=True)
def _images(monkeypatch):
    """The trained network's images, whatever file is asked for."""
    monkeypatch.setattr(random_keys.arrays, "load", lambda *_: dataset())


def _table(folder, trained, draws=1, name=LOCKED.name):
    initial, (_, rounds) = private(initial_weights(LOCKED, 0)), trained
    model = str(folder / "model.safetensors")
    (folder / "c").mkdir()
    held = {f"{LOCKED.name}/{k}": v[None] for k, v in (public(rounds.kept) | initial).items()}
    files.save(model, [LOCKED], held, {})
    for number, own in enumerate(rounds.kept_private):
        kept = {f"{LOCKED.name}/{k}": v[None] for k, v in private(own).items()}
        ClientFile(number, (LOCKED.name,), kept, str(folder / f"c/{number}.safetensors")).save({})
    case = dict.fromkeys(("column", "training", "network", "dataset"), "x")
    case |= {"model": name, "source": "mine", "split": "train", "draws": draws}
    case |= {"settings": {**SETTINGS, "split": "train"}}
    given = {"data": ["images"], "locked": [model], "clients": [str(folder / "c")]}
    return random_keys.make(given, {"cases": [case]}, RUN)


def test_clients_and_readings_of_random_have_their_accuracies(tmp_path, trained):
    found = _table(tmp_path, trained)
    assert list(found.columns) == random_keys.COLUMNS
    rounds, images = trained[1], split().test
    right = found[found["metric"] == "accuracy"].set_index(["client", "reading"])["ours"]
    own = [accuracy(LOCKED, {**rounds.kept, **one}, images) for one in rounds.kept_private]
    for number, share in enumerate(own):
        assert right[str(number), "own"] == pytest.approx(100 * share)
    assert right["mean", "own"] == pytest.approx(100 * np.mean(own))
    key, sent = draw_key(LOCKED, NOBODY, 0), private(initial_weights(LOCKED, 0))
    zeros = {name: 0 * value for name, value in sent.items()}
    for reading, lock in (("initial lock", sent), ("zero lock", zeros)):
        share = accuracy(LOCKED, {**rounds.kept, **lock, **key}, images)
        assert right["random", reading] == pytest.approx(100 * share)
    # Without scale and shift, nothing of the image is left: one class for all.
    assert right["random", "zero lock"] == pytest.approx(100 / 3, abs=10)


def test_gaps_and_errors_are_those_of_their_accuracies(tmp_path, trained):
    found = _table(tmp_path, trained, draws=5)
    one = found.set_index(["metric", "client", "reading"])
    fresh = one.loc["accuracy", "random", "random lock"]
    assert fresh["n"] == 5 and "over draws" in fresh["note"]
    gap, mean = one.loc["gap", "mean", "random lock"], one.loc["accuracy", "mean", "own"]
    assert gap["ours"] == pytest.approx(mean["ours"] - fresh["ours"])
    assert gap["error"] == pytest.approx(np.hypot(mean["error"], fresh["error"]))
    assert fresh["low"] == pytest.approx(max(0, fresh["ours"] - 1.959964 * fresh["error"]))
    loss = one.loc["loss", "random", "random lock"]
    assert loss["low"] <= loss["ours"] <= loss["high"] and np.isnan(loss["error"])
    # The spread over draws adds to that of few images.
    single = found[(found["client"] == "mean") & (found["metric"] == "accuracy")].iloc[0]
    assert single["tested"] == 20
    assert not found.duplicated(["client", "reading", "metric"]).any()


def test_a_network_that_is_missing_is_named(tmp_path, trained):
    with refused("has no other, or its clients are missing; delete it", kind=ArtifactError):
        _table(tmp_path, trained, name="other")
