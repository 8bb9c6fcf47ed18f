"""Files of training runs, alone and of clients: what they hold, what is private; the rules."""

import dataclasses
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import training_cases as t
from conftest import refused
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
    paths = [str(tmp_path / "clients" / f"{client}.safetensors") for client in range(number)]
    for client, path in enumerate(paths):
        client_keys.create(path, client, models)
    return list(map(client_keys.read, paths))


def trained(paths, number=3):
    """Clients after a training."""
    return [client_keys.read(f"{paths['clients']}/{c}.safetensors") for c in range(number)]


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
    same = summary[["train", "validation", "test", "regime", "dropped"]]
    assert (same == [60, 20, 20, "central", 0]).all(axis=None)
    assert summary["client"].isna().all() and curve["client"].isna().all()
    own = files.read(paths["weights"]).of(t.SMALL, 1)
    assert own.keys() == with_statistics(t.SMALL, initial_weights(t.SMALL, 1)).keys()
    assert t.accuracy(t.SMALL, own, t.split().test) == pytest.approx(summary["test_accuracy"][1])
    record = read_tensors(paths["weights"])[1]["training"]
    assert json.dumps(record).count("best_epoch") == 4 and record[0]["images"] == "embedded"


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
    for chain, words in ((two, "has 2 outputs, but m"), (big, r".* of \[3, 9, 9\], but mine")):
        with pytest.raises(ConfigError, match=f"{chain.name} {words}"):
            train(tmp_path, t.model_file(tmp_path, chain), seeds=1, central=True)


def test_a_client_starts_with_a_key_of_its_own_and_the_servers_locks(tmp_path):
    wide = t.with_lock(16, "wide")
    models = t.model_file(tmp_path, t.LOCKED, wide)
    first, second, _ = made_clients(tmp_path, models)
    for chain, seed in product((t.LOCKED, wide), range(2)):
        own, other = first.of(chain, seed), second.of(chain, seed)
        assert own["conv1_key"].shape == (chain.layers[0].lock.key,)
        assert t.same(own, private(models.of(chain, seed)) | draw_key(chain, 0, seed))
        assert not np.array_equal(own["conv1_key"], other["conv1_key"])
    again = str(tmp_path / "again.safetensors")
    client_keys.create(again, 0, models)
    assert Path(again).read_bytes() == Path(first.path).read_bytes()


def test_files_of_fedkl_keep_apart_what_is_private(tmp_path):
    other = t.with_lock(16, "other")
    models = t.model_file(tmp_path, t.LOCKED, other)
    clients = made_clients(tmp_path, models)
    paths, summary, curve = train(tmp_path, models, clients)
    server, after = files.read(paths["weights"]), trained(paths)
    assert sorted(Path(paths["clients"]).iterdir()) == [Path(own.path) for own in after]
    reached = curve.set_index(["model", "seed", "epoch", "client"])["validation_accuracy"].unstack()
    for chain, seed in product((t.LOCKED, other), range(2)):
        held, sent = server.of(chain, seed), models.of(chain, seed)
        assert "conv1_key" not in held
        assert t.same(private(held), private(sent))
        assert not np.array_equal(held["fc1.weight"], sent["fc1.weight"])
        epochs = reached.loc[chain.name, seed]
        chosen = epochs.loc[epochs[["0", "1", "2"]].mean(axis=1).idxmax()]
        for own, before in zip(after, clients, strict=True):
            kept, start = own.of(chain, seed), before.of(chain, seed)
            assert all(is_private(name) for name in kept)
            assert np.array_equal(kept["conv1_key"], start["conv1_key"])
            for name in kept.keys() - {"conv1_key"}:
                assert not np.array_equal(kept[name], held[name])
            # Together they hold the round of the best mean.
            found = t.accuracy(chain, {**held, **kept}, t.split().validation)
            assert found == pytest.approx(chosen[str(own.client)])
    values = {value.tobytes() for value in server.weights.values()}
    assert not any(v.tobytes() in values for own in after for v in own.weights.values())
    assert (len(summary), len(curve)) == (2 * 2 * 4, 2 * 2 * 2 * 4)
    one = summary[(summary["model"] == "other") & (summary["seed"] == 1)]
    assert list(one["client"]) == list(reached) == ["0", "1", "2", "random"]
    assert set(one["regime"]) == {"fedkl"}
    assert list(one["train"]) == [20, 20, 20, 60]
    best = reached.groupby(["model", "seed"]).max()
    for row in summary.itertuples():
        assert row.validation_accuracy == best.loc[(row.model, row.seed), row.client]


