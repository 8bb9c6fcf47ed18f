"""One job: its sidecars, which say what made an artifact; its threads; its freed memory."""

import hashlib
import json
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest
from conftest import ROOT
from faults_job import run
from gradleak.runtime import job, job_records

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
    for artifact in ("results/a/x.csv", "figures/y.pdf"):
        place = f"results/provenance/{artifact.removeprefix('results/')}.json"
        found = json.loads((tmp_path / place).read_text())
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


def test_sidecars_mirror_the_tree_and_the_commit_is_told_where_git_knows_it():
    data = "data/cifar10-test.safetensors"
    places = {"results/scores/a.csv": "scores/a.csv", "figures/a.pdf": "figures/a.pdf", data: data}
    for artifact, place in (places | {f"/far/away/{data}": data}).items():
        assert job_records.path_of(artifact) == Path(f"results/provenance/{place}.json")
    commit, changed = job_records.commit().values()
    known = (ROOT / ".git").exists()
    assert (commit is None, changed in (True, False)) == (not known, known)
    assert not known or len(commit) == 40


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


# As in scripts, the libraries are there before the job begins.
LOADED = "import numpy, scipy.linalg, torch\n"
COUNT = """
import json, threadpoolctl, torch
from gradleak.runtime.artifacts import atomic
with atomic("results/toy.csv") as temporary:
    pools = threadpoolctl.threadpool_info()
    temporary.write_text(json.dumps([torch.get_num_threads(), *(p["num_threads"] for p in pools)]))
"""
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize("environment", [{}, dict.fromkeys(VARIABLES, "2")], ids=["bare", "two"])
@pytest.mark.parametrize("first", ["", LOADED], ids=["loaded later", "loaded before"])
def test_a_job_takes_the_threads_of_its_rule(tmp_path, environment, first):
    done = run(tmp_path, COUNT, first=first, **environment)
    assert done.returncode == 0, done.stderr
    threads = json.loads((tmp_path / "results/toy.csv").read_text())
    assert len(threads) >= 3 and set(threads) == {1}


# Page faults of a loop that takes and frees 16 MiB and one block of 64, as searches do.
LOOP = """
import resource, sys
import numpy as np
from gradleak.runtime.malloc import keep_freed_memory
taken = keep_freed_memory() if sys.argv[1] == "keep" else True
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    parts = [np.ones(2**18) for _ in range(8)] + [np.ones(2**23)]
    del parts
print(taken, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_not_taken_from_the_system_again_where_glibc_has_a_setting():
    done = [conftest.run(sys.executable, "-c", LOOP, how, check=True) for how in ("keep", "return")]
    (taken, kept), (_, returned) = (one.stdout.split() for one in done)
    assert taken == str(platform.libc_ver()[0] == "glibc")
    assert taken == "False" or int(kept) < int(returned) / 5


def test_every_job_keeps_it(monkeypatch):
    called = []
    monkeypatch.setattr(job, "keep_freed_memory", lambda: called.append(True))
    monkeypatch.setattr(job.job_records, "write", lambda given: None)
    monkeypatch.setattr(job, "_limit_threads", lambda threads: None)  # those of this process
    with job.job(SimpleNamespace(input=[], log=[], threads=1)):
        assert called
