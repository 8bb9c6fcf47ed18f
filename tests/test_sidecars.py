"""Sidecars: what made an artifact; nothing of them in the artifact itself."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from gradleak import sidecars

KEYS = {
    "artifact",
    "sha256",
    "rule",
    "script",
    "images",
    "scale",
    "wildcards",
    "input",
    "params",
    "threads",
    "versions",
    "commit",
    "changed",
    "gpu",
    "host",
    "ended",
    "seconds",
    "cpu_seconds",
    "peak_mib",
    "torch_threads",
}
JOB = """
import sys
from pathlib import Path
from types import SimpleNamespace
from snakemake.iocontainers import Namedlist
from gradleak.script import job
from gradleak.errors import DataError

fails = sys.argv[1] == "fails"
given = SimpleNamespace(
    rule="toy", threads=1, config={"scale": "smoke", "images": "embedded"},
    log=Namedlist(["toy.log"]), input=Namedlist(["in.txt"]),
    output=Namedlist(["results/a/x.csv", "figures/y.pdf"]),
    wildcards=Namedlist(fromdict={"model": "m"}),
    params=Namedlist(fromdict={"settings": {"steps": 3}, "path": Path("p"), "code": "c0de"}),
)
with job(given):
    for path in map(Path, given.output):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
    if fails:
        raise DataError("No such image.")
"""


def run(folder, how):
    return subprocess.run(
        [sys.executable, "-c", JOB, how],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "workflow"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_output_of_a_job_has_a_sidecar(tmp_path):
    done = run(tmp_path, "works")
    assert done.returncode == 0, done.stderr
    for artifact, place in (
        ("results/a/x.csv", "a/x.csv.json"),
        ("figures/y.pdf", "figures/y.pdf.json"),
    ):
        found = json.loads((tmp_path / "results/provenance" / place).read_text())
        assert set(found) == KEYS
        assert found["artifact"] == artifact
        assert found["sha256"] == hashlib.sha256(b"content").hexdigest()
        assert found["params"] == {"settings": {"steps": 3}, "path": "p", "code": "c0de"}
        assert (found["scale"], found["images"]) == ("smoke", "embedded")
        assert found["wildcards"] == {"model": "m"}
        assert 0 < found["cpu_seconds"] <= found["seconds"] * 8
        assert 10 < found["peak_mib"] < 2000


def test_a_failed_job_leaves_no_sidecar(tmp_path):
    done = run(tmp_path, "fails")
    assert done.returncode == 1
    assert done.stderr.strip() == "gradleak: No such image."
    assert not (tmp_path / "results/provenance").exists()


@pytest.mark.parametrize(
    ("artifact", "place"),
    [
        ("results/scores/a.csv", "scores/a.csv.json"),
        ("figures/copa_fig1.pdf", "figures/copa_fig1.pdf.json"),
        ("data/cifar10-test.safetensors", "data/cifar10-test.safetensors.json"),
        ("/far/away/data/cifar10-test.safetensors", "data/cifar10-test.safetensors.json"),
    ],
)
def test_sidecars_mirror_the_tree(artifact, place):
    assert sidecars.path_of(artifact) == Path("results/provenance") / place


def test_the_checksum_of_a_folder_is_of_names_and_contents(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, order in ((one, "ab"), (two, "ba")):
        folder.mkdir()
        for name in order:
            (folder / name).write_text(name)
    assert sidecars.checksum(one) == sidecars.checksum(two)
    (two / "b").rename(two / "c")
    assert sidecars.checksum(one) != sidecars.checksum(two)


def test_the_commit_is_told_where_git_knows_it():
    found = sidecars.commit()
    if (ROOT / ".git").exists():
        assert len(found["commit"]) == 40
        assert found["changed"] in (True, False)
    else:
        assert found == {"commit": None, "changed": None}
