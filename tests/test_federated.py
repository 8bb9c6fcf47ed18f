"""Federations: the mean, private locks, who drops out, resuming, and what is refused."""

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import PACKAGES
from gradleak.client import client_keys as client_files
from gradleak.errors import ArtifactError, ConfigError, NumericsError
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import Chain
from gradleak.models.initial import draw_key, family_weights, initial_weights
from gradleak.models.locks import Lock, is_private, private, public
from gradleak.runtime.artifacts import read_tensors
from gradleak.training import run, run_federated
from gradleak.training.client_sampling import Federated
from gradleak.training.data import Split
from gradleak.training.fedavg import Aggregate
from gradleak.training.federated import Federation
from gradleak.training.partition import split as split_between
from gradleak.training.recipe import Recipe
from test_training import COUNTS, CPU, SETTINGS, SMALL, dataset, equal, split
from test_training import trainer as alone


def with_lock(key=64, name="locked"):
    lock = Lock(key, Activation("relu"))
    return Chain(
        name, SMALL.input, (dataclasses.replace(SMALL.specs[0], lock=lock), *SMALL.specs[1:])
    )


LOCKED = with_lock()
# With the projection of a skip locked too.
SKIPPED = Chain(
    "skipped",
    SMALL.input,
    (
        LOCKED.specs[0],
        dataclasses.replace(
            SMALL.specs[1], filters=6, projection=True, skip_lock=Lock(16, Activation("relu"))
        ),
        *SMALL.specs[2:],
    ),
)


def federation(chain=SMALL, parts=None, seed=0, recipe=None, **federated):
    """Three clients, four rounds; small enough for many in a test."""
    settings = Federated(**({"clients": 3} | federated))
    parts = parts or split()
    weights = initial_weights(chain, seed)
    own = [private(weights) | draw_key(chain, c, seed) for c in range(settings.clients)]
    places = split_between(parts.train.labels.numpy(), settings, 0)
    options = {"epochs": 4, "batch": 8, "rate": 0.05, "checkpoint": 2} | (recipe or {})
    return Federation(
        chain,
        weights,
        own,
        [parts.train.part(part) for part in places],
        parts,
        Recipe(**options),
        settings,
        seed,
        {"sha256": "ab"},
    )


def same(one, other):
    """Whether two federations ended alike, in every bit."""
    arrays = zip(one.groups().values(), other.groups().values(), strict=True)
    return one.record() == other.record() and all(equal(a, b) for a, b in arrays)


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
    with_momentum = recipe | {"momentum": 0.9}
    assert not equal(
        alone(parts=parts, **with_momentum).run().last,
        federation(parts=parts, clients=1, recipe=with_momentum).run().public,
    )


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
    for name, value in found.public.items():
        total = sum(
            n * w[name].astype(np.float64) for n, w in zip(sizes, (own, *others), strict=True)
        )
        np.testing.assert_array_equal(value, (total / sum(sizes)).astype(np.float32))


class _Bar:
    disable = True

    def update(self):
        pass


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
    validation = ours.split.validation

    def accuracy(own):
        module = load(LOCKED, {**found.public, **own}, torch.float32)
        with torch.no_grad():
            right = module(validation.inputs(validation.pixels)).argmax(1) == validation.labels
        return right.float().mean().item()

    server = private(initial_weights(LOCKED, 0))
    for who, own in {**{str(c): p for c, p in enumerate(found.private)}, "random": None}.items():
        own = server | draw_key(LOCKED, 2**31, 0) if own is None else own
        assert accuracy(own) == pytest.approx(last[who]["validation_accuracy"])
    assert last["random"]["train_loss"] is None
    for who, best in found.best.items():
        reached = [row["validation_accuracy"] for row in found.rows if row["client"] == who]
        assert best.validation_accuracy == max(reached)
        assert best.round == 1 + int(np.argmax(reached))


def test_the_weights_kept_are_those_of_the_best_mean(monkeypatch):
    ours = federation(LOCKED)
    # Validation of clients 0, 1, 2 and random; random counts for nothing.
    scores = [
        (0.1, 0.2, 0.3, 0.9),
        (0.9, 0.1, 0.8, 0.0),
        (0.5, 0.9, 0.4, 1.0),
        (0.2, 0.2, 0.2, 1.0),
    ]
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
    assert {who: best.round for who, best in found.best.items()} == {
        "0": 2,
        "1": 3,
        "2": 2,
        "random": 3,
    }


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
            assert (f"locked, round {number}: client {client} did not answer" in said) == (
                client in gone
            )


