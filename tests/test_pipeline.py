"""The pipeline on the embedded images: all targets, what reruns, what is refused."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from conftest import ROOT, TREE

SMOKE = ("--config", "scale=smoke")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A tree in which everything was made once, at smoke scale."""
    folder = tmp_path_factory.mktemp("built")
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *SMOKE],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def copy(built, tmp_path):
    """A copy of the built tree that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "tree", copy_function=_copied))


def _copied(source, target):
    """Copy a file; arrays, of which there are many, are linked, as jobs replace them whole."""
    if source.endswith(".safetensors"):
        os.link(source, target)
        return target
    return shutil.copy2(source, target)


def scheduled(snakemake, folder, *arguments):
    """Jobs that a dry run would start, as (rule, wildcards) pairs."""
    done = snakemake(folder, "-n", *(arguments or SMOKE))
    text = done.stdout + done.stderr
    found = []
    for block in re.split(r"\n(?=(?:local)?rule )", text):
        name = re.match(r"\s*(?:local)?rule (\w+):", block)
        if name:
            wildcards = re.search(r"wildcards: (.*)", block)
            found.append((name[1], wildcards[1] if wildcards else ""))
    return found


def test_every_target_is_made(built):
    made = {str(p.relative_to(built)) for p in built.rglob("*") if p.is_file()}
    expected = {
        "results/claims.csv",
        *(f"figures/copa_{n}.{s}" for n in ("fig1", "fig2", "index") for s in ("pdf", "png")),
        *(f"results/tables/copa_{n}.csv" for n in ("table1", "table2", "images", "index")),
        *(f"figures/rgap_fig{n}.{s}" for n in range(1, 10) for s in ("pdf", "png")),
        *(f"results/tables/rgap_table{n}.csv" for n in (1, 2, 3, 4)),
        *(f"results/tables/rgap_{name}.csv" for name in ("fig4", "resnet101")),
        *(f"figures/mkor_fig{n}.{s}" for n in range(3, 19) for s in ("pdf", "png")),
        *(f"figures/mkor_leakage.{s}" for s in ("pdf", "png")),
        *(f"results/tables/mkor_table{n}.csv" for n in (1, 2, 3, 4, 6, 7)),
        *(f"results/tables/mkor_{n}.csv" for n in ("inconspicuous", "losses", "unique_samples")),
    }
    assert expected <= made
    claims = pd.read_csv(built / "results/claims.csv")
    assert claims.paper.value_counts()["copa"] > 200
    assert claims.paper.value_counts()["rgap"] > 100
    assert claims.paper.value_counts()["mkor"] > 200
    assert set(claims.images) == {"embedded"}
    verdicts = {"reproduced", "exceeds", "differs", "refuted", "not judged"}
    assert set(claims.verdict) <= verdicts
    exact = claims[claims.id.str.match(r"copa\.table1|rgap\.table3\..\.ra$")]
    assert set(exact.verdict) == {"reproduced"}
    table = pd.read_csv(built / "results/tables/copa_table2.csv")
    assert (table.n_ok.dropna() <= table.n.dropna()).all()


def test_a_second_run_does_nothing(built, snakemake):
    done = snakemake(built, *SMOKE)
    assert "Nothing to be done" in done.stdout + done.stderr
    for target in ("all", "figures", "tables", "claims"):
        assert scheduled(snakemake, built, *SMOKE, "--", target) == []


def test_an_edited_attack_reruns_its_descendants_alone(copy, snakemake):
    path = copy / "workflow/gradleak/attacks/copa.py"
    path.write_text(path.read_text() + "\n\nEDITED = True\n")
    jobs = scheduled(snakemake, copy)
    assert {rule for rule, _ in jobs} >= {
        "attack",
        "postprocess",
        "score",
        "copa_fig1",
        "claims_table",
    }
    assert {rule for rule, _ in jobs}.isdisjoint({"model", "gradient", "targets", "security"})
    attacks = {
        w.split("attack=")[1] for rule, w in jobs if rule in ("attack", "postprocess", "score")
    }
    assert attacks == {"copa", "copa_tv", "copa_algorithm1"}


def test_an_edited_comment_reruns_nothing(copy, snakemake):
    for name in ("attacks/copa.py", "operators/system.py", "scores.py", "gradients.py"):
        path = copy / "workflow/gradleak" / name
        path.write_text("# A comment.\n" + path.read_text() + "\n# Another one.\n")
    assert scheduled(snakemake, copy) == []


def test_an_edited_defence_reruns_its_gradients_alone(copy, snakemake):
    path = copy / "workflow/gradleak/defences/gaussian_noise.py"
    path.write_text(path.read_text() + "\n\nEDITED = True\n")
    jobs = scheduled(snakemake, copy)
    noisy = {w for rule, w in jobs if rule == "defended_gradient"}
    assert noisy
    assert all("defence=noise_" in w for w in noisy)
    assert "gradient" not in {rule for rule, _ in jobs}


def test_a_changed_setting_reruns_what_depends_on_it(copy, snakemake):
    path = copy / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["attacks"]["copa_tv"]["weight"] = 0.2
    path.write_text(yaml.safe_dump(raw))
    jobs = scheduled(snakemake, copy)
    assert {rule for rule, _ in jobs}.isdisjoint({"attack", "gradient", "model", "security"})
    assert {w.split("attack=")[1] for rule, w in jobs if rule == "postprocess"} == {"copa_tv"}


def test_another_number_of_seeds_reruns_from_the_models_on(copy, snakemake):
    path = copy / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["scales"]["copa_seeds"]["smoke"] = 3
    path.write_text(yaml.safe_dump(raw))
    rules = {rule for rule, _ in scheduled(snakemake, copy)}
    assert {"model", "gradient", "attack", "score", "copa_fig1"} <= rules
    assert "embedded_dataset" not in rules


def test_a_changed_claim_reruns_tables_and_claims_alone(copy, snakemake):
    path = copy / "workflow/claims/copa.yaml"
    path.write_text(path.read_text() + "\n# touched\n")
    rules = {rule for rule, _ in scheduled(snakemake, copy)}
    assert "claims_table" in rules
    assert rules.isdisjoint({"score", "attack", "gradient", "model", "security", "copa_fig1"})


def test_switching_the_scale_loses_nothing(copy, snakemake):
    rules = {rule for rule, _ in scheduled(snakemake, copy, "--config", "scale=laptop")}
    assert "attack" in rules
    assert scheduled(snakemake, copy) == []


def test_same_inputs_same_bytes(built, tmp_path, snakemake):
    target = "results/scores/embedded-smoke/copa_pair/cnn3_v2_tanh/none/copa_tv.csv"
    fresh = tmp_path / "tree"
    fresh.mkdir()
    for name in TREE:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, fresh / name)
    snakemake(fresh, *SMOKE, "--", target)
    compared = 0
    for path in fresh.rglob("results/**/*"):
        if path.suffix in {".safetensors", ".csv"}:
            assert path.read_bytes() == (built / path.relative_to(fresh)).read_bytes(), path
            compared += 1
    assert compared >= 6


BAD = [
    (("scale=tiny",), "config.yaml: scale: 'tiny' is not allowed"),
    (("scael=smoke",), "unknown key 'scael' (did you mean 'scale'?)"),
    (("device=tpu",), "config.yaml: device: 'tpu' is not allowed"),
]


@pytest.mark.parametrize(("setting", "words"), BAD, ids=[b[0][0] for b in BAD])
def test_bad_settings_stop_before_anything_is_written(tree, snakemake, setting, words):
    done = snakemake(tree, "--config", *setting, check=False)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert not (tree / "results").exists()


@pytest.mark.parametrize("name", ["results", "figures"])
def test_a_folder_that_cannot_be_written_is_refused(tree, snakemake, name):
    (tree / name).write_text("")
    done = snakemake(tree, *SMOKE, check=False)
    assert done.returncode != 0
    assert f"{name} is no folder that you may write to" in done.stdout + done.stderr


def test_a_figure_without_its_experiment_is_refused(tree, snakemake):
    path = tree / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    del raw["experiments"]["rgap_batch2"]
    path.write_text(yaml.safe_dump(raw))
    done = snakemake(tree, *SMOKE, "--", "figures/rgap_fig7.pdf", check=False)
    assert done.returncode != 0
    assert "experiments.rgap_batch2 is missing" in done.stdout + done.stderr


def test_missing_index_is_refused_by_the_job(tree, snakemake):
    path = tree / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    raw["targets"]["copa_pair"]["indices"] = [1, 99999]
    path.write_text(yaml.safe_dump(raw))
    target = "results/targets/embedded-smoke/copa_pair.safetensors"
    done = snakemake(tree, *SMOKE, "--", target, check=False)
    assert done.returncode != 0
    assert "Index 99999 is out of range" in done.stdout + done.stderr
    assert not (tree / target).exists()


def test_a_device_that_is_not_there_is_refused_by_the_job(tree, snakemake):
    import torch

    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    target = "results/gradients/embedded-smoke/copa_pair/cnn3_v2_tanh/none.safetensors"
    done = snakemake(tree, "--config", "scale=smoke", f"device={absent}", "--", target, check=False)
    assert done.returncode != 0
    assert f"device: {absent} is not available on this machine" in done.stdout + done.stderr
    assert not (tree / target).exists()


def test_targets_named_in_the_readme_exist(built, snakemake):
    rows = re.findall(r"^\| `([^`…]+)` \|", (ROOT / "README.md").read_text(), flags=re.M)
    assert len(rows) >= 8
    for target in rows:
        snakemake(built, "-n", *SMOKE, "--", target)
