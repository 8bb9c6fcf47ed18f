"""Federations: the mean, private locks, who drops out, and what is refused."""

import logging

import numpy as np
import pytest
import torch

from gradleak.errors import ConfigError, NumericsError
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locks import is_private, private, public
from gradleak.training.client_sampling import Federated
from gradleak.training.data import Split
from gradleak.training.fedavg import Aggregate
from gradleak.training.federated import Federation
from training_cases import (
    COUNTS,
    CPU,
    LOCKED,
    SKIPPED,
    SMALL,
    accuracy,
    equal,
    federation,
    same,
    split,
    with_lock,
)
from training_cases import trainer as alone


@pytest.mark.parametrize("schedule", ["constant", "step"])
def test_one_client_is_a_training_alone(schedule):
    """Without momentum, which starts anew in each round, the weights are the same in every bit."""
    recipe = {"schedule": schedule, "milestones": (0.5,), "momentum": 0.0, "nesterov": False}
    recipe |= {"epochs": 4, "batch": 8, "rate": 0.05}
    parts = split()
    whole = alone(parts=parts, **recipe).run()
    ours = federation(parts=parts, clients=1, recipe=recipe).run()
    assert equal(whole.last, ours.public)
    assert equal(whole.weights, ours.kept)
    assert ours.best["server"].round == whole.epoch
    assert ours.best["server"].test_accuracy == whole.accuracy
    for row, other in zip(ours.rows, whole.rows, strict=True):
        assert row == {"client": "server"} | other
    moved = recipe | {"momentum": 0.9}
    other = federation(parts=parts, clients=1, recipe=moved).run().public
    assert not equal(alone(parts=parts, **moved).run().last, other)


def test_a_round_is_the_mean_of_what_clients_train_alone():
    """Of different numbers of images, and local epochs that follow each other."""
    parts = split()
    options = {"clients": 3, "split": "dirichlet", "alpha": 1.0, "local_epochs": 2}
    recipe = {"epochs": 1, "schedule": "constant"}
    ours = federation(parts=parts, recipe=recipe, **options)
    sizes = [len(part) for part in ours.parts]
    assert len(set(sizes)) == 3
    found = ours.run()
    # Client 0 has the seeds of a training alone.
    first = Split(ours.parts[0], parts.validation, parts.test)
    own = alone(parts=first, **{**recipe, "epochs": 2, "batch": 8}).run().last
    others = []
    for client in (1, 2):
        again = federation(parts=parts, recipe=recipe, **options)
        state = again._begin()
        weights, _ = again._locally(0, client, state, _Bar())
        others.append(weights)
    check_mean(found, sizes, (own, *others))


class _Bar:
    disable = True

    def update(self):
        pass


def check_mean(found, sizes, weights):
    for name, value in found.public.items():
        pairs = zip(sizes, weights, strict=True)
        total = sum(images * own[name].astype(np.float64) for images, own in pairs)
        np.testing.assert_array_equal(value, (total / sum(sizes)).astype(np.float32))


def test_the_mean_counts_images_and_takes_statistics_along():
    like = {"a": np.zeros(2, np.float32), "n.running_var": np.ones((), np.float32)}
    total = Aggregate(like)
    assert equal(total.mean(), like)
    total.add(0, {"a": np.float32([1, 4]), "n.running_var": np.float32(2)}, 30)
    total.add(1, {"a": np.float32([5, 0]), "n.running_var": np.float32(6)}, 10)
    mean = total.mean()
    np.testing.assert_array_equal(mean["a"], np.float32([2, 3]))
    assert mean["n.running_var"] == 3
    assert mean["a"].dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("conv2.weight"), "Client 1 lacks conv2.weight, which the server's"),
        (lambda w: w.update({"conv3.weight": w["fc1.bias"]}), "Client 1 has conv3.weight, which"),
        (
            lambda w: w.update({"fc1.bias": np.zeros(4, np.float32)}),
            r"Client 1 has fc1.bias of shape \(4,\), the server's model of \(3,\)",
        ),
    ],
)
def test_unlike_models_have_no_mean(change, words):
    weights = initial_weights(SMALL, 0)
    total = Aggregate(weights)
    total.add(0, weights, 10)
    other = dict(initial_weights(SMALL, 1))
    change(other)
    with pytest.raises(ConfigError, match=f"{words}.*give every client the server's model"):
        total.add(1, other, 10)
    assert equal(total.mean(), weights)


