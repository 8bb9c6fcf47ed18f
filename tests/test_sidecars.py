"""Sidecars: what made an artifact; nothing of them in the artifact itself."""

import hashlib
import json
from pathlib import Path

import pytest

from conftest import ROOT
from faults_job import run
from gradleak.runtime import job_records

KEYS = (
    "artifact sha256 rule script images scale wildcards input params threads versions commit "
    "changed gpu host ended seconds cpu_seconds peak_mib torch_threads"
)
GIVEN = """
given.input, given.output = Namedlist(["in.txt"]), Namedlist(["results/a/x.csv", "figures/y.pdf"])
settings = {"settings": {"steps": 3}, "path": Path("p"), "code": "c0de"}
given.params = Namedlist(fromdict=settings)
"""
BODY = """
for path in map(Path, given.output):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("content")
"""
FAILS = "\nfrom gradleak.errors import DataError\nraise DataError('No such image.')"
READS = "given.input, given.output = Namedlist(['results/a/x.csv']), Namedlist([])"


def write(folder, body=BODY):
    return run(folder, body, given=GIVEN)


def read(folder, altered=False):
    return run(folder, "print('read')", given=READS, altered=altered)


def test_each_output_of_a_job_has_a_sidecar(tmp_path):
    done = write(tmp_path)
    assert done.returncode == 0, done.stderr
    made = {"results/a/x.csv": "a/x.csv.json", "figures/y.pdf": "figures/y.pdf.json"}
    for artifact, place in made.items():
        found = json.loads((tmp_path / "results/provenance" / place).read_text())
        assert set(found) == set(KEYS.split())
        assert found["artifact"] == artifact
        assert found["sha256"] == hashlib.sha256(b"content").hexdigest()
        assert found["params"] == {"settings": {"steps": 3}, "path": "p", "code": "c0de"}
        assert (found["scale"], found["images"]) == ("smoke", "embedded")
        assert found["wildcards"] == {"model": "m"}
        assert 0 < found["cpu_seconds"] <= found["seconds"] * 8
        assert 10 < found["peak_mib"] < 2000


def test_a_failed_job_leaves_no_sidecar(tmp_path):
    done = write(tmp_path, BODY + FAILS)
    assert (done.returncode, done.stderr) == (1, "gradleak: No such image.\n")
    assert not (tmp_path / "results/provenance").exists()


def test_sidecars_mirror_the_tree():
    data = "data/cifar10-test.safetensors"
    places = {"results/scores/a.csv": "scores/a.csv", "figures/a.pdf": "figures/a.pdf", data: data}
    for artifact, place in (places | {f"/far/away/{data}": data}).items():
        assert job_records.path_of(artifact) == Path(f"results/provenance/{place}.json")


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
    if not (ROOT / ".git").exists():
        assert found == {"commit": None, "changed": None}
    else:
        assert len(found["commit"]) == 40 and found["changed"] in (True, False)


@pytest.mark.parametrize("damage", ["a cut", "a folder"])
def test_a_job_refuses_an_input_that_was_changed_after_it_was_made(tmp_path, damage):
    write(tmp_path)
    assert read(tmp_path).stdout == "read\n"
    path = tmp_path / "results/a/x.csv"
    path.unlink()
    path.mkdir() if damage == "a folder" else path.write_text("conten")
    done = read(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gradleak: results/a/x.csv was changed after it was made, by its SHA-256 in "
        "results/provenance/a/x.csv.json; delete it and ask Snakemake for it again.\n"
    )
    # Jobs that show or list results tell of it in their own way.
    assert read(tmp_path, altered=True).stdout == "read\n"


def test_what_another_checkout_may_have_made_is_not_compared(tmp_path):
    write(tmp_path)
    path, entry = tmp_path / "results/a/x.csv", tmp_path / "entry"
    entry.write_text("of the shared cache")
    path.unlink()
    path.symlink_to(entry)
    assert read(tmp_path).stdout == "read\n"
    path.unlink()
    path.write_text("copied here")
    sidecar = tmp_path / "results/provenance/a/x.csv.json"
    for text in ("{", "[]", '{"artifact": "other/x.csv", "sha256": ""}'):
        sidecar.write_text(text)
        assert read(tmp_path).stdout == "read\n"
    sidecar.unlink()
    assert read(tmp_path).stdout == "read\n"
