"""Federated training as rules: clients' files come in and go out, and which rule makes what."""

import pandas as pd
import pytest
import yaml

from gradleak.client import client_keys
from gradleak.models import files
from gradleak.models.locks import is_private

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
