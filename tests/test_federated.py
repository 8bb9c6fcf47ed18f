"""Federations: splits, the mean, private locks, who drops out, and what is refused."""

from contextlib import suppress
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import training_cases as t
from conftest import refused
from gradleak.errors import ConfigError, DataError, NumericsError
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locks import is_private, private, public
from gradleak.training.clients import Aggregate, Federated, chosen_number, split
from gradleak.training.data import Split
from gradleak.training.federated import Federation


@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_one_client_is_a_training_alone(schedule):
    """Without momentum, which starts anew in each round, the weights are the same in every bit."""
    recipe = {"schedule": schedule, "milestones": (0.5,), "momentum": 0.0, "nesterov": False}
    recipe |= {"epochs": 4, "batch": 8, "rate": 0.05}
    parts = t.split()
    whole = t.trainer(parts=parts, **recipe).run()
    ours = t.federation(parts=parts, clients=1, recipe=recipe).run()
    assert t.same(whole.last, ours.public)
    assert t.same(whole.weights, ours.kept)
    assert ours.best["server"].round == whole.epoch
    assert ours.best["server"].test_accuracy == whole.accuracy
    for row, other in zip(ours.rows, whole.rows, strict=True):
        assert row == {"client": "server"} | other
    moved = recipe | {"momentum": 0.9}
    other = t.federation(parts=parts, clients=1, recipe=moved).run().public
    assert not t.same(t.trainer(parts=parts, **moved).run().last, other)


def test_a_round_is_the_mean_of_what_clients_train_alone():
    """Of different numbers of images, and local epochs that follow each other."""
    parts = t.split()
    options = {"clients": 3, "split": "dirichlet", "alpha": 1.0, "local_epochs": 2}
    recipe = {"epochs": 1, "schedule": "constant"}
    ours = t.federation(parts=parts, recipe=recipe, **options)
    sizes = [len(part) for part in ours.parts]
    assert len(set(sizes)) == 3
    found = ours.run()
    # Client 0 has the seeds of a training alone.
    first = Split(ours.parts[0], parts.validation, parts.test)
    own = t.trainer(parts=first, **{**recipe, "epochs": 2, "batch": 8}).run().last
    again = (t.federation(parts=parts, recipe=recipe, **options) for _ in range(2))
    others = [locally(one, client) for client, one in enumerate(again, 1)]
    check_mean(found, sizes, (own, *others))


def locally(ours, client):
    """Weights of a client after the first round."""
    return ours._locally(0, client, ours._begin(), Mock())[0]


def check_mean(found, sizes, weights):
    for name, value in found.public.items():
        pairs = zip(sizes, weights, strict=True)
        total = sum(images * own[name].astype(np.float64) for images, own in pairs)
        np.testing.assert_array_equal(value, (total / sum(sizes)).astype(np.float32))


def test_the_mean_counts_images_and_takes_statistics_along():
    like = {"a": np.zeros(2, np.float32), "n.running_var": np.ones((), np.float32)}
    total = Aggregate(like)
    assert t.same(total.mean(), like)
    total.add(0, {"a": np.float32([1, 4]), "n.running_var": np.float32(2)}, 30)
    total.add(1, {"a": np.float32([5, 0]), "n.running_var": np.float32(6)}, 10)
    np.testing.assert_equal(total.mean(), {"a": [2, 3], "n.running_var": 3})
    assert total.mean()["a"].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("conv2.weight", None, "lacks conv2.weight, which the server's"),
        ("conv3.weight", np.zeros(3, np.float32), "has conv3.weight, which"),
        ("fc1.bias", np.zeros(4, np.float32), "has fc1.bias of shape (4,), the server's model of"),
    ],
)
def test_unlike_models_have_no_mean(name, value, words):
    weights = initial_weights(t.SMALL, 0)
    total = Aggregate(weights)
    total.add(0, weights, 10)
    other = initial_weights(t.SMALL, 1) | {name: value}
    other = {name: value for name, value in other.items() if value is not None}
    with refused(f"Client 1 {words}", "give every client the server's model", kind=ConfigError):
        total.add(1, other, 10)
    assert t.same(total.mean(), weights)


def test_only_a_share_of_the_clients_trains():
    ours = t.federation(clients=4, share=0.5)
    ours._locally = Mock(wraps=ours._locally)
    found = ours.run()
    asked = [call.args[:2] for call in ours._locally.call_args_list]
    rounds = [[c for n, c in asked if n == number] for number in range(4)]
    assert rounds == [ours.federated.chosen(0, number) for number in range(4)]
    assert all(len(chosen) == 2 for chosen in rounds)
    assert found.dropped == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("chain", "keys"),
    [(t.LOCKED, {"conv1_key"}), (t.SKIPPED, {"conv1_key", "conv2_skip_key"})],
)
def test_locks_and_keys_stay_with_their_clients(monkeypatch, chain, keys):
    ours = t.federation(chain)
    start, add = ours._begin(), Mock(wraps=Aggregate.add)
    monkeypatch.setattr(Aggregate, "add", lambda *given: add(*given))
    found = ours.run()
    names, norm = public(ours.weights()).keys(), max(keys).removesuffix("_key")
    assert [call.args[2].keys() for call in add.call_args_list] == [names] * 12
    assert f"{norm}_norm.running_var" in names and f"{norm}_norm.weight" not in names
    assert not any("lock" in name or "key" in name for name in names)
    assert not any(is_private(name) for name in {**found.public, **found.kept})
    for own, before in zip(found.private, start.private, strict=True):
        assert t.same(private(own), own)
        assert own.keys() == before.keys() and own.keys() > keys
        assert {name for name in own if np.array_equal(own[name], before[name])} == keys
    for name in found.private[0]:
        assert not np.array_equal(found.private[0][name], found.private[1][name])


