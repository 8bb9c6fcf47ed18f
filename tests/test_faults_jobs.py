"""One job that is killed, stopped, orphaned, or short of memory; clocks; what stays behind."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import psutil
import pytest
import torch

import faults_job
from conftest import ROOT, run
from gradleak.runtime import artifacts, malloc
from gradleak.runtime.artifacts import write_json


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    results = tmp_path / "results"
    killed = faults_job.begin(tmp_path)
    killed.kill()
    killed.communicate()
    (left,) = names(results)
    assert left.startswith(".toy.") and left.endswith(".csv")
    assert (results / left).read_text() == "half"
    write_json(results / "other.csv", {})
    assert left in names(results)
    write_json(results / "toy.csv", {})
    assert names(results) == ["other.csv", "toy.csv"]


def test_a_living_writers_file_is_left_alone(tmp_path):
    living, path = faults_job.begin(tmp_path), tmp_path / "results/toy.csv"
    write_json(path, "ours")
    assert json.loads(path.read_text()) == "ours"
    assert faults_job.finish(living) == (0, "")
    assert path.read_text() == "whole"
    assert names(tmp_path / "results") == ["toy.csv"]


def test_only_temporary_files_of_the_same_artifact_are_removed(tmp_path):
    kept = [".toy.hand.csv", ".toys.abcdefgh.csv", ".toy.abcdefgh.json", "toy.abcdefgh.csv"]
    for name in [*kept, ".toy.abcdefgh.csv"]:
        (tmp_path / name).write_text("")
    assert artifacts.remove_abandoned(tmp_path / "toy.csv") == [tmp_path / ".toy.abcdefgh.csv"]
    assert names(tmp_path) == sorted(kept)


def test_the_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    told = []
    kind, sync, replace = type(tmp_path), os.fsync, type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda handle: (told.append("sync"), sync(handle)))
    monkeypatch.setattr(kind, "replace", lambda *p: (told.append("rename"), replace(*p)))
    write_json(tmp_path / "x.json", {})
    assert told == ["sync", "rename"]


BEGIN = pytest.mark.parametrize("begin", [faults_job.begin, faults_job.begin_imports])


@BEGIN
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_job_with_one_sentence_and_nothing_half_written(tmp_path, begin, number):
    # Whoever runs the tests may ignore a signal, as nohup does, and processes inherit that.
    job = begin(tmp_path, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    job.send_signal(number)
    _, errors = job.communicate(timeout=60)
    assert errors.startswith(f"gradleak: Stopped by {signal.Signals(number).name}; ")
    assert (job.returncode, errors.count("\n")) == (128 + number, 1)
    if begin is faults_job.begin:
        assert names(tmp_path / "results") == []
        assert "Stopped by" in (tmp_path / "results/logs/toy.log").read_text()


def test_every_script_imports_what_catches_signals_first():
    """Before NumPy, pandas and PyTorch, which take seconds."""
    scripts = [p for p in (ROOT / "workflow/scripts").glob("*.py") if p.name != "_package.py"]
    assert len(scripts) > 30
    for script in scripts:
        body = ast.parse(script.read_text()).body
        first = next(one for one in body if isinstance(one, ast.Import | ast.ImportFrom))
        assert ast.unparse(first) == "import _package", script.name


NOHUP = ("bash", "-c", "trap '' HUP; exec \"$@\"", "bash")  # as nohup does with SIGHUP


@BEGIN
def test_a_signal_that_is_ignored_stays_so(tmp_path, begin):
    job = begin(tmp_path, prefix=NOHUP)
    job.send_signal(signal.SIGHUP)
    assert faults_job.finish(job) == (0, "")
    if begin is faults_job.begin:
        assert (tmp_path / "results/toy.csv").read_text() == "whole"


PARENT = 'import subprocess, sys\nsubprocess.Popen([sys.executable, "-c", {code!r}]).wait()'
ENDLESS = """
import os
with atomic("results/toy.csv") as temporary:
    print(os.getpid(), flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.parametrize("name", ["snakemake", "another"])
def test_a_job_ends_soon_after_its_snakemake_and_no_other_parent(tmp_path, name):
    (tmp_path / name).write_text(PARENT.format(code=faults_job.code(ENDLESS)))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    where = {"cwd": tmp_path, "env": faults_job.ENVIRONMENT}
    with subprocess.Popen([sys.executable, name], **pipes, **where) as parent:
        job = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    ended, _ = psutil.wait_procs([job], timeout=20 if name == "snakemake" else 3)
    if not ended:
        job.kill()
    assert bool(ended) == (name == "snakemake")
    if ended:
        assert names(tmp_path / "results") == []
        assert "Stopped by SIGTERM" in (tmp_path / "results/logs/toy.log").read_text()


SHORTAGES = {
    "python": "limit(); [bytearray(2**26) for _ in range(64)]",
    "numpy": "limit(); import numpy; numpy.ones(2**29)",
    "torch": "import torch; limit(); torch.ones(2**29)",
}
LIMIT = """
import resource, re
def limit():
    size = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    resource.setrlimit(resource.RLIMIT_AS, ((size + 2**18) * 2**10,) * 2)
"""


@pytest.mark.parametrize("what", SHORTAGES)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on addresses")
def test_a_shortage_of_memory_is_one_sentence(tmp_path, what):
    done = faults_job.run(tmp_path, LIMIT + SHORTAGES[what])
    assert done.stderr.startswith("gradleak: The job toy (model=m) ran out of memory: it held up ")
    assert "run fewer jobs at once (--cores 1, or --resources mem_mb=" in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "ran out of memory" in (tmp_path / "results/logs/toy.log").read_text()
    assert not (tmp_path / "results/toy.csv").exists()


SHORT = [
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
    OSError(12, "Cannot allocate memory"),
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory."),
]
OTHERS = RuntimeError("shapes cannot be multiplied"), OSError(2, ""), ValueError("out of memory")


def test_which_errors_tell_of_memory_and_another_keeps_its_traceback(tmp_path):
    assert [error for error in SHORT if not malloc.is_shortage(error)] == []
    assert [error for error in OTHERS if malloc.is_shortage(error)] == []
    done = faults_job.run(tmp_path, "raise RuntimeError('a bug')")
    assert done.returncode == 1 and "Traceback" in done.stderr and "gradleak: " not in done.stderr


@pytest.mark.parametrize("file", ["logs/toy.log: File exists", "provenance/toy.csv.json: "])
def test_a_log_or_a_sidecar_that_cannot_be_written_is_named(tmp_path, file):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / file.partition("/")[0]).write_text("")
    done = faults_job.run(tmp_path, "Path('results/toy.csv').touch()")
    assert done.stderr.startswith(f"gradleak: Cannot write results/{file}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_a_log_on_a_full_disk_ends_no_job(tmp_path):
    (tmp_path / "results/logs").mkdir(parents=True)
    (tmp_path / "results/logs/toy.log").symlink_to("/dev/full")
    done = faults_job.run(tmp_path, "log.info('x')\nlog.info('y')\nPath('results/toy.csv').touch()")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "results/provenance/toy.csv.json").exists()


def test_seconds_are_those_since_the_process_began_whatever_the_clock_says():
    age = "import time; time.sleep(0.5); from gradleak.runtime import job_records as records"
    age += "; time.time = lambda: 0.0; print(records.age())"
    start = time.monotonic()
    done = run(sys.executable, "-c", age, env=faults_job.ENVIRONMENT, check=True)
    # The start is known in ticks of 10 ms.
    assert 0.5 <= float(done.stdout) <= time.monotonic() - start + 0.02


def test_a_disk_that_cannot_lock_gets_its_file_all_the_same(tmp_path, monkeypatch):
    (tmp_path / ".toy.abcdefgh.csv").write_text("")
    monkeypatch.setattr(artifacts.fcntl, "flock", Mock(side_effect=OSError(95, "Not supported")))
    write_json(tmp_path / "toy.csv", {})
    # Whether somebody still writes the other one cannot be told.
    assert names(tmp_path) == [".toy.abcdefgh.csv", "toy.csv"]
