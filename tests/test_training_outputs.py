"""Files of training runs, alone and of clients: weights, curves, accuracies, what is private."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import training_cases as t
from gradleak.client import client_keys
from gradleak.errors import ArtifactError, ConfigError, NumericsError
from gradleak.models import files
from gradleak.models.build import with_statistics
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locks import is_private, private
from gradleak.runtime.artifacts import read_tensors
from gradleak.training import run, run_federated
from gradleak.training.clients import Federated
from gradleak.training.engine import Trainer
from gradleak.training.outputs import Results

FEDERATED = {"clients": 3, "share": 1.0, "local_epochs": 1, "split": "iid"}
FEDERATED |= {"alpha": 0.5, "answering": 1.0}


def made_clients(tmp_path, models, number=3):
    out = []
    for client in range(number):
        path = str(tmp_path / "clients" / f"{client}.safetensors")
        client_keys.create(path, client, models)
        out.append(client_keys.read(path))
    return out


def train(tmp_path, models, clients=(), seeds=2, central=False, **federated):
    settings = t.SETTINGS | {"batch": 8, "federated": None if central else FEDERATED | federated}
    paths = t.paths_in(tmp_path)
    how = {"seeds": seeds, "device": "cpu", "paths": paths, "images": "embedded"}
    results = Results(models, t.dataset(), settings, provenance={}, clients=clients, **how)
    (run_federated if settings["federated"] else run).train_all(results)
    assert not Path(paths["checkpoints"]).exists()
    return paths, pd.read_csv(paths["summary"]), pd.read_csv(paths["curve"])


def test_every_network_and_seed_of_a_file_is_trained(tmp_path):
    narrow = Chain("narrow", t.SMALL.input, (*t.SMALL.specs[:1], LinearSpec(3)))
    paths, summary, curve = train(tmp_path, t.model_file(tmp_path, t.SMALL, narrow), central=True)
    assert len(curve) == 2 * 2 * 2
    expected = [["small", 0], ["small", 1], ["narrow", 0], ["narrow", 1]]
    assert summary[["model", "seed"]].to_numpy().tolist() == expected
    assert (summary[["train", "validation", "test"]] == [60, 20, 20]).all(axis=None)
    assert (summary[["regime", "dropped"]] == ["central", 0]).all(axis=None)
    assert summary["client"].isna().all()
    assert curve["client"].isna().all()
    trained = files.read(paths["weights"])
    own = trained.of(t.SMALL, 1)
    assert own.keys() == with_statistics(t.SMALL, initial_weights(t.SMALL, 1)).keys()
    assert t.accuracy(t.SMALL, own, t.split().test) == pytest.approx(summary["test_accuracy"][1])
    assert json.dumps(read_tensors(paths["weights"])[1]["training"]).count("best_epoch") == 4


def test_the_curve_of_a_failed_training_is_kept_beside_its_checkpoints(tmp_path, monkeypatch):
    models, real, calls = t.model_file(tmp_path, t.SMALL, seeds=1), Trainer.evaluate, []

    def evaluate(self, images):
        calls.append(images)
        return (float("nan"), 0.5) if len(calls) == 2 else real(self, images)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    with pytest.raises(NumericsError, match="diverged in epoch 2"):
        train(tmp_path, models, seeds=1, central=True)
    kept = Path(t.paths_in(tmp_path)["checkpoints"]) / "curve.csv"
    assert list(pd.read_csv(kept)["epoch"]) == [1]
    _, _, curve = train(tmp_path, models, seeds=1, central=True)
    assert list(curve["epoch"]) == [1, 2]


def test_networks_that_the_images_do_not_fit_are_refused(tmp_path):
    two = Chain("two", (3, 8, 8), (*t.SMALL.specs[:-1], LinearSpec(2)))
    big = Chain("big", (3, 9, 9), t.SMALL.specs)
    for chain, words in (
        (two, "two has 2 outputs, but m"),
        (big, r"big .* of \[3, 9, 9\], but mine"),
    ):
        with pytest.raises(ConfigError, match=words):
            train(tmp_path, t.model_file(tmp_path, chain), seeds=1, central=True)


def test_a_client_starts_with_a_key_of_its_own_and_the_servers_locks(tmp_path):
    wide = t.with_lock(16, "wide")
    models = t.model_file(tmp_path, t.LOCKED, wide)
    first, second, _ = made_clients(tmp_path, models)
    for chain in (t.LOCKED, wide):
        for seed in range(2):
            own, other = first.of(chain, seed), second.of(chain, seed)
            server = private(models.of(chain, seed))
            assert own.keys() == server.keys() | {"conv1_key"}
            assert t.same({name: own[name] for name in server}, server)
            assert own["conv1_key"].shape == (chain.layers[0].lock.key,)
            assert t.same({"conv1_key": own["conv1_key"]}, draw_key(chain, 0, seed))
            assert not np.array_equal(own["conv1_key"], other["conv1_key"])
    again = str(tmp_path / "again.safetensors")
    client_keys.create(again, 0, models)
    assert Path(again).read_bytes() == Path(first.path).read_bytes()


def test_files_of_fedkl_keep_apart_what_is_private(tmp_path):
    other = t.with_lock(16, "other")
    models = t.model_file(tmp_path, t.LOCKED, other)
    clients = made_clients(tmp_path, models)
    paths, summary, curve = train(tmp_path, models, clients)
    server = files.read(paths["weights"])
    trained = [client_keys.read(f"{paths['clients']}/{c}.safetensors") for c in range(3)]
    assert sorted(Path(paths["clients"]).iterdir()) == [Path(own.path) for own in trained]
    for chain in (t.LOCKED, other):
        for seed in range(2):
            held = server.of(chain, seed)
            assert "conv1_key" not in held
            assert t.same(private(held), private(models.of(chain, seed)))
            assert not np.array_equal(held["fc1.weight"], models.of(chain, seed)["fc1.weight"])
            for own, before in zip(trained, clients, strict=True):
                kept, start = own.of(chain, seed), before.of(chain, seed)
                assert all(is_private(name) for name in kept)
                assert np.array_equal(kept["conv1_key"], start["conv1_key"])
                for name in kept.keys() - {"conv1_key"}:
                    assert not np.array_equal(kept[name], held[name])
                t.accuracy(chain, {**held, **kept}, t.split().test)
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
    models = t.model_file(tmp_path, t.LOCKED, seeds=1)
    paths, _, curve = train(tmp_path, models, made_clients(tmp_path, models), seeds=1)
    own = curve[curve["client"] != "random"]
    means = own.groupby("epoch")["validation_accuracy"].mean()
    chosen = own[own["epoch"] == means.idxmax()].set_index("client")["validation_accuracy"]
    held = files.read(paths["weights"]).of(t.LOCKED, 0)
    for client in range(3):
        kept = client_keys.read(f"{paths['clients']}/{client}.safetensors").of(t.LOCKED, 0)
        reached = t.accuracy(t.LOCKED, {**held, **kept}, t.split().validation)
        assert reached == pytest.approx(chosen[str(client)])


def test_files_of_fedavg_are_those_of_a_training_alone(tmp_path):
    models = t.model_file(tmp_path, t.SMALL)
    paths, summary, curve = train(tmp_path, models, answering=0.6)
    assert not Path(paths["clients"]).exists()
    assert list(summary["client"]) == ["server", "server"]
    assert set(summary["regime"]) == {"fedavg"}
    assert set(summary["epochs"]) == {2}
    own = Federated(3, answering=0.6)
    gone = [sum(len(own.silent(seed, n)) for n in range(2)) for seed in (0, 1)]
    assert list(summary["dropped"]) == gone
    assert sum(gone)
    assert list(curve["epoch"]) == [1, 2, 1, 2]
    assert files.read(paths["weights"]).of(t.SMALL, 1).keys() == t.trainer().weights().keys()


@pytest.mark.parametrize(("chain", "layer"), [(t.LOCKED, "conv1"), (t.SKIPPED, "conv2_skip")])
def test_a_locked_network_is_trained_alone_by_one_client(tmp_path, chain, layer):
    models = t.model_file(tmp_path, chain)
    clients = made_clients(tmp_path, models, 1)
    paths, summary, _ = train(tmp_path, models, clients, central=True)
    assert list(summary["regime"]) == ["central", "central"]
    assert summary["client"].isna().all()
    held = files.read(paths["weights"])
    own = client_keys.read(f"{paths['clients']}/0.safetensors")
    for seed in range(2):
        assert f"{layer}_key" not in held.of(chain, seed)
        assert t.same(private(held.of(chain, seed)), private(models.of(chain, seed)))
        kept = own.of(chain, seed)
        assert f"{layer}_key" in kept
        trained = f"{layer}_lock_scale.weight"
        assert not np.array_equal(kept[trained], held.of(chain, seed)[trained])
        reached = t.accuracy(chain, {**held.of(chain, seed), **kept}, t.split().test)
        assert reached == pytest.approx(summary["test_accuracy"][seed])


@pytest.mark.parametrize("central", [True, False])
def test_a_group_of_locked_and_plain_networks_trains(tmp_path, central):
    """Each as it does by itself, by FedKL and FedAvg together; the locked one has private parts."""
    number = 1 if central else 3
    how = {"seeds": 1, "central": central}
    models = t.model_file(tmp_path, t.SMALL, t.LOCKED, seeds=1)
    clients = made_clients(tmp_path, models, number)
    paths, summary, curve = train(tmp_path, models, clients, **how)
    expected = [["small", "fedavg", "server"]]
    expected += [["locked", "fedkl", who] for who in ("0", "1", "2", "random")]
    if central:
        expected = [["small", "central", ""], ["locked", "central", ""]]
    rows = summary[["model", "regime", "client"]].fillna("").to_numpy().tolist()
    assert rows == expected
    assert set(curve["model"]) == {"small", "locked"}
    held = files.read(paths["weights"])
    kept = sorted(Path(paths["clients"]).iterdir())
    assert [path.stem for path in kept] == ["0", "1", "2"][:number]
    for chain in (t.SMALL, t.LOCKED):
        folder = tmp_path / chain.name
        folder.mkdir()
        single = t.model_file(folder, chain, seeds=1)
        its = made_clients(folder, single, number) if chain.locked else []
        alone, alone_summary, _ = train(folder, single, its, **how)
        assert t.same(held.of(chain, 0), files.read(alone["weights"]).of(chain, 0))
        own = summary[summary["model"] == chain.name]["test_accuracy"]
        assert list(own) == list(alone_summary["test_accuracy"])
        for path in kept if chain.locked else []:
            ours = client_keys.read(str(path))
            assert {name.split("/")[0] for name in ours.weights} == {"locked"}
            other = client_keys.read(f"{alone['clients']}/{path.name}")
            assert t.same(ours.of(chain, 0), other.of(chain, 0))


def test_clients_that_are_missing_are_named(tmp_path):
    models = t.model_file(tmp_path, t.LOCKED, seeds=1)
    clients = made_clients(tmp_path, models)
    with pytest.raises(ConfigError, match=r"clients 0 to 2 are to train it, .* of \[0, 2\]"):
        train(tmp_path, models, [clients[0], clients[2]], seeds=1)
    with pytest.raises(ConfigError, match="locked is locked; name the client's file"):
        train(tmp_path, models, central=True)


MISFITS = {
    "client 0 has no key for conv1 of locked; delete it and ask": ("conv1_key", None),
    "the key of client 0 for conv1 of locked has 20 values, but the lock takes 64; .*"
    "or set lock.key: 20": ("conv1_key", (1, 20)),
    r"should have conv1_lock_shift.bias of locked of shape \(8,\), but it is": (
        "conv1_lock_shift.bias",
        None,
    ),
    r"of shape \(8, 64\), but it is of shape \(4, 64\)": ("conv1_lock_scale.weight", (1, 4, 64)),
}


def test_a_clients_file_that_does_not_fit_is_refused(tmp_path):
    models = t.model_file(tmp_path, t.LOCKED, seeds=1)
    whole = made_clients(tmp_path, models, 1)[0]
    for words, (name, shape) in MISFITS.items():
        weights = {k: v for k, v in whole.weights.items() if k != f"locked/{name}"}
        if shape:
            weights[f"locked/{name}"] = np.zeros(shape, np.float32)
        with pytest.raises(ArtifactError, match=words):
            dataclasses.replace(whole, weights=weights).of(t.LOCKED, 0)
    with pytest.raises(ArtifactError, match="is of locked, not of other; give the client its file"):
        whole.of(t.with_lock(name="other"), 0)
    with pytest.raises(ArtifactError, match="has 1 draws of locked, but draw 1 is asked for"):
        whole.of(t.LOCKED, 1)
    with pytest.raises(ArtifactError, match="is no client's file; give one of results/clients"):
        client_keys.read(str(tmp_path / "model.safetensors"))