def test_each_client_is_judged_with_its_own_lock_and_random_with_none():
    ours = t.federation(t.LOCKED, recipe={"epochs": 3})
    found = ours.run()
    assert set(found.best) == {"0", "1", "2", "random"}
    last = {row["client"]: row for row in found.rows if row["epoch"] == 3}
    server = private(initial_weights(t.LOCKED, 0))
    for who, own in {**{str(c): p for c, p in enumerate(found.private)}, "random": None}.items():
        own = server | draw_key(t.LOCKED, 2**31, 0) if own is None else own
        reached = t.accuracy(t.LOCKED, {**found.public, **own}, ours.split.validation)
        assert reached == pytest.approx(last[who]["validation_accuracy"])
    assert last["random"]["train_loss"] is None
    for who, best in found.best.items():
        reached = [row["validation_accuracy"] for row in found.rows if row["client"] == who]
        assert best.validation_accuracy == max(reached)
        assert best.round == 1 + int(np.argmax(reached))


def judged(ours):
    """Weights of the server and locks of the clients after each round to come."""
    real, kept = ours._judge, []

    def judge(number, state, passed):
        real(number, state, passed)
        kept.append([state.public, *state.private])

    ours._judge = judge
    return kept


def test_the_weights_kept_are_those_of_the_best_mean():
    ours = t.federation(t.LOCKED)
    # Validation of clients 0, 1, 2 and random; random counts for nothing.
    scores = [0.1, 0.2, 0.3, 0.9], [0.9, 0.1, 0.8, 0.0], [0.5, 0.9, 0.4, 1.0], [0.2, 0.2, 0.2, 1.0]
    values, whole = iter(np.ravel(scores)), ours.split.validation
    ours.evaluate = lambda images: (1.0, next(values) if images is whole else 0.5)
    kept = judged(ours)
    found = ours.run()
    assert found.mean == pytest.approx(0.6)
    assert t.same([found.kept, *found.kept_private], kept[1])
    rounds = {who: best.round for who, best in found.best.items()}
    assert rounds == {"0": 2, "1": 3, "2": 2, "random": 3}


def test_a_random_key_is_worse_than_clients_own():
    """FedKL Table III, on an easy task."""
    parts = t.split({"train": 240, "validation": 80, "test": 80}, images=400)
    recipe = {"epochs": 8, "batch": 16, "rate": 0.1, "crop": 0, "flip": False}
    found = t.federation(t.with_lock(128), parts, recipe=recipe).run()
    last = {row["client"]: row["validation_accuracy"] for row in found.rows[-4:]}
    own = np.mean([last[client] for client in "012"])
    assert own > 0.9
    assert last["random"] < own - 0.2


def test_a_client_that_does_not_answer_is_left_out(caplog):
    ours = t.federation(t.LOCKED, answering=0.5, recipe={"epochs": 6})
    found = ours.run()
    silent = [set(ours.federated.silent(0, number)) for number in range(6)]
    assert found.dropped == [sum(c in gone for gone in silent) for c in range(3)]
    assert 0 < sum(found.dropped) < 18
    said = caplog.text
    assert said.count("did not answer; the round goes on without it") == sum(found.dropped)
    losses = {(row["epoch"], row["client"]): row["train_loss"] for row in found.rows}
    for (number, gone), client in product(enumerate(silent, start=1), range(3)):
        assert (losses[number, str(client)] is None) == (client in gone)
        words = f"locked, round {number}: client {client} did not answer"
        assert (words in said) == (client in gone)


def test_the_mean_of_a_round_is_over_those_that_answered(monkeypatch):
    ours = t.federation(recipe={"epochs": 1})
    monkeypatch.setattr(Federated, "silent", lambda self, seed, number: [1])
    found, again = ours.run(), t.federation(recipe={"epochs": 1})
    sizes = [len(ours.parts[client]) for client in (0, 2)]
    check_mean(found, sizes, [locally(again, client) for client in (0, 2)])
    assert found.dropped == [0, 1, 0]


def test_a_round_that_nobody_answers_leaves_the_servers_weights(monkeypatch, caplog):
    ours = t.federation(t.LOCKED, recipe={"epochs": 2})
    silent = [[], [0, 1, 2]]
    monkeypatch.setattr(Federated, "silent", lambda self, seed, number: silent[number])
    before = judged(ours)
    found = ours.run()
    assert "locked, round 2: no client answered; the server's weights stay" in caplog.text
    assert t.same(before[0], [found.public, *found.private])
    assert found.dropped == [1, 1, 1]


