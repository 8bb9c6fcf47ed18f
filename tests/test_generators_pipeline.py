"""Generators and the attack that searches them, as rules."""

import pandas as pd
import pytest
import yaml

from gradleak.runtime.artifacts import read_tensors
from settings_files import whole

SMOKE = ("--cores", "2", "--config", "scale=smoke", "--")
CASE = "embedded-smoke"


def configured(tree):
    """Add generators, an attack on a small network and BigGAN without its weights."""
    path = tree / "config.yaml"
    raw = whole(path)
    raw["generators"] |= {
        "small": {
            "kind": "conditional_vae", "dataset": "cifar10", "images": 40, "epochs": 1,
            "latent": 4, "width": 8,
        },
        "big": {"kind": "biggan", "weights": "own/biggan.bin", "size": 224},
    }  # fmt: skip
    amounts = {"generations": 2, "population": 4}
    raw["attacks"]["searching"] = {"method": "ggl", "generator": "small", **amounts}
    raw["models"]["searched"] = {
        "input": [3, 32, 32],
        "layers": [{"conv": 4, "kernel": 3, "stride": 2, "activation": "sigmoid"}, {"fc": 10}],
    }
    raw["experiments"]["searched"] = {
        "paper": "fedkl", "targets": "rgap_cifar", "models": ["searched"], "seeds": 1,
        "defences": ["none"], "attacks": ["searching"],
    }  # fmt: skip
    path.write_text(yaml.safe_dump(raw))


@pytest.mark.slow
def test_an_attack_trains_the_generator_that_it_searches(tree, snakemake):
    configured(tree)
    target = f"results/scores/{CASE}/searched/searched/none/searching.csv"
    snakemake(tree, *SMOKE, target)
    scores = pd.read_csv(tree / target)
    errors = scores[scores["metric"] == "mse"]
    assert list(errors["status"]) == ["ok"]
    assert errors["value"].between(0.0, 1.0).all()
    metadata = read_tensors(tree / f"results/generators/{CASE}/small.safetensors")[1]
    assert metadata["source"]["dataset"] == "photos10"
    assert metadata["source"]["images"] == 40
    curve = pd.read_csv(tree / f"results/generators/{CASE}/small.curve.csv")
    assert list(curve["epoch"]) == [1]

    missing = f"results/generators/{CASE}/big.safetensors"
    done = snakemake(tree, *SMOKE, missing, check=False)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "own/biggan.bin is missing: BigGAN's weights are not downloaded by themselves" in said
    assert not (tree / missing).exists()
