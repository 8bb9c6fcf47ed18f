"""What `snakemake clean` removes, what it leaves alone, and which gradients go by themselves."""

import errno
import os
import re
from unittest.mock import Mock

import pytest

from gradleak.errors import ArtifactError
from gradleak.pipeline import cleanup
from pipeline_trees import jobs_of

SMOKE = ("--cores", "2", "--config", "scale=smoke")
CELL = "embedded-smoke/copa_pair/cnn3_v3_tanh"
SCORES = f"results/scores/{CELL}/none/rgap.csv"
TRAINING = "results/training/embedded-smoke/rgap_resnet18/rgap_resnet18"


def write(path, content=b"12345"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


def test_files_go_and_tables_of_trainings_stay(folder):
    for name in ("a/b/x.safetensors", "a/y.json", "a/b/x.csv", "a/x.checkpoints/x-0.safetensors"):
        write(folder / "results" / name)
    (folder / "results/a/empty").mkdir()
    write(folder / "results/other/z.safetensors")
    assert cleanup.remove(["results/a", "results/absent"]) == [
        cleanup.Freed(cleanup.Path("results/a"), 3, 15),
        cleanup.Freed(cleanup.Path("results/absent"), 0, 0),
    ]
    assert files(folder) == {"results/a/b/x.csv", "results/other/z.safetensors"}
    assert sorted(p.name for p in (folder / "results/a").iterdir()) == ["b"]
    cleanup.remove(["results/other"])
    assert not (folder / "results/other").exists()


def test_links_go_and_what_they_lead_to_stays(folder):
    kept = write(folder / "cache/entry.safetensors")
    inside = write(folder / "cache/folder/client.safetensors")
    (folder / "results/a").mkdir(parents=True)
    links = {"x.safetensors": kept, "x.clients": inside.parent, "gone.safetensors": "nowhere"}
    for name, target in links.items():
        (folder / "results/a" / name).symlink_to(target)
    assert cleanup.remove(["results/a"]) == [cleanup.Freed(cleanup.Path("results/a"), 3, 0)]
    assert files(folder) == {"cache/entry.safetensors", "cache/folder/client.safetensors"}


@pytest.mark.parametrize("where", ["data", "results/../data", "ABSOLUTE", "results/a"])
def test_nothing_is_removed_outside_of_results(folder, where):
    """`results/a` is a link to another disk here."""
    kept = [write(folder / "data/x.safetensors"), write(folder / "results/b/x.safetensors")]
    (folder / "results/a").symlink_to(folder / "data")
    with pytest.raises(ArtifactError, match=r"nothing was removed; remove by hand"):
        cleanup.remove(["results/b", where.replace("ABSOLUTE", f"{folder}/data")])
    assert all(path.read_bytes() == b"12345" for path in kept)


def test_a_file_that_cannot_be_removed_is_named_and_the_sum_told(folder, monkeypatch):
    path = write(folder / "results/a/x.safetensors")
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    monkeypatch.setattr(cleanup.Path, "unlink", Mock(side_effect=denied))
    with pytest.raises(ArtifactError, match=r"Cannot remove .*x\.safetensors: Permission denied; "):
        cleanup.remove(["results/a"])
    rows = [("a", 3, 2_540_000_000), ("b", 0, 0), ("c", 1, 1200)]
    freed = [cleanup.Freed(cleanup.Path("results") / name, *counts) for name, *counts in rows]
    assert cleanup.words(freed).splitlines() == [
        "    2.5 GB       3 files  results/a",
        "    1.2 kB       1 files  results/c",
        "    2.5 GB       4 files  freed in all",
    ]


@pytest.mark.slow
def test_after_a_clean_up_nothing_is_to_be_done(tree, snakemake, refusal):
    """Scores and accuracies stay up to date; one that is deleted brings back what it needs."""
    other = write(tree / "results/gradients/embedded-laptop/x/y/none.safetensors")
    snakemake(tree, *SMOKE, "--", SCORES, f"{TRAINING}.csv")
    before = {path: (tree / path).read_bytes() for path in (SCORES, f"{TRAINING}.csv")}
    data = {path for path in files(tree) if path.startswith("data/")}

    said = refusal(*SMOKE, "--", "clean", SCORES)
    assert "ask for it alone: snakemake clean." in said
    assert (tree / f"{TRAINING}.safetensors").is_file()

    done = snakemake(tree, *SMOKE, "--", "clean")
    assert re.search(r"[\d.]+ MB +\d+ files  freed in all", done.stdout + done.stderr)
    left = files(tree)
    assert data | {f"{TRAINING}.curve.csv"} <= left
    arrays = [path for path in left - data if path.endswith(".safetensors")]
    assert arrays == [str(other.relative_to(tree))]
    again = snakemake(tree, *SMOKE, "--", SCORES, f"{TRAINING}.csv")
    assert "Nothing to be done" in again.stdout + again.stderr

    (tree / SCORES).unlink()
    snakemake(tree, *SMOKE, "--", SCORES, f"{TRAINING}.csv")
    assert {path: (tree / path).read_bytes() for path in before} == before
    assert (tree / f"results/reconstructions/{CELL}/none/rgap.safetensors").is_file()
    assert not (tree / f"{TRAINING}.safetensors").exists()


LINE = "MEDIUM, LARGE = 1_000_000, 30_000_000"


@pytest.mark.slow
def test_a_large_gradient_is_gone_once_it_was_read(tree, snakemake):
    path = tree / "src/gradleak/pipeline/work.py"
    text = path.read_text()
    assert text.count(LINE) == 1
    path.write_text(text.replace(LINE, "MEDIUM, LARGE = 100, 1_000"))
    gradient = tree / f"results/gradients/{CELL}/none.safetensors"
    scores = [f"results/scores/{CELL}/none/{attack}.csv" for attack in ("rgap", "copa")]
    snakemake(tree, *SMOKE, "--notemp", "--", scores[0])
    first = (tree / scores[0]).read_bytes()
    gradient.unlink()
    done = snakemake(tree, *SMOKE, "-n", "--", scores[0])
    assert "Nothing to be done" in done.stdout + done.stderr

    done = snakemake(tree, *SMOKE, "-n", "--", scores[1])
    assert jobs_of(done.stdout + done.stderr) == {
        "large_gradient": 1,
        "attack": 1,
        "score": 1,
        "total": 3,
    }
    snakemake(tree, *SMOKE, "--", scores[1])
    assert not gradient.exists()
    assert (tree / scores[0]).read_bytes() == first


def test_networks_of_a_hundred_million_weights_alone_have_large_gradients(tree, snakemake):
    """Of them those go that closed forms alone have read."""
    done = snakemake(tree, "-n", "--verbose", "--config", "scale=laptop")
    text = done.stdout + done.stderr
    found, blocks = jobs_of(text), re.findall(r"rule large_\w+:\n(?: .*\n)+", text)
    assert found["large_gradient"] == 20 and found["large_defended_gradient"] == 3
    assert len(blocks) == 23
    for block in blocks:
        assert re.search(r"model=mkor_(vgg16_1000?(_strided)?|modified_1000),", block)
