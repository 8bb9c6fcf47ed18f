"""Sidecars: what made an artifact; nothing of them in the artifact itself."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PACKAGES, ROOT
from gradleak.runtime import job_records

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
from gradleak.runtime.job import job
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


def run(folder, how, code=JOB):
    return subprocess.run(
        [sys.executable, "-c", code, how],
        cwd=folder,
        env={"PYTHONPATH": os.pathsep.join(PACKAGES), "PATH": "/usr/bin:/bin"},
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
    assert job_records.path_of(artifact) == Path("results/provenance") / place


def test_the_checksum_of_a_folder_is_of_names_and_contents(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, order in ((one, "ab"), (two, "ba")):
        folder.mkdir()
        for name in order:
            (folder / name).write_text(name)
    assert job_records.checksum(one) == job_records.checksum(two)
    # As Snakemake does once the sidecar is written.
    (one / ".snakemake_timestamp").touch()
    assert job_records.checksum(one) == job_records.checksum(two)
    (two / "b").rename(two / "c")
    assert job_records.checksum(one) != job_records.checksum(two)


def test_the_commit_is_told_where_git_knows_it():
    found = job_records.commit()
    if (ROOT / ".git").exists():
        assert len(found["commit"]) == 40
        assert found["changed"] in (True, False)
    else:
        assert found == {"commit": None, "changed": None}


READ = """
import sys
from types import SimpleNamespace
from snakemake.iocontainers import Namedlist
from gradleak.runtime.job import job

given = SimpleNamespace(
    rule="reader", log=Namedlist(), wildcards=Namedlist(), output=Namedlist(), config={},
    input=Namedlist(["results/a/x.csv"]), params=Namedlist(), threads=1,
)
with job(given, altered=sys.argv[1] == "lists"):
    print("read")
"""


def _cut(path):
    path.write_text("conten")


def _folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_cut, _folder])
def test_a_job_refuses_an_input_that_was_changed_after_it_was_made(tmp_path, damage):
    run(tmp_path, "works")
    assert run(tmp_path, "reads", READ).stdout == "read\n"
    path = tmp_path / "results/a/x.csv"
    damage(path)
    done = run(tmp_path, "reads", READ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gradleak: results/a/x.csv was changed after it was made, by its SHA-256 in "
        "results/provenance/a/x.csv.json; delete it and ask Snakemake for it again.\n"
    )
    # Jobs that show or list results tell of it in their own way.
    assert run(tmp_path, "lists", READ).stdout == "read\n"


def test_what_another_checkout_may_have_made_is_not_compared(tmp_path):
    run(tmp_path, "works")
    path, entry = tmp_path / "results/a/x.csv", tmp_path / "entry"
    entry.write_text("of the shared cache")
    path.unlink()
    path.symlink_to(entry)
    assert run(tmp_path, "reads", READ).stdout == "read\n"
    path.unlink()
    path.write_text("copied here")
    sidecar = tmp_path / "results/provenance/a/x.csv.json"
    for text in ("{", "[]", '{"artifact": "other/x.csv", "sha256": ""}'):
        sidecar.write_text(text)
        assert run(tmp_path, "reads", READ).stdout == "read\n"
    sidecar.unlink()
    assert run(tmp_path, "reads", READ).stdout == "read\n"
