"""Training as a rule: what it writes, and a checkpoint that is not its own."""

import pandas as pd
import pytest

from gradleak.runtime.artifacts import read_tensors

SMOKE = ("--cores", "2", "--config", "scale=smoke", "--")
FOLDER = "results/training/embedded-smoke/rgap_resnet18"


@pytest.mark.slow
def test_a_training_from_nothing_and_a_damaged_checkpoint(tree, snakemake):
    """The job refuses the file by name, leaves it, and works once it is gone."""
    checkpoint = tree / FOLDER / "rgap_resnet18.checkpoints" / "rgap_resnet18-0.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half a file")
    target = f"{FOLDER}/rgap_resnet18.csv"
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
    curve = pd.read_csv(tree / f"{FOLDER}/rgap_resnet18.curve.csv")
    assert list(curve["epoch"]) == [1]
    metadata = read_tensors(tree / f"{FOLDER}/rgap_resnet18.safetensors")[1]
    assert metadata["training"][0]["images"] == "embedded"
    assert not checkpoint.parent.exists()
