"""Disk reckoned from config.yaml, against files that a run made."""

import re
from collections import Counter

import pandas as pd
import pytest

import faults
from benchmarks import disk
from conftest import ROOT, copy_tree
from gradleak.config import loader as gradleak_config
from gradleak.pipeline import resources
from gradleak.pipeline.resources import SCALES
from settings_files import whole

RAW = whole()
MKOR = "results/scores/embedded-smoke/mkor_lenet_bias/mkor_lenets/none/mkor_all_direct.csv"


def config(scale, images="real"):
    return gradleak_config.load({**RAW, "scale": scale, "images": images})


@pytest.mark.slow
def test_reckoned_sizes_are_those_found(tmp_path):
    folder = copy_tree(tmp_path)
    faults.makes(folder, faults.SCORE, MKOR)
    settings, reckoned, found = config("smoke", "embedded"), Counter(), Counter()
    for path in sorted((folder / "results").rglob("*.safetensors")):
        expected = disk.expected(settings, str(path.relative_to(folder)))
        if expected is not None:
            reckoned[expected[1]] += expected[2]
            found[expected[1]] += path.stat().st_size
    assert set(found) == {"targets", "models", "servers", "gradients", "reconstructions"}
    for kind, size in found.items():
        # A header takes some hundred bytes; of a batch some images may not be found.
        assert 0.6 * size - 10_000 <= reckoned[kind] <= 1.5 * size, kind


def test_files_of_a_paper_and_kind_are_summed_and_those_without_large_arrays_are_not():
    model, training = "results/models/smoke/{}.safetensors", "results/training/real-smoke"
    paths = [
        *(model.format(name) for name in ("cnn3_v1_tanh", "cnn3_v2_tanh", "fedkl_lenet_mnist")),
        "data/mnist-train.safetensors",
        "results/scores/real-smoke/copa_pair/cnn3_v1_tanh/none/copa.csv",
        "results/servers/smoke/fishing/mkor_lenets.secret.safetensors",
        f"{training}/fedkl_central_mnist/fedkl_trained_lenet_kl.clients/0.safetensors",
    ]
    rows = disk.table(config("smoke"), paths)
    assert list(rows) == ["scale", "paper", "kind", "files", "megabytes"]
    sizes = [disk.expected(config("smoke"), path)[2] / 1e6 for path in paths[:3]]
    assert rows.to_numpy().tolist() == [
        ["smoke", "copa", "models", 2, sizes[0] + sizes[1]],
        ["smoke", "fedkl", "models", 1, sizes[2]],
    ]


def test_gradients_that_pass_are_of_large_networks_and_closed_forms():
    settings = config("laptop")
    passing = resources.passing_gradients(settings)
    assert "mkor_cifar" in passing and "mkor_cifar_fishing" not in passing
    attacks = {attack for name in passing for attack in settings.experiments[name].attacks}
    assert not any(settings.attacks[attack].searches for attack in attacks)
    assert resources.passing_gradients(config("smoke")) == []


def test_the_page_quotes_the_recorded_table():
    recorded = pd.read_csv(ROOT / "docs/results/pipeline/disk.csv")
    recorded["passing"] = recorded["kind"].str.endswith("passing")
    recorded = recorded.pivot_table("megabytes", ["paper", "passing"], "scale", "sum")[[*SCALES]]
    sizes = recorded.fillna(0) / 1000
    page = (ROOT / "docs/disk.md").read_text()
    rows = {"COPA": "copa", "R-GAP": "rgap", "FedKL": "fedkl", "MKOR": "mkor"}
    rows = {name: sizes.loc[paper, False] for name, paper in rows.items()}
    rows["MKOR, all gradients kept"] = sizes.loc["mkor"].sum()
    for name, expected in rows.items():
        told = re.search(rf"^\| {name} \|(.*)\|$", page, re.MULTILINE)[1].split("|")
        assert [float(value) for value in told] == pytest.approx([*expected], rel=0.06, abs=0.005)