def test_only_a_share_of_the_clients_trains(monkeypatch):
    ours = federation(clients=4, share=0.5)
    real, trained = ours._locally, []

    def locally(number, client, state, bar):
        trained.append((number, client))
        return real(number, client, state, bar)

    monkeypatch.setattr(ours, "_locally", locally)
    found = ours.run()
    rounds = [[c for n, c in trained if n == number] for number in range(4)]
    assert rounds == [ours.federated.chosen(0, number) for number in range(4)]
    assert all(len(chosen) == 2 for chosen in rounds)
    assert found.dropped == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("chain", "keys"),
    [(LOCKED, {"conv1_key"}), (SKIPPED, {"conv1_key", "conv2_skip_key"})],
    ids=["locked", "skipped"],
)
def test_locks_and_keys_stay_with_their_clients(chain, keys):
    ours = federation(chain)
    start = ours._begin()
    found = ours.run()
    assert not any(is_private(name) for name in {**found.public, **found.kept})
    for own, before in zip(found.private, start.private, strict=True):
        assert equal(private(own), own)
        assert own.keys() == before.keys() and own.keys() > keys
        assert all(np.array_equal(own[name], before[name]) for name in keys)
        assert all(not np.array_equal(own[name], before[name]) for name in own.keys() - keys)
    for name in found.private[0]:
        assert not np.array_equal(found.private[0][name], found.private[1][name])


@pytest.mark.parametrize(("chain", "norm"), [(LOCKED, "conv1_norm"), (SKIPPED, "conv2_skip_norm")])
def test_clients_send_no_key_and_no_lock(monkeypatch, chain, norm):
    ours = federation(chain, recipe={"epochs": 1})
    sent, add = [], Aggregate.add

    def note(self, client, weights, images):
        sent.append(weights)
        add(self, client, weights, images)

    monkeypatch.setattr(Aggregate, "add", note)
    ours.run()
    names = public(ours.weights()).keys()
    assert [weights.keys() for weights in sent] == [names] * 3
    assert f"{norm}.running_var" in names and f"{norm}.weight" not in names
    assert not any("lock" in name or "key" in name for name in names)


def test_each_client_is_judged_with_its_own_lock_and_random_with_none():
    ours = federation(LOCKED, recipe={"epochs": 3})
    found = ours.run()
    assert set(found.best) == {"0", "1", "2", "random"}
    last = {row["client"]: row for row in found.rows if row["epoch"] == 3}
    server = private(initial_weights(LOCKED, 0))
    for who, own in {**{str(c): p for c, p in enumerate(found.private)}, "random": None}.items():
        own = server | draw_key(LOCKED, 2**31, 0) if own is None else own
        reached = accuracy(LOCKED, {**found.public, **own}, ours.split.validation)
        assert reached == pytest.approx(last[who]["validation_accuracy"])
    assert last["random"]["train_loss"] is None
    for who, best in found.best.items():
        reached = [row["validation_accuracy"] for row in found.rows if row["client"] == who]
        assert best.validation_accuracy == max(reached)
        assert best.round == 1 + int(np.argmax(reached))


def test_the_weights_kept_are_those_of_the_best_mean(monkeypatch):
    ours = federation(LOCKED)
    # Validation of clients 0, 1, 2 and random; random counts for nothing.
    scores = [0.1, 0.2, 0.3, 0.9], [0.9, 0.1, 0.8, 0.0], [0.5, 0.9, 0.4, 1.0], [0.2, 0.2, 0.2, 1.0]
    values, kept = iter(np.ravel(scores)), []

    def evaluate(images):
        return (1.0, next(values)) if images is ours.split.validation else (1.0, 0.5)

    monkeypatch.setattr(ours, "evaluate", evaluate)
    real = ours._judge

    def judge(number, state, passed):
        real(number, state, passed)
        kept.append((state.public, list(state.private)))

    monkeypatch.setattr(ours, "_judge", judge)
    found = ours.run()
    assert found.mean == pytest.approx(0.6)
    assert equal(found.kept, kept[1][0])
    assert all(equal(a, b) for a, b in zip(found.kept_private, kept[1][1], strict=True))
    rounds = {who: best.round for who, best in found.best.items()}
    assert rounds == {"0": 2, "1": 3, "2": 2, "random": 3}


def test_a_random_key_is_worse_than_clients_own():
    """FedKL Table III, on an easy task."""
    parts = split({"train": 240, "validation": 80, "test": 80}, images=400)
    recipe = {"epochs": 8, "batch": 16, "rate": 0.1, "crop": 0, "flip": False}
    found = federation(with_lock(128), parts, recipe=recipe).run()
    last = {row["client"]: row["validation_accuracy"] for row in found.rows[-4:]}
    own = np.mean([last[client] for client in "012"])
    assert own > 0.9
    assert last["random"] < own - 0.2


