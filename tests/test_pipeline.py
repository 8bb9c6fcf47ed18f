"""The pipeline on the embedded images: all targets, what reruns, what is refused."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from conftest import ROOT, copy_tree
from gradleak.artifacts import read_tensors
from html_tree import parse
from test_figures_style import assert_print

SMOKE = ("--config", "scale=smoke")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tree in which everything was made once, at smoke scale; 5 GB, removed at the end."""
    folder = copy_tree(tmp_path_factory.mktemp("built"))
    sizes = pd.read_csv(ROOT / "docs/results/pipeline/disk.csv")
    # A tenth more for data, figures and records.
    needed = 1.1 * sizes.megabytes[sizes.scale == "smoke"].sum() / 1e3
    free = shutil.disk_usage(folder).free / 1e9
    if free < needed:
        pytest.fail(f"{folder}: {free:.1f} of {needed:.1f} GB are free; set TMPDIR elsewhere")
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *SMOKE],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder
    finally:
        shutil.rmtree(folder)


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
    done = snakemake(folder, "-n", "--verbose", *(arguments or SMOKE))
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


def test_what_holds_of_any_run_is_as_it_was_recorded(built):
    """Sizes and equations give the numbers and verdicts of the runs that docs/results keeps."""
    files = (ROOT / "docs/results").glob("*/claims.csv")
    recorded = pd.concat(map(pd.read_csv, files)).set_index("id")
    here = pd.read_csv(built / "results/claims.csv").set_index("id").loc[recorded.index]
    judged = (recorded.verdict != "not judged") & (here.verdict != "not judged")
    assert judged.sum() > 230
    turned = recorded.index[judged & (recorded.verdict != here.verdict)]
    assert list(turned) == []
    exact = recorded[(recorded.kind == "exact") & judged]
    # c(M), RA-i, shares of parameters and the like, which the paper prints.
    equal = exact[exact.reason.str.match(r"all (equal|within .*) to the paper's value")]
    assert len(equal) > 75 and set(equal.paper) == {"copa", "rgap", "mkor", "fedkl"}
    np.testing.assert_allclose(here.ours[equal.index], equal.ours, rtol=1e-9, atol=1e-7)  # rounding


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


def test_an_edited_explanation_or_caption_reruns_claims_and_the_report_alone(copy, snakemake):
    path = copy / "workflow/claims/explanations/copa.yaml"
    path.write_text(path.read_text() + "\n# touched\n")
    targets = ("--", "all", "results/report.html")
    rules = {rule for rule, _ in scheduled(snakemake, copy, *SMOKE, *targets)}
    assert rules == {"claims_table", "report_page", "all"}


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


