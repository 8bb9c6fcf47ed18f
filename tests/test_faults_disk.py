"""A full disk, folders that may not be written, and a source tree that may only be read."""

import re
import shutil

import pytest

import faults
from conftest import ROOT, copy_tree, run

mounts = pytest.mark.skipif(
    faults.namespace("true") is None,
    reason="needs mounts of its own: unshare -m as root, or user namespaces",
)
# The disk grows until all fits: full for Snakemake's own records, for arrays, for the last files.
SIZES = ("16k", "3m", "6300k")
FILL = """
cd "$1"; shift; reference=$1; shift
mount -t tmpfs -o size=16k none "$PWD"; cd "$PWD"
for size in {sizes} 64m; do
    mount -o remount,size=$size "$PWD"
    status=0; "$@" > "$reference/../full.$size.log" 2>&1 || status=$?
    cp -a . "$reference/../full.$size"
    echo "$size $status"
done
"""


def mounted(script, *arguments):
    done = run(*faults.namespace(script), *arguments, env=faults.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def from_source(source, *arguments):
    return faults.command("--snakefile", source / "Snakefile", *faults.SMOKE, *arguments)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return faults.calm(tmp_path_factory)


@pytest.mark.slow
@mounts
def test_a_full_disk_is_told_and_the_run_goes_on_after_space_is_freed(tmp_path, calm):
    work = tmp_path / "work"
    work.mkdir()
    script = FILL.format(sizes=" ".join(SIZES))
    command = from_source(ROOT, "--", faults.SCORE)
    told = dict(line.split() for line in mounted(script, work, calm, *command).splitlines())
    reference = faults.artifacts(calm)
    assert told == dict.fromkeys(SIZES, "1") | {"64m": "0"}
    for size in SIZES:
        text = (calm.parent / f"full.{size}.log").read_text()
        assert "No space left on device" in text
        folder = calm.parent / f"full.{size}"
        assert faults.half_written(folder, reference) == []
        assert faults.temporaries(folder / "results") == []
        print(size, len(faults.artifacts(folder)), "artifacts kept")
    said = faults.words((calm.parent / "full.3m.log").read_text())
    assert re.search(
        r"gradleak: Cannot write data/photos10-train.safetensors: .*; free space", said
    )
    assert faults.artifacts(calm.parent / "full.64m") == reference
    for size in (*SIZES, "64m"):
        shutil.rmtree(calm.parent / f"full.{size}")


READ_ONLY = """
source=$1; work=$2; shift 2
mount --bind "$source" "$source"
mount -o remount,bind,ro "$source"
! touch "$source/x" 2> "$work/refused"
cd "$work"
"$@" > run.log 2>&1
"""


@pytest.mark.slow
@mounts
def test_a_read_only_source_tree_gives_the_same_bytes_elsewhere(tmp_path, calm):
    source, work = copy_tree(tmp_path / "source"), tmp_path / "work"
    work.mkdir()
    before = sorted(source.rglob("*"))
    mounted(READ_ONLY, source, work, *from_source(source, "--", faults.SCORE))
    assert "Read-only file system" in (work / "refused").read_text()
    assert faults.artifacts(work) == faults.artifacts(calm)
    assert sorted(source.rglob("*")) == before


def test_a_config_of_the_working_folder_wins_and_claims_are_found(tmp_path):
    source, work = copy_tree(tmp_path / "source"), tmp_path / "work"
    work.mkdir()
    target = "results/tables/copa_table1.csv"
    arguments = ("-n", "--verbose", "--snakefile", source / "Snakefile", "--", target)
    done = faults.run(work, *arguments)
    assert done.returncode == 0, done.stdout
    assert f"input: {source}/papers/copa/claims.yaml" in done.stdout
    assert "results/security/embedded-laptop/" in done.stdout
    text = (source / "config.yaml").read_text()
    (work / "config.yaml").write_text(text.replace("\nscale: laptop", "\nscale: smoke"))
    done = faults.run(work, *arguments)
    assert "results/security/embedded-smoke/" in done.stdout, done.stdout


UNWRITABLE = """
work=$1; folder=$2; shift 2
mkdir -p "$work/$folder"
mount -t tmpfs -o ro none "$work/$folder"
cd "$work"
status=0; "$@" || status=$?
echo "status $status"
"""
UNWRITABLE_FOLDERS = [
    ("results", "results is no folder that you may write to"),
    (".", "may not be written to; run Snakemake in a folder of your own, with --snakefile"),
    # Snakemake's own words, before the job begins; a data folder that holds all may be read-only.
    ("data", "Read-only file system: 'data/photos10-train.safetensors'"),
]


@mounts
@pytest.mark.parametrize(("folder", "sentence"), UNWRITABLE_FOLDERS, ids=["results", "all", "data"])
def test_a_folder_that_may_not_be_written_is_named(tmp_path, folder, sentence):
    source, work = copy_tree(tmp_path / "source"), tmp_path / "work"
    target = "data/photos10-train.safetensors"
    command = ["bash", "-c", '"$@" 2>&1', "bash", *from_source(source, "--", target)]
    said = mounted(UNWRITABLE, work, folder, *command)
    assert said.endswith("status 1\n")
    assert sentence in faults.words(said)