def test_a_client_that_does_not_answer_is_left_out(caplog):
    with caplog.at_level(logging.WARNING, logger="gradleak"):
        ours = federation(LOCKED, answering=0.5, recipe={"epochs": 6})
        found = ours.run()
    silent = [set(ours.federated.silent(0, number)) for number in range(6)]
    assert found.dropped == [sum(c in gone for gone in silent) for c in range(3)]
    assert 0 < sum(found.dropped) < 18
    said = caplog.text
    assert said.count("did not answer; the round goes on without it") == sum(found.dropped)
    for number, gone in enumerate(silent, start=1):
        for client in range(3):
            row = next(r for r in found.rows if r["epoch"] == number and r["client"] == str(client))
            assert (row["train_loss"] is None) == (client in gone)
            words = f"locked, round {number}: client {client} did not answer"
            assert (words in said) == (client in gone)


def test_the_mean_of_a_round_is_over_those_that_answered(monkeypatch):
    ours = federation(recipe={"epochs": 1})
    monkeypatch.setattr(Federated, "silent", lambda self, seed, number: [1])
    found = ours.run()
    sizes = [len(part) for part in ours.parts]
    again = federation(recipe={"epochs": 1})
    own = [again._locally(0, client, again._begin(), _Bar())[0] for client in (0, 2)]
    check_mean(found, (sizes[0], sizes[2]), own)
    assert found.dropped == [0, 1, 0]


def test_a_round_that_nobody_answers_leaves_the_servers_weights(monkeypatch, caplog):
    ours = federation(LOCKED, recipe={"epochs": 2})
    before = []
    silent = [[], [0, 1, 2]]
    monkeypatch.setattr(Federated, "silent", lambda self, seed, number: silent[number])
    real = ours._judge

    def judge(number, state, passed):
        before.append((state.public, list(state.private)))
        real(number, state, passed)

    monkeypatch.setattr(ours, "_judge", judge)
    with caplog.at_level(logging.WARNING, logger="gradleak"):
        found = ours.run()
    assert "locked, round 2: no client answered; the server's weights stay" in caplog.text
    assert equal(before[0][0], found.public)
    assert all(equal(a, b) for a, b in zip(before[0][1], found.private, strict=True))
    assert found.dropped == [1, 1, 1]


def test_a_client_that_diverges_is_left_out_and_keeps_its_lock(caplog):
    ours = federation(LOCKED, recipe={"epochs": 2})
    state, step, one_pass = ours._begin(), ours._step, ours.one_pass
    trained = []

    def noted(images, *more):
        trained.append(images)
        return one_pass(images, *more)

    def broken(inputs, labels, rate):
        return step(inputs * (float("nan") if trained[-1] is ours.parts[1] else 1.0), labels, rate)

    ours.one_pass, ours._step = noted, broken
    with caplog.at_level(logging.WARNING, logger="gradleak"):
        found = ours.run()
    assert found.dropped == [0, 2, 0]
    assert "round 1: client 1 diverged (loss nan); the round goes on without it" in caplog.text
    assert equal(found.private[1], state.private[1])
    assert all(np.isfinite(value).all() for value in found.public.values())


def test_a_federation_in_which_nobody_ever_answers_fails():
    with pytest.raises(NumericsError, match=r"small: no client answered in any of 4 rounds"):
        federation(recipe={"rate": 1e30}).run()


def test_same_seed_same_results():
    assert same(federation(LOCKED, answering=0.7).run(), federation(LOCKED, answering=0.7).run())
    assert not same(federation(LOCKED).run(), federation(LOCKED, seed=1).run())


def test_clients_without_images_or_private_parts_are_refused():
    ours = federation()
    more = (ours.split, ours.recipe, ours.federated, 0)
    with pytest.raises(ConfigError, match="3 clients are to train it, but 3 have a private part a"):
        Federation(SMALL, initial_weights(SMALL, 0), [{}] * 3, ours.parts[:2], *more)


def test_images_of_clients_are_the_training_images():
    ours = federation(clients=3)
    assert ours.split.sizes == COUNTS
    assert ours.parts[0].device == CPU
    everything = torch.cat([part.pixels for part in ours.parts]).flatten(1).unique(dim=0)
    assert len(everything) == 60
    assert torch.equal(everything, ours.split.train.pixels.flatten(1).unique(dim=0))
