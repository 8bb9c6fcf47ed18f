"""The shared cache: what a second checkout takes from it, and what never happens to an entry."""

import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import conftest
from conftest import ROOT, copy_tree, sentence
from gradleak.errors import ArtifactError, ConfigError
from gradleak.pipeline import shared_cache
from gradleak.runtime import artifacts, provenance
from pipeline_trees import rule_blocks

SMOKE = ("--cores", "2", "--config", "scale=smoke")
CELL = "embedded-smoke/copa_pair/cnn3_v3_tanh/none"
COPA, RGAP = (f"results/reconstructions/{CELL}/{name}.safetensors" for name in ("copa", "rgap"))
DATA = "data/photos10-train.safetensors"
TRAINED = "results/training/embedded-smoke/rgap_resnet18/rgap_resnet18"
GOALS = (COPA, RGAP, f"{TRAINED}.csv")
# Outputs of jobs that may use the cache, all that make `GOALS`.
SECONDS = {goal: goal.replace(".safetensors", ".seconds.json") for goal in (COPA, RGAP)}
CACHED = {DATA, f"{DATA}.sha256", *SECONDS, *SECONDS.values()}
CACHED |= {f"{TRAINED}.{suffix}" for suffix in ("safetensors", "csv", "curve.csv")}


def run(folder, cache, *goals):
    """Run in a checkout without sidecars of what it had made before."""
    shutil.rmtree(folder / "results/provenance", ignore_errors=True)
    command = [sys.executable, "-m", "snakemake", *SMOKE, "--cache", "--", *(goals or GOALS)]
    environment = {**os.environ, shared_cache.VARIABLE: str(cache)}
    done = conftest.run(*command, together=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout
    return done.stdout


def computed(folder):
    """Outputs that this checkout made itself: jobs write a sidecar, the cache does not."""
    there = (folder / "results/provenance").rglob("*.json")
    return {json.loads(path.read_text())["artifact"] for path in there} & CACHED


def bytes_of(folder):
    return {path: (folder / path).read_bytes() for path in CACHED}


def entries(cache):
    return {path.name: path.read_bytes() for path in cache.iterdir()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A checkout that filled a cache, the cache, and a second one, elsewhere, that read it."""
    base = tmp_path_factory.mktemp("shared")
    cache = base / "cache"
    cache.mkdir()
    first, second = copy_tree(base / "first"), copy_tree(base / "some/where/second")
    run(first, cache)
    said = run(second, cache)
    return first, second, cache, said


@pytest.mark.slow
def test_a_second_checkout_runs_no_cached_job(shared):
    first, second, cache, said = shared
    assert computed(first) == CACHED
    assert computed(second) == set()
    assert len(re.findall("Symlinking output file", said)) == len(CACHED) == len(entries(cache))
    assert all((second / path).resolve().parent == cache for path in CACHED)
    assert bytes_of(first) == bytes_of(second)


@pytest.mark.slow
def test_results_are_those_without_a_cache(shared, tree, snakemake):
    first = shared[0]
    done = snakemake(tree, *SMOKE, "--", COPA)
    assert "eligible" not in done.stdout + done.stderr
    assert not (tree / COPA).is_symlink()
    assert (tree / COPA).read_bytes() == (first / COPA).read_bytes()


@pytest.mark.slow
def test_what_one_checkout_deletes_or_makes_anew_changes_no_entry(shared, tmp_path):
    """An edit of one attack's code runs that attack alone; taken back, its entry is used again."""
    first, second, cache, _ = shared
    before, old = entries(cache), bytes_of(first)
    code = second / "src/gradleak/attacks/closed_form/rgap.py"
    text = code.read_text()
    code.write_text(text + "\nADDED = 1\n")
    run(second, cache)
    assert computed(second) == {RGAP, SECONDS[RGAP]}
    after = entries(cache)
    assert before.items() <= after.items() and len(after) == len(before) + 2
    assert bytes_of(first) == old

    code.write_text(text)
    (second / COPA).unlink()
    said = run(second, cache)
    assert computed(second) == set()
    assert "Symlinking output file" in said
    assert bytes_of(second) == old
    assert entries(cache) == after


@pytest.mark.slow
def test_another_config_has_other_entries(shared):
    _, second, cache, _ = shared
    before = entries(cache)
    config = second / "papers/copa/paper.yaml"
    text, line = config.read_text(), "copa_iterations:    {smoke: 60,"
    assert text.count(line) == 1
    config.write_text(text.replace(line, line.replace("60", "61")))
    run(second, cache)
    assert computed(second) == {COPA, SECONDS[COPA]}
    assert before.items() <= entries(cache).items()
    config.write_text(text)


@pytest.mark.slow
def test_two_checkouts_at_once_leave_whole_entries(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    folders = [copy_tree(tmp_path / name) for name in ("one", "two")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda folder: run(folder, cache, RGAP), folders))
    one, two = ((folder / RGAP).read_bytes() for folder in folders)
    assert one == two
    # Data set, its checksum, images, seconds; nothing temporary.
    assert len(entries(cache)) == 4
    assert all((folder / RGAP).resolve().parent == cache for folder in folders)


@pytest.mark.slow
def test_a_damaged_entry_is_named_and_made_again_once_it_is_deleted(shared):
    first, _, cache, _ = shared
    entry = (first / RGAP).resolve()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:100])
    said = sentence(ArtifactError, artifacts.read_tensors, first / RGAP)
    assert "damaged" in said and f"delete it and {entry}, which it is a link" in said
    entry.unlink()
    run(first, cache)
    assert RGAP in computed(first)
    assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_used_is_refused_and_nothing_runs(tree, refusal, monkeypatch):
    unset = "SNAKEMAKE_OUTPUT_CACHE, which is not set; set it to the folder"
    assert unset in sentence(ConfigError, shared_cache.check, None)
    assert "a relative path" in sentence(ConfigError, shared_cache.check, "cache")
    nowhere = sentence(ConfigError, shared_cache.check, "/nowhere/cache")
    assert "not a folder that you may write to" in nowhere
    monkeypatch.delenv(shared_cache.VARIABLE, raising=False)
    assert unset in refusal(*SMOKE, "--cache", "--", RGAP)
    assert not (tree / "results").exists()