def test_a_client_that_diverges_is_left_out_and_keeps_its_lock(caplog):
    ours = t.federation(t.LOCKED, recipe={"epochs": 2})
    state, step, passes = ours._begin(), ours._step, Mock(wraps=ours.one_pass)

    def broken(inputs, labels, rate):
        bad = passes.call_args.args[0] is ours.parts[1]
        return step(inputs * (float("nan") if bad else 1.0), labels, rate)

    ours.one_pass, ours._step = passes, broken
    found = ours.run()
    assert found.dropped == [0, 2, 0]
    assert "round 1: client 1 diverged (loss nan); the round goes on without it" in caplog.text
    assert t.same(found.private[1], state.private[1])
    assert all(np.isfinite(value).all() for value in found.public.values())


def test_a_federation_without_answers_images_or_private_parts_is_refused():
    with refused("small: no client answered in any of 4 rounds", kind=NumericsError):
        t.federation(recipe={"rate": 1e30}).run()
    ours = t.federation()
    more = (ours.split, ours.federated, ours.recipe, 0)
    with refused("3 clients are to train it, but 3 have a private part a", kind=ConfigError):
        Federation(t.SMALL, initial_weights(t.SMALL, 0), [{}] * 3, ours.parts[:2], *more)


# --- Splits between clients ----------------------------------------------------------------------

LABELS = np.arange(900) % 3


@settings(max_examples=60)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=150),
    clients=st.integers(1, 12),
    kind=st.sampled_from(["iid", "dirichlet"]),
    alpha=st.floats(0.05, 50),
    seed=st.integers(0, 10**6),
)
def test_each_image_goes_to_one_client(labels, clients, kind, alpha, seed):
    labels = np.array(labels)
    options = Federated(clients, split=kind, alpha=alpha)
    try:
        parts = split(labels, options, seed)
    except DataError as error:
        too_few = f"{clients} clients cannot share" in str(error)
        assert too_few if len(labels) < clients else kind == "dirichlet"
        return
    assert len(parts) == clients
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert kind != "iid" or np.ptp([len(part) for part in parts]) <= 1
    assert t.same(parts, split(labels, options, seed))


def test_seed_and_alpha_say_how_unequal_clients_are():
    one, other = (split(LABELS, Federated(3), seed) for seed in (0, 1))
    assert not np.array_equal(one[0], other[0])
    both = (Federated(4, split="dirichlet", alpha=alpha) for alpha in (1e5, 0.1))
    parts = [split(LABELS, options, seed=0) for options in both]
    counts = np.array([[np.bincount(LABELS[p], minlength=3) for p in each] for each in parts])
    # Clients' shares of each class, (clients, classes).
    even, uneven = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(even, 0.25, atol=0.02)
    assert (uneven.max(axis=0) > 0.6).all()
    # Classes have shares of their own.
    assert len(np.unique(np.argmax(uneven, axis=0))) > 1


def test_shares_follow_the_dirichlet_distribution():
    """Mean 1/K and variance (K − 1) / (K² (K α + 1)) of the share of one client."""
    labels, clients, alpha = np.zeros(2000, int), 4, 0.7
    options = Federated(clients, split="dirichlet", alpha=alpha)
    found = []
    for seed in range(400):
        with suppress(DataError):  # a client without an image
            found.append([len(part) / 2000 for part in split(labels, options, seed)])
    shares = np.array(found)
    assert len(shares) > 350
    np.testing.assert_allclose(shares.mean(axis=0), 0.25, atol=0.04)
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    np.testing.assert_allclose(shares.var(axis=0).mean(), variance, rtol=0.15)


def test_a_client_without_an_image_is_named():
    leaves = "the split (dirichlet, alpha: 0.01, seed: 0) leaves client "
    with refused(leaves, "of 40 without an image; raise alpha or train, lower federated.clients"):
        split(LABELS, Federated(40, split="dirichlet", alpha=0.01), seed=0)
    for kind in ("iid", "dirichlet"):
        with refused("3 clients cannot share 2 images; lower federated.clients"):
            split(LABELS[:2], Federated(3, split=kind), seed=0)


def test_clients_of_a_round():
    assert [chosen_number(0.1, clients) for clients in (3, 5, 10, 14, 15)] == [0, 1, 1, 1, 2]
    options = Federated(10, share=0.3, answering=0.6)
    rounds = [options.chosen(0, number) for number in range(300)]
    assert all(len(set(chosen)) == 3 and chosen == sorted(chosen) for chosen in rounds)
    assert rounds == [options.chosen(0, number) for number in range(300)]
    counts = np.bincount(np.concatenate(rounds), minlength=10)
    assert (np.abs(counts - 90) < 40).all()
    assert (Federated(4).chosen(0, 7), Federated(4).silent(0, 7)) == ([0, 1, 2, 3], [])
    silent = np.mean([len(options.silent(0, number)) for number in range(300)]) / 10
    assert silent == pytest.approx(0.4, abs=0.04)
