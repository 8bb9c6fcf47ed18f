"""The pipeline on the embedded images: some targets of each kind, what reruns, what is refused."""

import re
import shutil

import numpy as np
import pytest
import yaml

from conftest import ROOT
from gradleak.runtime.artifacts import read_tensors
from pipeline_trees import SMOKE, assert_same_bytes, copied, made, scheduled, whole

# An attack of each kind, a training with locks, a table and a figure.
SOME = (
    "figures/rgap_fig1.pdf",
    "results/tables/fedkl_parameters.csv",
    "results/scores/embedded-smoke/rgap_cnn6/rgap_cnn6s/none/dlg.csv",
    "results/scores/embedded-smoke/mkor_lenet_code/mkor_lenets/none/mkor_direct.csv",
    "results/scores/embedded-smoke/fedkl_lenet_trained/fedkl_trained_lenet_kl/none/fedkl_grnn.csv",
)
BUILT = (
    *SOME,
    "figures/copa_fig1.pdf",
    "results/tables/copa_table1.csv",
    "results/tables/mkor_unique_samples.csv",
    "results/scores/embedded-smoke/mkor_lenet_code/mkor_lenets/noise_large/mkor_direct.csv",
    "results/scores/embedded-smoke/copa_pair/cnn3_v3_tanh/none/copa_algorithm1.csv",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    with made(tmp_path_factory.mktemp("built"), *BUILT) as folder:
        yield folder


@pytest.fixture
def copy(built, tmp_path):
    return copied(built, tmp_path / "tree")


def reruns(snakemake, folder):
    return scheduled(snakemake, folder, *SMOKE, "--", *BUILT)


def change(path, section, entry, values):
    """Change an entry of the config, or take it out."""
    raw = whole(path)
    raw[section][entry].update(values) if values else raw[section].pop(entry)
    path.write_text(yaml.safe_dump(raw))


# A file or an entry that is changed, rules that rerun, some that do not, and what the wildcards of
# all jobs of a rule or two say.
EDITS = {
    "src/gradleak/attacks/closed_form/copa.py": (
        "attack postprocess score figure",
        "model gradient targets security",
        ("attack|postprocess|score", r"attack=(\w+)", {"copa", "copa_tv", "copa_algorithm1"}),
    ),
    "workflow/scripts/postprocess.py": ("postprocess", "attack gradient model", None),
    "src/gradleak/client/defences/gaussian_noise.py": (
        "defended_gradient",
        "gradient",
        ("defended_gradient", "defence=(noise_)?", {"noise_"}),
    ),
    ("attacks", "copa_tv", ("weight", 0.2)): (
        "postprocess",
        "attack gradient model security",
        ("postprocess", r"attack=(\w+)", {"copa_tv"}),
    ),
    ("scales", "copa_seeds", ("smoke", 3)): (
        "model gradient attack score figure",
        "embedded_dataset",
        None,
    ),
}


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edit_reruns_what_depends_on_it_alone(copy, snakemake, edit):
    if isinstance(edit, str):
        (copy / edit).write_text((copy / edit).read_text() + "\n\nEDITED = True\n")
    else:
        change(copy / "config.yaml", *edit[:2], dict(edit[2:]))
    some, others, told = EDITS[edit]
    jobs = reruns(snakemake, copy)
    rules = {rule for rule, _ in jobs}
    assert rules >= set(some.split()) and rules.isdisjoint(others.split())
    if told:
        found = [wildcards for rule, wildcards in jobs if re.fullmatch(told[0], rule)]
        assert {re.search(told[1], wildcards)[1] for wildcards in found} == told[2]


def test_another_scale_comments_and_messages_rerun_nothing(copy, snakemake):
    laptop = ("--config", "scale=laptop", "--", "figures/copa_fig1.pdf")
    assert "attack" in {rule for rule, _ in scheduled(snakemake, copy, *laptop)}
    names = ("attacks/closed_form/copa", "operators/system", "scoring/scores", "client/capture")
    for name in names:
        path = copy / f"src/gradleak/{name}.py"
        path.write_text("# A comment.\n" + path.read_text() + "\n# Another one.\n")
    errors = copy / "src/gradleak/errors.py"
    errors.write_text(errors.read_text() + "\n\nclass Another(GradleakError):\n    pass\n")
    script = copy / "workflow/scripts/attack.py"
    text = script.read_text().replace("import _package", "import _package  # first")
    script.write_text(text + "# end\n")
    assert reruns(snakemake, copy) == []


# Largest difference between one thread and two, relative to the largest entry, as the docs say.
TOLERANCES = {
    "gradients/embedded-smoke/copa_pair/cnn3_v3_tanh/none": 1e-5,
    "gradients/embedded-smoke/mkor_lenet_code/mkor_lenets/none": 1e-5,
    "reconstructions/embedded-smoke/copa_pair/cnn3_v3_tanh/none/rgap": 1e-4,
    "reconstructions/embedded-smoke/copa_pair/cnn3_v3_tanh/none/copa": 1e-4,
    "reconstructions/embedded-smoke/mkor_lenet_code/mkor_lenets/none/mkor_direct": 1e-4,
    "training/embedded-smoke/fedkl_federated_mnist/fedkl_trained_lenet_kl": 1e-2,
}


@pytest.mark.slow
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


TARGETS = "results/targets/embedded-smoke/copa_pair.safetensors"
# --config, an entry to change, what is asked for, what is said before anything is made.
BAD = [
    ("scale=tiny", (), "all", "--config: scale: 'tiny' is not allowed"),
    ("scael=smoke", (), "all", "unknown key 'scael' (did you mean 'scale'?)"),
    ("device=tpu", (), "all", "--config: device: 'tpu' is not allowed"),
    (
        *("scale=smoke", ("experiments", "rgap_batch2", {}), "figures/rgap_fig7.pdf"),
        "rgap_fig7 needs experiments.rgap_batch2, which the config does not have",
    ),
    (
        *("scale=smoke", ("targets", "copa_pair", {"indices": [1, 99999]}), TARGETS),
        "99999 is none of the 50000 images of cifar10-train",
    ),
]


@pytest.mark.parametrize(("setting", "entry", "target", "words"), BAD)
def test_bad_settings_stop_before_anything_is_written(tree, refusal, setting, entry, target, words):
    if entry:
        change(tree / "config.yaml", *entry)
    assert words in refusal("--config", setting, "--", target)
    assert not (tree / "results").exists()


@pytest.mark.parametrize("name", ["results", "figures"])
def test_a_folder_that_cannot_be_written_is_refused(tree, refusal, name):
    (tree / name).write_text("")
    assert f"{name} is not a folder that you may write to" in refusal(*SMOKE)


def test_a_device_that_is_not_there_is_refused_by_the_job(tree, refusal):
    import torch

    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    target = "results/gradients/embedded-smoke/copa_pair/cnn3_v2_tanh/none.safetensors"
    said = refusal("--config", "scale=smoke", f"device={absent}", "--", target)
    assert f"device: {absent} is not available on this machine" in said
    assert not (tree / target).exists()


def test_targets_with_a_name_exist(tree, snakemake):
    page = (ROOT / "docs/targets.md").read_text().split("\n## Intermediate files")[0]
    rows = re.findall(r"^\| `([^`…]+)` \|", page, flags=re.M)
    assert len(rows) >= 80
    rows.remove("clean")  # refused beside others
    for targets in (rows, ["clean"]):
        snakemake(tree, "-n", *SMOKE, "--", *targets)


def test_a_fresh_copy_makes_the_same_bytes(built, tmp_path, snakemake, monkeypatch):
    fresh = tmp_path / "another" / "tree"
    assert len(assert_same_bytes(built, fresh, snakemake, SOME, monkeypatch)) >= 15


@pytest.mark.parametrize("name", ["report.html", "report.zip"])
def test_snakemake_s_own_report_has_captions_and_categories(built, snakemake, tmp_path, name):
    made = ("figures/rgap_fig1.pdf", "results/tables/mkor_unique_samples.csv")
    snakemake(built, *SMOKE, "--report", tmp_path / name, "--", *made)
    page = tmp_path / name
    if name.endswith(".zip"):
        shutil.unpack_archive(page, tmp_path)
        page = tmp_path / "report/report.html"
        for path in ("rgap_fig1.png", "mkor_unique_samples.csv"):
            assert len([*tmp_path.glob(f"report/**/{path}")]) == 1
    text = page.read_text(encoding="utf-8")
    # The captions' words, and their papers, kinds and titles.
    assert "two images have the same gradient" in text
    assert "expected to share their class with no other" in text
    assert '"R-GAP"' in text and '"MKOR"' in text and '"Figures"' in text and '"Tables"' in text
    assert '"Figure 1: how' in text and '"Equation (3): images alone in their class"' in text
