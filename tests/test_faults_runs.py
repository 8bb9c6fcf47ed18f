"""Runs that are stopped, doubled, or dated wrongly; the permissions of what a run makes."""

import json
import os
import shutil
import signal
import stat

import pytest

import faults
from conftest import copy_tree

TARGET = faults.SCORE
HOURS = 3600.0


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return faults.calm(tmp_path_factory)


@pytest.fixture
def copy(calm, tmp_path):
    return shutil.copytree(calm, tmp_path / "tree")


@pytest.fixture
def running(tmp_path, request):
    """A run whose first job has just begun; on a terminal if asked for.

    On one core, so that a signal to all meets no second job that is still starting.
    """
    arguments = ("--cores", "1", *faults.SMOKE, "--", TARGET)
    terminal = getattr(request, "param", False)
    started = faults.Running(copy_tree(tmp_path / "tree"), *arguments, terminal=terminal)
    started.wait_for_job()
    yield started
    started.stop()


def goes_on(running, calm):
    """Nothing half-written and no lock is left, and the same command makes the same bytes."""
    running.end()
    folder, reference = running.folder, faults.artifacts(calm)
    assert faults.half_written(folder, reference) == []
    assert faults.temporaries(folder / "results") == []
    assert not faults.locked(folder)
    faults.makes(folder, TARGET)
    assert faults.artifacts(folder) == reference


@pytest.mark.slow
def test_sigterm_lets_running_jobs_finish(running, calm):
    running.signal(signal.SIGTERM)
    assert running.wait() == 1
    assert "Will exit after finishing currently running jobs" in running.text
    goes_on(running, calm)


# Ctrl-C and a hangup reach the whole group, jobs too.
STOPS = [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]


@pytest.mark.parametrize("number", STOPS, ids=["Ctrl-C", "hangup"])
def test_a_stopped_run_goes_on_without_unlocking(running, calm, number):
    running.wait_for_import()
    running.signal(number, group=True)
    assert running.wait() == 1, running.text
    assert f"gradleak: Stopped by {number.name}; no half-written file is left" in running.text
    assert "Traceback" not in running.text and "KeyboardInterrupt" not in running.text
    goes_on(running, calm)


@pytest.mark.parametrize("running", [True], indirect=True, ids=["terminal"])
def test_a_closed_terminal_leaves_no_lock(running, calm):
    """The kernel itself sends the hangup, and nobody reads what is said then."""
    running.wait_for_import()
    running.close_terminal()
    # 120 is Python's own where its last words cannot be written either.
    assert running.wait() in (1, 120)
    goes_on(running, calm)


def test_a_second_run_at_the_same_time_is_refused_and_the_first_undisturbed(running, calm):
    # Held, so that it cannot end before the second has begun.
    running.signal(signal.SIGSTOP)
    second = faults.run(running.folder, *faults.SMOKE, "--", TARGET)
    running.signal(signal.SIGCONT)
    assert second.returncode == 1
    said = faults.words(second.stdout)
    assert "make sure that no other Snakemake process is trying to create the same files" in said
    assert "It can be removed with the --unlock argument" in said
    assert running.wait() == 0, running.text
    assert faults.artifacts(running.folder) == faults.artifacts(calm)


def made(folder):
    return [path for top in ("results", "data") for path in (folder / top).rglob("*.*")]


def shift(paths, seconds):
    for path in paths:
        if path.is_file():
            found = path.stat()
            os.utime(path, (found.st_atime + seconds, found.st_mtime + seconds))


# Which files are dated wrongly, and by how many hours. Snakemake compares checksums of inputs up to
# 1 MB, and scripts count by what they do.
MORE = ("", -24), ("results/models", 5), ("results/scores", -5)
DATED = [("", 24), *(pytest.param(*dated, marks=pytest.mark.slow) for dated in MORE)]


@pytest.mark.parametrize(("folder", "hours"), DATED)
def test_files_dated_by_a_wrong_clock_lose_nothing(copy, calm, folder, hours):
    shift([path for path in made(copy) if str(path).startswith(str(copy / folder))], hours * HOURS)
    assert "Nothing to be done" in faults.makes(copy, TARGET)
    assert faults.artifacts(copy) == faults.artifacts(calm)


@pytest.mark.slow
def test_a_clock_that_is_set_back_during_a_run_loses_nothing(running, calm):
    """What was made before is dated five hours after what is made from it."""
    shift(made(running.folder), 5 * HOURS)
    assert running.wait() == 0, running.text
    folder = running.folder
    assert faults.artifacts(folder) == faults.artifacts(calm)
    sidecars = (folder / "results/provenance").rglob("*.json")
    seconds = [json.loads(path.read_text())["seconds"] for path in sidecars]
    assert seconds and all(0 < taken < 600 for taken in seconds)
    faults.makes(folder, TARGET)
    assert faults.artifacts(folder) == faults.artifacts(calm)


UMASKS = [0o027, *(pytest.param(mask, marks=pytest.mark.slow) for mask in (0o022, 0o077))]


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_all_files_of_a_run_have_the_permissions_that_umask_gives(tmp_path, umask):
    folder = copy_tree(tmp_path / "tree")
    prefix = ("bash", "-c", f'umask {umask:04o}; exec "$@"', "bash")
    faults.makes(folder, TARGET, prefix=prefix)
    found = made(folder)
    kinds = {path.relative_to(folder).parts[1] for path in found}
    assert kinds >= {"logs", "benchmarks", "provenance", "scores", "models"}
    modes = {str(p): oct(stat.S_IMODE(p.stat().st_mode)) for p in found if p.is_file()}
    assert modes == dict.fromkeys(modes, oct(0o666 & ~umask))


@pytest.mark.slow
def test_a_job_that_the_kernel_kills_for_memory_is_made_again(tmp_path, calm):
    """350 MiB are enough for Snakemake and not for torch."""
    folder = copy_tree(tmp_path / "tree")
    with faults.memory_limit(350) as (prefix, group):
        if prefix is None:
            pytest.skip("needs a control group of its own, which root can make where it may mount")
        done = faults.run(folder, *faults.SMOKE, "--", TARGET, prefix=prefix)
        killed = faults.killed_for_memory(group)
    assert done.returncode == 1 and killed >= 1
    assert "died with <Signals.SIGKILL: 9>" in faults.words(done.stdout)
    assert faults.half_written(folder, faults.artifacts(calm)) == []
    assert not faults.locked(folder)
    faults.makes(folder, TARGET)
    assert faults.artifacts(folder) == faults.artifacts(calm)