def test_the_mean_of_a_round_is_over_those_that_answered(monkeypatch):
    ours = federation(recipe={"epochs": 1})
    monkeypatch.setattr(Federated, "silent", lambda self, seed, number: [1])
    found = ours.run()
    sizes = [len(part) for part in ours.parts]
    again = federation(recipe={"epochs": 1})
    own = [again._locally(0, client, again._begin(), _Bar())[0] for client in (0, 2)]
    for name, value in found.public.items():
        total = sizes[0] * own[0][name].astype(float) + sizes[2] * own[1][name].astype(float)
        np.testing.assert_array_equal(value, (total / (sizes[0] + sizes[2])).astype(np.float32))
    assert found.dropped == [0, 1, 0]


def test_a_round_that_nobody_answers_leaves_the_servers_weights(monkeypatch, caplog):
    ours = federation(LOCKED, recipe={"epochs": 2})
    before = []
    monkeypatch.setattr(
        Federated, "silent", lambda self, seed, number: [0, 1, 2] if number == 1 else []
    )
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


@pytest.mark.parametrize("chain", [SMALL, LOCKED], ids=["fedavg", "fedkl"])
@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_federation_ends_alike(tmp_path, chain, stop):
    path, options = tmp_path / "checkpoint.safetensors", {"answering": 0.7, "share": 0.7}
    whole = federation(chain, **options).run()

    def interrupt(rows):
        if rows[-1]["epoch"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation(chain, **options).run(path, interrupt)
    assert path.exists() == (stop > 2)
    curve = []
    again = federation(chain, **options).run(path, curve.append)
    assert same(whole, again)
    assert len(curve) == 4 - 2 * ((stop - 1) // 2)
    # Finished, and asked again.
    assert same(whole, federation(chain, **options).run(path))


KILLED = """
import sys, time
sys.path[:0] = {paths!r}
import test_federated as t
t.torch.set_num_threads(1)
ours = t.federation(t.LOCKED, recipe=dict(epochs=8), answering=0.7)
ours.run(t.Path(sys.argv[1]), lambda rows: time.sleep(0.3))
"""


def test_a_killed_federation_goes_on_between_rounds(tmp_path):
    """SIGKILL in the middle: nothing half-written, and the end is the same in every byte."""
    path, other = tmp_path / "checkpoint.safetensors", tmp_path / "other.safetensors"
    here = Path(__file__).parent
    code = KILLED.format(paths=[str(here), *PACKAGES])
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 2 <= read_tensors(path)[1]["done"] < 8
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for place in (path, other):
            federation(LOCKED, recipe={"epochs": 8}, answering=0.7).run(place)
    finally:
        torch.set_num_threads(threads)
    assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"chain": LOCKED}, "another network (name: small, not locked)"),
        ({"chain": with_lock(name="small")}, "another network (hash: "),
        ({"clients": 2}, "another data set (clients: [20, 20, 20], not [30, 30])"),
        ({"local_epochs": 2}, "other settings (federated.local_epochs: 1, not 2)"),
        ({"answering": 0.5}, "other settings (federated.answering: 1.0, not 0.5)"),
        ({"recipe": {"rate": 0.1}}, "other settings (rate: 0.05, not 0.1)"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused_by_name(tmp_path, more, words):
    path = tmp_path / "checkpoint.safetensors"
    federation().run(path)
    before = path.read_bytes()
    with pytest.raises(ArtifactError) as refused:
        federation(**more).run(path)
    assert f"The checkpoint {path} is of {words}" in str(refused.value)
    assert path.read_bytes() == before


def test_another_clients_key_is_another_network(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    federation(LOCKED).run(path)
    other = federation(LOCKED)
    changed = [*other._private[:2], other._private[2] | draw_key(LOCKED, 7, 0)]
    other = Federation(
        LOCKED,
        initial_weights(LOCKED, 0),
        changed,
        other.parts,
        other.split,
        other.recipe,
        other.federated,
        0,
        {"sha256": "ab"},
    )
    with pytest.raises(ArtifactError, match="is of another network"):
        other.run(path)


@pytest.mark.parametrize("damage", ["short", "record"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "checkpoint.safetensors"
    federation().run(path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "short": whole[: len(whole) // 2],
            "record": whole.replace(b'\\"dropped\\"', b'\\"droppde\\"'),
        }[damage]
    )
    with pytest.raises(ArtifactError, match=rf"The checkpoint {path} is damaged .*delete it"):
        federation().run(path)


def test_clients_without_images_or_private_parts_are_refused():
    ours = federation()
    with pytest.raises(
        ConfigError, match="3 clients are to train it, but 3 have a private part and 2"
    ):
        Federation(
            SMALL,
            initial_weights(SMALL, 0),
            [{}] * 3,
            ours.parts[:2],
            ours.split,
            ours.recipe,
            ours.federated,
            0,
        )


# Files of clients, and all that a run writes.


def model_file(tmp_path, *chains, seeds=2):
    path = str(tmp_path / "model.safetensors")
    files.save(path, list(chains), family_weights(chains, seeds), {})
    return files.read(path)


def made_clients(tmp_path, models, number=3):
    out = []
    for client in range(number):
        path = str(tmp_path / "clients" / f"{client}.safetensors")
        client_files.create(path, client, models)
        out.append(client_files.read(path))
    return out


def paths_in(tmp_path):
    names = {"weights": "t.safetensors", "curve": "t.curve.csv", "summary": "t.csv"}
    names |= {"checkpoints": "t.checkpoints", "clients": "t.clients"}
    return {key: str(tmp_path / name) for key, name in names.items()}


FEDERATED = {
    "clients": 3,
    "share": 1.0,
    "local_epochs": 1,
    "split": "iid",
    "alpha": 0.5,
    "answering": 1.0,
}


def train(tmp_path, models, clients=(), seeds=2, central=False, **federated):
    settings = SETTINGS | {"batch": 8, "federated": None if central else FEDERATED | federated}
    how = run.train_all if central else run_federated.train_all
    paths = paths_in(tmp_path)
    how(
        models,
        dataset(),
        settings,
        seeds=seeds,
        device="cpu",
        paths=paths,
        images="embedded",
        provenance={},
        clients=clients,
    )
    assert not Path(paths["checkpoints"]).exists()
    return paths, pd.read_csv(paths["summary"]), pd.read_csv(paths["curve"])


def test_a_client_starts_with_a_key_of_its_own_and_the_servers_locks(tmp_path):
    wide = with_lock(16, "wide")
    models = model_file(tmp_path, LOCKED, wide)
    first, second, _ = made_clients(tmp_path, models)
    for chain in (LOCKED, wide):
        for seed in range(2):
            own, other = first.of(chain, seed), second.of(chain, seed)
            server = private(models.of(chain, seed))
            assert own.keys() == server.keys() | {"conv1_key"}
            assert equal({name: own[name] for name in server}, server)
            assert own["conv1_key"].shape == (chain.layers[0].lock.key,)
            assert equal({"conv1_key": own["conv1_key"]}, draw_key(chain, 0, seed))
            assert not np.array_equal(own["conv1_key"], other["conv1_key"])
    again = str(tmp_path / "again.safetensors")
    client_files.create(again, 0, models)
    assert Path(again).read_bytes() == Path(first.path).read_bytes()


def test_files_of_fedkl_keep_apart_what_is_private(tmp_path):
    other = with_lock(16, "other")
    models = model_file(tmp_path, LOCKED, other)
    clients = made_clients(tmp_path, models)
    paths, summary, curve = train(tmp_path, models, clients)
    server = files.read(paths["weights"])
    trained = [client_files.read(f"{paths['clients']}/{c}.safetensors") for c in range(3)]
    assert sorted(Path(paths["clients"]).iterdir()) == [Path(own.path) for own in trained]
    for chain in (LOCKED, other):
        for seed in range(2):
            held = server.of(chain, seed)
            assert "conv1_key" not in held
            assert equal(private(held), private(models.of(chain, seed)))
            assert not np.array_equal(held["fc1.weight"], models.of(chain, seed)["fc1.weight"])
            for own, before in zip(trained, clients, strict=True):
                kept, start = own.of(chain, seed), before.of(chain, seed)
                assert all(is_private(name) for name in kept)
                assert np.array_equal(kept["conv1_key"], start["conv1_key"])
                for name in kept.keys() - {"conv1_key"}:
                    assert not np.array_equal(kept[name], held[name])
                load(chain, {**held, **kept}, torch.float32)
    values = {value.tobytes() for value in server.weights.values()}
    assert not any(v.tobytes() in values for own in trained for v in own.weights.values())
    assert len(summary) == 2 * 2 * 4
    assert len(curve) == 2 * 2 * 2 * 4
    one = summary[(summary["model"] == "other") & (summary["seed"] == 1)]
    assert list(one["client"]) == ["0", "1", "2", "random"]
    assert set(one["regime"]) == {"fedkl"}
    assert list(one["train"]) == [20, 20, 20, 60]
    assert set(curve["client"]) == {"0", "1", "2", "random"}
    best = curve.groupby(["model", "seed", "client"])["validation_accuracy"].max()
    for row in summary.itertuples():
        assert row.validation_accuracy == best[row.model, row.seed, row.client]


def test_the_files_hold_one_round_together(tmp_path):
    """The server's weights and a client's lock give the accuracy of the best mean."""
    models = model_file(tmp_path, LOCKED, seeds=1)
    paths, _, curve = train(tmp_path, models, made_clients(tmp_path, models), seeds=1)
    own = curve[curve["client"] != "random"]
    means = own.groupby("epoch")["validation_accuracy"].mean()
    chosen = own[own["epoch"] == means.idxmax()].set_index("client")["validation_accuracy"]
    held = files.read(paths["weights"]).of(LOCKED, 0)
    images = split().validation
    for client in range(3):
        kept = client_files.read(f"{paths['clients']}/{client}.safetensors").of(LOCKED, 0)
        module = load(LOCKED, {**held, **kept}, torch.float32)
        right = module(images.inputs(images.pixels)).argmax(1) == images.labels
        assert right.float().mean().item() == pytest.approx(chosen[str(client)])


def test_files_of_fedavg_are_those_of_a_training_alone(tmp_path):
    models = model_file(tmp_path, SMALL)
    paths, summary, curve = train(tmp_path, models, answering=0.6)
    assert not Path(paths["clients"]).exists()
    assert list(summary["client"]) == ["server", "server"]
    assert set(summary["regime"]) == {"fedavg"}
    assert set(summary["epochs"]) == {2}
    gone = [
        sum(len(Federated(3, answering=0.6).silent(seed, n)) for n in range(2)) for seed in (0, 1)
    ]
    assert list(summary["dropped"]) == gone
    assert sum(gone)
    assert list(curve["epoch"]) == [1, 2, 1, 2]
    assert files.read(paths["weights"]).of(SMALL, 1).keys() == alone().weights().keys()


@pytest.mark.parametrize(("chain", "layer"), [(LOCKED, "conv1"), (SKIPPED, "conv2_skip")])
def test_a_locked_network_is_trained_alone_by_one_client(tmp_path, chain, layer):
    models = model_file(tmp_path, chain)
    clients = made_clients(tmp_path, models, 1)
    paths, summary, _ = train(tmp_path, models, clients, central=True)
    assert list(summary["regime"]) == ["central", "central"]
    assert summary["client"].isna().all()
    held = files.read(paths["weights"])
    own = client_files.read(f"{paths['clients']}/0.safetensors")
    for seed in range(2):
        assert f"{layer}_key" not in held.of(chain, seed)
        assert equal(private(held.of(chain, seed)), private(models.of(chain, seed)))
        kept = own.of(chain, seed)
        assert f"{layer}_key" in kept
        trained = f"{layer}_lock_scale.weight"
        assert not np.array_equal(kept[trained], held.of(chain, seed)[trained])
        module = load(chain, {**held.of(chain, seed), **kept}, torch.float32)
        test = split().test
        right = (module(test.inputs(test.pixels)).argmax(1) == test.labels).float().mean().item()
        assert right == pytest.approx(summary["test_accuracy"][seed])


def test_a_group_of_locked_and_plain_networks_trains_centrally(tmp_path):
    """Each as it does by itself; only the locked one has anything to keep."""
    models = model_file(tmp_path, LOCKED, SMALL, seeds=1)
    clients = made_clients(tmp_path, models, 1)
    paths, summary, _ = train(tmp_path, models, clients, seeds=1, central=True)
    assert list(summary["model"]) == ["locked", SMALL.name]
    assert set(summary["regime"]) == {"central"}
    own = client_files.read(f"{paths['clients']}/0.safetensors")
    assert {name.split("/")[0] for name in own.weights} == {"locked"}
    held = files.read(paths["weights"])
    for chain in (LOCKED, SMALL):
        folder = tmp_path / chain.name
        folder.mkdir()
        single = model_file(folder, chain, seeds=1)
        its = made_clients(folder, single, 1) if chain.locked else []
        alone_paths, alone_summary, _ = train(folder, single, its, seeds=1, central=True)
        assert equal(held.of(chain, 0), files.read(alone_paths["weights"]).of(chain, 0))
        row = summary[summary["model"] == chain.name].iloc[0]
        assert row["test_accuracy"] == alone_summary["test_accuracy"][0]


def test_a_group_of_locked_and_plain_networks_trains_together(tmp_path):
    """The locked one by FedKL, the plain one by FedAvg, each as it does by itself."""
    models = model_file(tmp_path, SMALL, LOCKED, seeds=1)
    paths, summary, curve = train(tmp_path, models, made_clients(tmp_path, models), seeds=1)
    rows = list(zip(summary["model"], summary["regime"], summary["client"], strict=True))
    everyone = ["0", "1", "2", "random"]
    expected = [(SMALL.name, "fedavg", "server")]
    assert rows == expected + [("locked", "fedkl", client) for client in everyone]
    assert set(curve["model"]) == {SMALL.name, "locked"}
    held = files.read(paths["weights"])
    kept = sorted(Path(paths["clients"]).iterdir())
    assert [path.stem for path in kept] == ["0", "1", "2"]
    for chain in (SMALL, LOCKED):
        folder = tmp_path / chain.name
        folder.mkdir()
        single = model_file(folder, chain, seeds=1)
        its = made_clients(folder, single) if chain.locked else []
        alone_paths, _, _ = train(folder, single, its, seeds=1)
        assert equal(held.of(chain, 0), files.read(alone_paths["weights"]).of(chain, 0))
        if chain.locked:
            for path in kept:
                other = client_files.read(f"{alone_paths['clients']}/{path.name}")
                assert equal(client_files.read(str(path)).of(chain, 0), other.of(chain, 0))


def test_clients_that_are_missing_are_named(tmp_path):
    models = model_file(tmp_path, LOCKED, seeds=1)
    clients = made_clients(tmp_path, models)
    with pytest.raises(ConfigError, match=r"clients 0 to 2 are to train it, .* of \[0, 2\]"):
        train(tmp_path, models, [clients[0], clients[2]], seeds=1)
    with pytest.raises(ConfigError, match="locked is locked; name the client's file"):
        train(tmp_path, models, central=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"locked/conv1_key": None},
            r"client 0 has no key for conv1 of locked; delete it and ask",
        ),
        (
            {"locked/conv1_key": np.zeros((1, 20), np.float32)},
            "the key of client 0 for conv1 of locked has 20 values, but the lock takes 64; .*"
            "or set lock.key: 20",
        ),
        (
            {"locked/conv1_lock_shift.bias": None},
            r"should have conv1_lock_shift.bias of locked of shape \(8,\), but it is none",
        ),
        (
            {"locked/conv1_lock_scale.weight": np.zeros((1, 4, 64), np.float32)},
            r"of shape \(8, 64\), but it is of shape \(4, 64\)",
        ),
    ],
)
def test_a_clients_file_that_does_not_fit_is_refused(tmp_path, change, words):
    models = model_file(tmp_path, LOCKED, seeds=1)
    whole = made_clients(tmp_path, models, 1)[0]
    weights = {k: v for k, v in (whole.weights | change).items() if v is not None}
    broken = dataclasses.replace(whole, weights=weights)
    with pytest.raises(ArtifactError, match=words):
        broken.of(LOCKED, 0)


def test_a_file_of_something_else_is_no_clients(tmp_path):
    models = model_file(tmp_path, LOCKED, seeds=1)
    whole = made_clients(tmp_path, models, 1)[0]
    with pytest.raises(ArtifactError, match="is of locked, not of other; give the client its file"):
        whole.of(with_lock(name="other"), 0)
    with pytest.raises(ArtifactError, match="has 1 draws of locked, but draw 1 is asked for"):
        whole.of(LOCKED, 1)
    with pytest.raises(ArtifactError, match="is no client's file; give one of results/clients"):
        client_files.read(str(tmp_path / "model.safetensors"))


def test_images_of_clients_are_the_training_images():
    ours = federation(clients=3)
    assert ours.split.sizes == COUNTS
    assert ours.parts[0].device == CPU
    everything = torch.cat([part.pixels for part in ours.parts]).flatten(1)
    assert len(everything.unique(dim=0)) == 60
    assert torch.equal(
        everything.sum(1).sort().values, ours.split.train.pixels.flatten(1).sum(1).sort().values
    )