def test_files_of_fedavg_are_those_of_a_training_alone(tmp_path):
    models = t.model_file(tmp_path, t.SMALL)
    paths, summary, curve = train(tmp_path, models, answering=0.6)
    assert not Path(paths["clients"]).exists()
    found = summary[["client", "regime", "epochs"]].to_numpy().tolist()
    assert found == [["server", "fedavg", 2]] * 2
    own = Federated(3, answering=0.6)
    gone = [sum(len(own.silent(seed, n)) for n in range(2)) for seed in (0, 1)]
    assert list(summary["dropped"]) == gone and sum(gone)
    assert list(curve["epoch"]) == [1, 2, 1, 2]
    assert files.read(paths["weights"]).of(t.SMALL, 1).keys() == t.trainer().weights().keys()


@pytest.mark.parametrize(("chain", "layer"), [(t.LOCKED, "conv1"), (t.SKIPPED, "conv2_skip")])
def test_a_locked_network_is_trained_alone_by_one_client(tmp_path, chain, layer):
    models = t.model_file(tmp_path, chain)
    clients = made_clients(tmp_path, models, 1)
    paths, summary, _ = train(tmp_path, models, clients, central=True)
    assert list(summary["regime"]) == ["central", "central"]
    assert summary["client"].isna().all()
    (own,) = trained(paths, 1)
    for seed in range(2):
        held, kept = files.read(paths["weights"]).of(chain, seed), own.of(chain, seed)
        assert f"{layer}_key" in kept and f"{layer}_key" not in held
        assert t.same(private(held), private(models.of(chain, seed)))
        scale = f"{layer}_lock_scale.weight"
        assert not np.array_equal(kept[scale], held[scale])
        reached = t.accuracy(chain, {**held, **kept}, t.split().test)
        assert reached == pytest.approx(summary["test_accuracy"][seed])


@pytest.mark.parametrize("central", [True, False])
def test_a_group_of_locked_and_plain_networks_trains(tmp_path, central):
    """Each as it does by itself, by FedKL and FedAvg together; the locked one has private parts."""
    number, how = 1 if central else 3, {"seeds": 1, "central": central}
    models = t.model_file(tmp_path, t.SMALL, t.LOCKED, seeds=1)
    paths, summary, curve = train(tmp_path, models, made_clients(tmp_path, models, number), **how)
    expected = [["small", "fedavg", "server"]]
    expected += [["locked", "fedkl", who] for who in ("0", "1", "2", "random")]
    if central:
        expected = [["small", "central", ""], ["locked", "central", ""]]
    assert summary[["model", "regime", "client"]].fillna("").to_numpy().tolist() == expected
    assert set(curve["model"]) == {"small", "locked"}
    assert len(list(Path(paths["clients"]).iterdir())) == number
    for chain in (t.SMALL, t.LOCKED):
        folder = tmp_path / chain.name
        folder.mkdir()
        single = t.model_file(folder, chain, seeds=1)
        its = made_clients(folder, single, number) if chain.locked else []
        alone, alone_summary, _ = train(folder, single, its, **how)
        held, other = (files.read(made["weights"]).of(chain, 0) for made in (paths, alone))
        assert t.same(held, other)
        own = summary[summary["model"] == chain.name]["test_accuracy"]
        assert list(own) == list(alone_summary["test_accuracy"])
        for ours, other in zip(trained(paths, number), trained(alone, len(its)), strict=False):
            assert {name.split("/")[0] for name in ours.weights} == {"locked"}
            assert t.same(ours.of(chain, 0), other.of(chain, 0))


WRONG = "the key of client 0 for conv1 of locked has 20 values, but the lock takes 64"
MISFITS = [
    ("conv1_key", None, ["client 0 has no key for conv1 of locked; delete it and ask"]),
    ("conv1_key", (1, 20), [WRONG, "or set lock.key: 20"]),
    ("conv1_lock_shift.bias", None, ["have conv1_lock_shift.bias of locked of shape (8,), but"]),
    ("conv1_lock_scale.weight", (1, 4, 64), ["of shape (8, 64), but it is of shape (4, 64)"]),
]