def test_software_is_part_of_an_entry(monkeypatch):
    before = provenance.software()
    assert before["python"] == ".".join(map(str, sys.version_info[:2]))
    assert re.match(r"\d+\.\d+", before["torch"])
    monkeypatch.setattr(provenance, "version", lambda library: "0.0")
    assert provenance.software() == {**dict.fromkeys(before, "0.0"), "python": before["python"]}


def test_a_listing_stands_for_a_folder(tmp_path):
    folder = tmp_path / "images"
    (folder / "cat").mkdir(parents=True)
    image = folder / "cat" / "1.png"
    image.write_bytes(b"one")
    other, absent = folder / "cat" / "2.png", tmp_path / "absent"
    known = [shared_cache.listing(folder)]
    assert known == [shared_cache.listing(folder)]
    # A link that leads nowhere counts by its name; the job that needs it tells of it.
    for change in (
        lambda: os.utime(image, ns=(1, 1)),
        lambda: image.rename(other),
        lambda: (folder / "dog").symlink_to(absent),
    ):
        change()
        known.append(shared_cache.listing(folder))
    assert len(set(known)) == 4
    assert {shared_cache.listing(path) for path in (other, absent, None)} == {None}


def test_the_rules_that_are_named_are_those_that_say_so():
    named = {name for name, block in rule_blocks() if "\n    cache: SHARED\n" in block}
    assert named == set(shared_cache.RULES)
    page = (ROOT / "docs/cache.md").read_text()
    assert all(f"`{rule}`" in page for rule in named)


def test_a_submitting_profile_refuses_a_cache_without_names(refusal, tmp_path, monkeypatch):
    shared_cache.check_names(["train"])
    monkeypatch.setenv(shared_cache.VARIABLE, str(tmp_path))
    submit = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", "false", "--jobs", 1)
    said = refusal(*submit, "--cache", "--", "figures/copa_fig1.pdf")
    assert "--cache without names does nothing for jobs that are submitted" in said
    assert "name the rules, e.g. --cache embedded_dataset " in said
