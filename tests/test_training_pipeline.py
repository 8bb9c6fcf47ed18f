"""Training as rules: what it writes, checkpoints, which rule makes what, and clients' files."""

import pandas as pd
import pytest
import yaml

from gradleak.client import client_keys
from gradleak.models import files
from gradleak.models.locks import is_private
from gradleak.runtime.artifacts import read_tensors

LAYERS = [
    {"conv": 4, "kernel": 5, "stride": 2, "activation": "relu"},
    {"conv": 8, "kernel": 5, "stride": 2, "pool": "global", "activation": "relu"},
    {"fc": 10},
]
IMAGES = {"dataset": "mnist", "train": 90, "validation": 30, "test": 30, "size": 32}
RECIPE = {"resize": "bilinear", "epochs": 2, "batch": 16, "crop": 0, "flip": False}
CONFIG = {
    "models": {
        "mine": {"input": [1, 32, 32], "layers": LAYERS},
        "mine_kl": {"input": [1, 32, 32], "layers": LAYERS, "lock": {"key": 20}},
        "mine_too_kl": {"input": [1, 32, 32], "layers": LAYERS, "lock": {"key": 30}},
    },
    "groups": {"ours_kl": ["mine_kl", "mine_too_kl"]},
    "trainings": {
        "alone": {**IMAGES, **RECIPE},
        "together": {**IMAGES, **RECIPE, "federated": {"clients": 2, "answering": 0.9}},
    },
}
FOLDER = "results/training/embedded-laptop"


@pytest.fixture
def ours(tree):
    (tree / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
    return tree


def options(*more):
    return ("--cores", "1", *more, "--configfile", "config.yaml", "mine.yaml", "--")


def test_each_network_and_regime_has_its_rule(ours, snakemake):
    targets = [f"{FOLDER}/{t}/{m}.csv" for t in ("alone", "together") for m in ("mine", "ours_kl")]
    done = snakemake(ours, *options("-n"), *targets)
    said = (done.stdout + done.stderr).split("Job stats:")[1]
    counts = dict(line.split()[:2] for line in said.splitlines() if len(line.split()) == 2)
    rules = ("train", "train_locked", "train_federated", "train_federated_locked")
    assert {rule: counts.get(rule) for rule in rules} == dict.fromkeys(rules, "1")
    assert counts["client"] == "2"


@pytest.mark.slow
def test_a_federation_from_nothing(ours, snakemake):
    target = f"{FOLDER}/together/ours_kl.csv"
    snakemake(ours, *options(), target)
    summary = pd.read_csv(ours / target)
    assert list(summary["client"]) == ["0", "1", "random"] * 2
    assert list(summary["model"]) == ["mine_kl"] * 3 + ["mine_too_kl"] * 3
    server = files.read(str(ours / FOLDER / "together" / "ours_kl.safetensors"))
    for client in range(2):
        given = client_keys.read(str(ours / f"results/clients/laptop/ours_kl/{client}.safetensors"))
        found = client_keys.read(
            str(ours / FOLDER / "together" / "ours_kl.clients" / f"{client}.safetensors")
        )
        assert (given.client, found.client) == (client, client)
        assert given.weights.keys() == found.weights.keys()
        assert all(is_private(name.split("/")[1]) for name in found.weights)
        held = {value.tobytes() for value in server.weights.values()}
        assert not any(value.tobytes() in held for value in found.weights.values())
    again = snakemake(ours, *options("-n"), target)
    assert "Nothing to be done" in again.stdout + again.stderr


SMOKE = ("--cores", "2", "--config", "scale=smoke", "--")
RESNET = "results/training/embedded-smoke/rgap_resnet18"


@pytest.mark.slow
def test_a_training_from_nothing_and_a_damaged_checkpoint(tree, snakemake):
    """The job refuses the file by name, leaves it, and works once it is gone."""
    checkpoint = tree / RESNET / "rgap_resnet18.checkpoints" / "rgap_resnet18-0.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half a file")
    target = f"{RESNET}/rgap_resnet18.csv"
    done = snakemake(tree, *SMOKE, target, check=False)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert f"The checkpoint {checkpoint.relative_to(tree)} is damaged" in said
    assert checkpoint.read_bytes() == b"half a file"
    assert not (tree / target).exists()

    checkpoint.unlink()
    snakemake(tree, *SMOKE, target)
    summary = pd.read_csv(tree / target)
    assert list(summary["model"]) == ["rgap_resnet18"]
    assert summary["test_accuracy"].between(0, 1).all()
    assert list(summary[["train", "validation", "test"]].iloc[0]) == [200, 50, 50]
    curve = pd.read_csv(tree / f"{RESNET}/rgap_resnet18.curve.csv")
    assert list(curve["epoch"]) == [1]
    metadata = read_tensors(tree / f"{RESNET}/rgap_resnet18.safetensors")[1]
    assert metadata["training"][0]["images"] == "embedded"
    assert not checkpoint.parent.exists()