# Another home, time zone, language, hash seed and number of cores, as on somebody else's account.
ELSEWHERE = {"TZ": "Asia/Tokyo", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
# An attack of each kind, a training with locks, a table and a figure.
SOME = (
    "figures/copa_fig1.pdf",
    "results/tables/fedkl_parameters.csv",
    "results/scores/embedded-smoke/rgap_cnn6/rgap_cnn6s/none/dlg.csv",
    "results/scores/embedded-smoke/mkor_lenet_code/mkor_lenets/none/mkor_direct.csv",
    "results/scores/embedded-smoke/fedkl_lenet_trained/fedkl_trained_lenet_kl/none/fedkl_grnn.csv",
)
# What tells of the run, not of the result.
ABOUT_THE_RUN = ("logs", "benchmarks", "provenance")


def results_of(folder):
    """Everything that equal inputs must make equal, with its bytes, by its path in the tree."""
    found = {}
    for top in ("results", "figures", "data"):
        for path in (folder / top).rglob("*"):
            parts = path.relative_to(folder).parts
            if path.is_file() and parts[1] not in ABOUT_THE_RUN and ".seconds." not in path.name:
                found["/".join(parts)] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    "targets", [SOME, pytest.param(("all",), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_two_fresh_copies_make_the_same_bytes(built, tmp_path, snakemake, targets, monkeypatch):
    fresh = copy_tree(tmp_path / "another" / "tree")
    for key, value in (ELSEWHERE | {"HOME": str(tmp_path)}).items():
        monkeypatch.setenv(key, value)
    snakemake(fresh, "--cores", 1, *SMOKE, "--", *targets)
    expected, found = results_of(built), results_of(fresh)
    kinds = {Path(name).suffix for name in found}
    assert {".safetensors", ".csv", ".pdf", ".png"} <= kinds
    assert len(found) >= 40
    assert [name for name, content in found.items() if content != expected.get(name)] == []
    if targets == ("all",):
        assert found.keys() == expected.keys()


# Largest difference between one thread and two, relative to the largest entry, as the docs say.
TOLERANCES = {
    "gradients/embedded-smoke/copa_pair/cnn3_v3_tanh/none": 1e-5,
    "gradients/embedded-smoke/mkor_lenet_code/mkor_lenets/none": 1e-5,
    "reconstructions/embedded-smoke/copa_pair/cnn3_v3_tanh/none/rgap": 1e-4,
    "reconstructions/embedded-smoke/copa_pair/cnn3_v3_tanh/none/copa": 1e-4,
    "reconstructions/embedded-smoke/mkor_lenet_code/mkor_lenets/none/mkor_direct": 1e-4,
    "training/embedded-smoke/fedkl_federated_mnist/fedkl_trained_lenet_kl": 1e-2,
}


def test_the_number_of_threads_changes_digits_within_the_stated_tolerance(built, tree, snakemake):
    rules = ("attack", "gradient", "train_federated_locked")
    threads = [f"{rule}=2" for rule in rules]
    files = [f"results/{name}.safetensors" for name in TOLERANCES]
    snakemake(tree, "--cores", 2, *SMOKE, "--set-threads", *threads, "--", *files)
    for name, tolerance in TOLERANCES.items():
        one, _ = read_tensors(built / f"results/{name}.safetensors")
        two, _ = read_tensors(tree / f"results/{name}.safetensors")
        for key, value in one.items():
            if value.size:
                most = np.abs(two[key].astype(float) - value).max() / (np.abs(value).max() or 1)
                assert most <= tolerance, f"{name}, {key}: {most:.1e}"


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
    rows.remove("clean")  # refused beside others
    for targets in (rows, ["clean"]):
        snakemake(built, "-n", *SMOKE, "--", *targets)


def test_all_figures_hold_their_words_as_text_and_fit_a_page(built):
    figures = sorted(built.glob("figures/*.pdf"))
    assert len(figures) > 30
    for path in figures:
        assert_print(path)


# --- Report --------------------------------------------------------------------------------------

# Bytes of the page; it goes by mail.
LIMIT = 15e6


def test_the_report_shows_all_that_was_made_and_stays_small(copy, snakemake):
    done = snakemake(copy, *SMOKE, "--", "results/report.html")
    page = copy / "results/report.html"
    figures = len(list(copy.glob("figures/*.pdf")))
    told = f"Look at results/report.html, results/claims.csv, figures/ ({figures} of {figures} "
    assert done.stderr.splitlines()[-1].startswith(told)
    assert "puts them on one page" not in done.stderr
    assert page.stat().st_size < LIMIT
    html = parse(page.read_text(encoding="utf-8"))
    links = {link["href"] for link in html.all("a")}
    ids = {element["id"] for element in html.all() if "id" in element.attributes}
    # The papers' own code.
    for link in (link for link in links if not link.startswith("https://github.com/")):
        assert link[1:] in ids if link.startswith("#") else (page.parent / link).is_file(), link
    # Every figure, table and claim of the tree, and each with a caption of its own.
    assert {f"figure-{path.stem}" for path in copy.glob("figures/*.pdf")} <= ids
    assert {f"sheet-{path.stem}" for path in copy.glob("results/tables/*.csv")} <= ids
    assert set(pd.read_csv(copy / "results/claims.csv").id) <= ids
    captions = copy / "workflow/report/captions"
    for kind, made in (("figures", "figures/*.pdf"), ("tables", "results/tables/*.csv")):
        assert {path.stem for path in copy.glob(made)} == {
            path.stem for path in (captions / kind).glob("*.rst")
        }
    # An interval says what it is.
    bare = re.compile(r"(\S*\d\S*|open) to (\S*\d\S*|open)")
    assert [cell.text() for cell in html.all("td") if bare.fullmatch(cell.text())] == []
    assert scheduled(snakemake, copy, *SMOKE, "--", "results/report.html") == []


@pytest.mark.parametrize("name", ["report.html", "report.zip"])
def test_snakemake_s_own_report_has_captions_and_categories(built, snakemake, tmp_path, name):
    made = ("figures/rgap_fig1.pdf", "results/tables/mkor_unique_samples.csv")
    snakemake(built, *SMOKE, "--report", tmp_path / name, "--", *made)
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name) as found:
            names = found.namelist()
            text = found.read("report/report.html").decode()
        for path in ("rgap_fig1.png", "mkor_unique_samples.csv"):
            assert any(packed.endswith(f"/{path}") for packed in names)
    else:
        text = (tmp_path / name).read_text(encoding="utf-8")
    # The captions' words, and their papers, kinds and titles.
    assert "two images have the same gradient" in text
    assert "expected to share their class with no other" in text
    assert '"R-GAP"' in text and '"MKOR"' in text and '"Figures"' in text and '"Tables"' in text
    assert '"Figure 1: how' in text and '"Equation (3): images alone in their class"' in text


@pytest.mark.slow
def test_snakemake_s_own_report_of_everything_is_made(built, snakemake, tmp_path):
    snakemake(built, *SMOKE, "--report", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("copa_fig1.png", "fedkl_table6.csv", "mkor_table4.csv", "claims.csv"):
        assert name in text