def test_a_clients_file_that_is_missing_or_does_not_fit_is_refused(tmp_path):
    models = t.model_file(tmp_path, t.LOCKED, seeds=1)
    whole, _, other = made_clients(tmp_path, models)
    with refused("clients 0 to 2 are to train it, ", " of [0, 2]", kind=ConfigError):
        train(tmp_path, models, [whole, other], seeds=1)
    with refused("locked is locked; name the client's file", kind=ConfigError):
        train(tmp_path, models, central=True)
    for name, shape, words in MISFITS:
        weights = {k: v for k, v in whole.weights.items() if k != f"locked/{name}"}
        if shape:
            weights[f"locked/{name}"] = np.zeros(shape, np.float32)
        with refused(*words, kind=ArtifactError):
            dataclasses.replace(whole, weights=weights).of(t.LOCKED, 0)
    with refused("is of locked, not of other; give the client its file", kind=ArtifactError):
        whole.of(t.with_lock(name="other"), 0)
    with refused("has 1 draws of locked, but draw 1 is asked for", kind=ArtifactError):
        whole.of(t.LOCKED, 1)
    with refused("is not a client's file; give one of results/clients", kind=ArtifactError):
        client_keys.read(str(tmp_path / "model.safetensors"))


# --- The rules -----------------------------------------------------------------------------------

LAYERS = [
    {"conv": 4, "kernel": 5, "stride": 2, "activation": "relu"},
    {"conv": 8, "kernel": 5, "stride": 2, "pool": "global", "activation": "relu"},
    {"fc": 10},
]
NET = {"input": [1, 32, 32], "layers": LAYERS}
RECIPE = {"dataset": "mnist", "train": 90, "validation": 30, "test": 30, "size": 32}
RECIPE |= {"resize": "bilinear", "epochs": 2, "batch": 16, "crop": 0, "flip": False}
CONFIG = {
    "models": {
        "mine": NET,
        "mine_kl": {**NET, "lock": {"key": 20}},
        "mine_too_kl": {**NET, "lock": {"key": 30}},
    },
    "groups": {"ours_kl": ["mine_kl", "mine_too_kl"]},
    "trainings": {
        "alone": RECIPE,
        "together": {**RECIPE, "federated": {"clients": 2, "answering": 0.9}},
    },
}
FOLDER = "results/training/embedded-laptop"
OURS = ("--cores", "1", "--configfile", "config.yaml", "mine.yaml", "--")


@pytest.fixture
def ours(tree):
    (tree / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
    return tree


def test_each_network_and_regime_has_its_rule(ours, snakemake):
    targets = [f"{FOLDER}/{t}/{m}.csv" for t in ("alone", "together") for m in ("mine", "ours_kl")]
    done = snakemake(ours, "-n", *OURS, *targets)
    said = (done.stdout + done.stderr).split("Job stats:")[1]
    counts = dict(line.split()[:2] for line in said.splitlines() if len(line.split()) == 2)
    rules = ("train", "train_locked", "train_federated", "train_federated_locked")
    assert {rule: counts.get(rule) for rule in rules} == dict.fromkeys(rules, "1")
    assert counts["client"] == "2"


@pytest.mark.slow
def test_a_federation_from_nothing(ours, snakemake):
    target = f"{FOLDER}/together/ours_kl.csv"
    snakemake(ours, *OURS, target)
    summary = pd.read_csv(ours / target)
    assert list(summary["client"]) == ["0", "1", "random"] * 2
    assert list(summary["model"]) == ["mine_kl"] * 3 + ["mine_too_kl"] * 3
    after = trained({"clients": ours / FOLDER / "together/ours_kl.clients"}, 2)
    before = trained({"clients": ours / "results/clients/laptop/ours_kl"}, 2)
    for client, (given, found) in enumerate(zip(before, after, strict=True)):
        assert (given.client, found.client) == (client, client)
        assert given.weights.keys() == found.weights.keys()
    again = snakemake(ours, "-n", *OURS, target)
    assert "Nothing to be done" in again.stdout + again.stderr


@pytest.mark.slow
def test_a_job_refuses_a_damaged_checkpoint_by_name_and_leaves_it(tree, snakemake):
    smoke = ("--cores", "2", "--config", "scale=smoke", "--")
    stem = "results/training/embedded-smoke/rgap_resnet18/rgap_resnet18"
    checkpoint = tree / f"{stem}.checkpoints" / "rgap_resnet18-0.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half a file")
    done = snakemake(tree, *smoke, f"{stem}.csv", check=False)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert f"The checkpoint {checkpoint.relative_to(tree)} is damaged" in said
    assert checkpoint.read_bytes() == b"half a file"
    assert not (tree / f"{stem}.csv").exists()
