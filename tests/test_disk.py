"""Disk reckoned from config.yaml, against files that a run made."""

import csv
import re
from collections import Counter

import pytest

import faults
from benchmarks import disk
from conftest import ROOT, copy_tree
from gradleak.config import loader as gradleak_config
from gradleak.pipeline import resources
from gradleak.pipeline.resources import SCALES
from settings_files import whole

RAW = whole()
RECORDED = ROOT / "docs/results/pipeline/disk.csv"
MKOR = "results/scores/embedded-smoke/mkor_lenet_bias/mkor_lenets/none/mkor_all_direct.csv"


def config(scale):
    return gradleak_config.load({**RAW, "scale": scale, "images": "real"})


@pytest.mark.slow
def test_reckoned_sizes_are_those_found(tmp_path):
    folder = copy_tree(tmp_path)
    done = faults.run(folder, *faults.SMOKE, "--cores", "2", "--", faults.SCORE, MKOR)
    assert done.returncode == 0, done.stdout
    settings = gradleak_config.load({**RAW, "scale": "smoke"})
    reckoned, found = Counter(), Counter()
    for path in sorted((folder / "results").rglob("*.safetensors")):
        name = str(path.relative_to(folder))
        expected = disk.expected(settings, name)
        if expected is not None:
            reckoned[expected.kind] += expected.size
            found[expected.kind] += path.stat().st_size
    assert set(found) == {"targets", "models", "servers", "gradients", "reconstructions"}
    for kind, size in found.items():
        # A header takes some hundred bytes; of a batch some images may not be found.
        assert 0.6 * size - 10_000 <= reckoned[kind] <= 1.5 * size, kind


def test_files_without_large_arrays_count_nothing():
    settings = config("smoke")
    for path in (
        "results/scores/real-smoke/copa_pair/cnn3_v1_tanh/none/copa.csv",
        "results/servers/smoke/fishing/mkor_lenets.secret.safetensors",
        "results/training/real-smoke/fedkl_central_mnist/fedkl_trained_lenet_kl.clients/0.safetensors",
    ):
        assert disk.expected(settings, path) is None


def test_gradients_that_pass_are_of_large_networks_and_closed_forms():
    settings = config("laptop")
    passing = resources.passing_gradients(settings)
    assert "mkor_cifar" in passing and "mkor_cifar_fishing" not in passing
    for name in passing:
        entry = settings.experiments[name]
        assert not any(settings.attacks[attack].searches for attack in entry.attacks)
    assert resources.passing_gradients(config("smoke")) == []


def test_the_page_quotes_the_recorded_table():
    totals = Counter()
    with RECORDED.open(newline="") as file:
        for row in csv.DictReader(file):
            passing = row["kind"].endswith("passing")
            totals[row["scale"], row["paper"], passing] += float(row["megabytes"]) / 1000
    page = (ROOT / "docs/disk.md").read_text()
    names = {"copa": "COPA", "rgap": "R-GAP", "fedkl": "FedKL", "mkor": "MKOR"}
    for paper, name in names.items():
        stays = [round(totals[scale, paper, False], 2) for scale in SCALES]
        told = re.search(rf"^\| {name} \|(.*)\|$", page, re.MULTILINE)[1].split("|")
        assert [float(value) for value in told] == pytest.approx(stays, rel=0.06, abs=0.005)
    kept = [totals[scale, "mkor", False] + totals[scale, "mkor", True] for scale in SCALES]
    told = re.search(r"^\| MKOR, all gradients kept \|(.*)\|$", page, re.MULTILINE)[1].split("|")
    assert [float(value) for value in told] == pytest.approx(kept, rel=0.06)
