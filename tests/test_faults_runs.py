"""Runs that are killed, stopped, doubled, dated wrongly, short of disk or memory."""

import json
import os
import random
import re
import shutil
import signal
import stat
import time
from collections import namedtuple

import pandas as pd
import pytest

import faults
from conftest import ROOT, copy_tree, run
from gradleak.runtime import job_records

TARGET = faults.SCORE
HOURS = 3600.0


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return faults.calm(tmp_path_factory)


@pytest.fixture
def running(tmp_path, request):
    """A run whose first job has just begun; on a terminal if asked for.

    On one core, so that a signal to all meets no second job that is still starting.
    """
    arguments = ("--cores", "1", *faults.SMOKE, "--", TARGET)
    terminal = getattr(request, "param", False)
    started = faults.Running(copy_tree(tmp_path / "tree"), *arguments, terminal=terminal)
    assert started.next_job(), f"no job began:\n{started.text}"
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
def test_files_dated_by_a_wrong_clock_lose_nothing(tmp_path, calm, folder, hours):
    copy = shutil.copytree(calm, tmp_path / "tree")
    shift([path for path in made(copy) if str(path).startswith(str(copy / folder))], hours * HOURS)
    assert "Nothing to be done" in faults.makes(copy, TARGET)
    assert faults.artifacts(copy) == faults.artifacts(calm)


@pytest.mark.slow
def test_a_clock_that_is_set_back_during_a_run_loses_nothing(running, calm):
    """What was made before is dated five hours after what is made from it."""
    shift(made(running.folder), 5 * HOURS)
    assert running.wait() == 0, running.text
    sidecars = (running.folder / "results/provenance").rglob("*.json")
    seconds = [json.loads(path.read_text())["seconds"] for path in sidecars]
    assert seconds and all(0 < taken < 600 for taken in seconds)
    assert faults.artifacts(running.folder) == faults.artifacts(calm)
    faults.makes(running.folder, TARGET)
    assert faults.artifacts(running.folder) == faults.artifacts(calm)


UMASKS = [0o027, *(pytest.param(mask, marks=pytest.mark.slow) for mask in (0o022, 0o077))]


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_all_files_of_a_run_have_the_permissions_that_umask_gives(tree, umask):
    prefix = ("bash", "-c", f'umask {umask:04o}; exec "$@"', "bash")
    faults.makes(tree, TARGET, prefix=prefix)
    found = made(tree)
    kinds = {path.relative_to(tree).parts[1] for path in found}
    assert kinds >= {"logs", "benchmarks", "provenance", "scores", "models"}
    modes = {str(p): oct(stat.S_IMODE(p.stat().st_mode)) for p in found if p.is_file()}
    assert modes == dict.fromkeys(modes, oct(0o666 & ~umask))


@pytest.mark.slow
def test_a_job_that_the_kernel_kills_for_memory_is_made_again(tree, calm):
    """350 MiB are enough for Snakemake and not for torch."""
    with faults.memory_limit(350) as (prefix, group):
        if prefix is None:
            pytest.skip("needs a control group of its own, which root can make where it may mount")
        done = faults.run(tree, *faults.SMOKE, "--", TARGET, prefix=prefix)
        killed = faults.killed_for_memory(group)
    assert done.returncode == 1 and killed >= 1
    assert "died with <Signals.SIGKILL: 9>" in faults.words(done.stdout)
    assert faults.half_written(tree, faults.artifacts(calm)) == [] and not faults.locked(tree)
    faults.makes(tree, TARGET)
    assert faults.artifacts(tree) == faults.artifacts(calm)


mounts = pytest.mark.skipif(
    faults.namespace("true") is None,
    reason="needs mounts of its own: unshare -m as root, or user namespaces",
)
# The disk grows until all fits: full for Snakemake's own records, for arrays, for the last files.
SIZES = ("16k", "3m", "6300k")
FILL = f"""
cd "$1"; shift
mount -t tmpfs -o size=16k none "$PWD"; cd "$PWD"
for size in {" ".join(SIZES)} 64m; do
    mount -o remount,size=$size "$PWD"
    status=0; "$@" > ../$size.log 2>&1 || status=$?
    cp -a . ../$size
    echo "$size $status"
done
"""


def mounted(script, *arguments):
    done = run(*faults.namespace(script), *arguments, env=faults.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def from_source(source, target):
    return faults.command("--snakefile", source / "Snakefile", *faults.SMOKE, "--", target)


@pytest.mark.slow
@mounts
def test_a_full_disk_is_told_and_the_run_goes_on_after_space_is_freed(tmp_path, calm):
    work = tmp_path / "work"
    work.mkdir()
    told = mounted(FILL, work, *from_source(ROOT, TARGET)).split()
    reference = faults.artifacts(calm)
    assert told == [*(word for size in SIZES for word in (size, "1")), "64m", "0"]
    for size in SIZES:
        assert "No space left on device" in (tmp_path / f"{size}.log").read_text()
        assert faults.half_written(tmp_path / size, reference) == []
        assert faults.temporaries(tmp_path / size / "results") == []
    said = faults.words((tmp_path / "3m.log").read_text())
    assert re.search(r"gradleak: Cannot write data/photos10-train\.safetensors: .*; free spa", said)
    assert faults.artifacts(tmp_path / "64m") == reference


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
    mounted(READ_ONLY, source, work, *from_source(source, TARGET))
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
    ("results", "results is not a folder that you may write to"),
    (".", "may not be written to; run Snakemake in a folder of your own, with --snakefile"),
    # Snakemake's own words, before the job begins; a data folder that holds all may be read-only.
    ("data", "Read-only file system: 'data/photos10-train.safetensors'"),
]


@mounts
@pytest.mark.parametrize(("folder", "sentence"), UNWRITABLE_FOLDERS, ids=["results", "all", "data"])
def test_a_folder_that_may_not_be_written_is_named(tmp_path, folder, sentence):
    source, work = copy_tree(tmp_path / "source"), tmp_path / "work"
    target = "data/photos10-train.safetensors"
    command = ["bash", "-c", '"$@" 2>&1', "bash", *from_source(source, target)]
    said = mounted(UNWRITABLE, work, folder, *command)
    assert said.endswith("status 1\n")
    assert sentence in faults.words(said)


SEED = 20_240_607
# One kill: at which job, of whom, after how many seconds of it, and what it left.
Kill = namedtuple("Kill", "at whom moment running locked orphans outlived temporaries half_written")


def undisturbed(folder, targets):
    """Bytes of a run that nothing disturbs, and the longest seconds of a job by its script."""
    faults.makes(copy_tree(folder), *targets)
    jobs = pd.DataFrame(job_records.jobs(folder / job_records.FOLDER))
    return faults.artifacts(folder), jobs.groupby("script").seconds.max().to_dict()


def kill(running, whom, script, longest, generator):
    """Kill Snakemake, or a job of that script, while one runs; what ran then, None if none did."""
    while process := running.next_job(script):
        pause = generator.uniform(0, longest)
        time.sleep(pause)
        if faults.alive(process):
            jobs = running.jobs()
            if whom == "snakemake":
                running.signal(signal.SIGKILL)
            else:
                process.kill()
            running.wait()
            return pause, " ".join(sorted(jobs.values()))
    return None


def disturb(folder, targets, calm, number, seed):
    """Kill `number` runs one after the other, each resumed from what the one before it left.

    The kind of job is drawn first, so that rare ones are hit as well. Where none of that kind is
    left the run goes on to its end, and the next begins with nothing.
    """
    reference, longest = calm
    generator, kills, runs, order = random.Random(seed), [], 0, []
    while len(order) < number:  # all of them before any comes again
        order += generator.sample(sorted(longest), len(longest))
    copy_tree(folder)
    while len(kills) < number:
        whom, script = ("snakemake", "job")[len(kills) % 2], order[len(kills)]
        faults.unlock(folder, *targets)
        running = faults.Running(folder, *faults.SMOKE, "--", *targets)
        try:
            found = kill(running, whom, script, longest[script], generator)
            orphans, outlived = running.end()
        finally:
            running.stop()
        half = faults.half_written(folder, reference)
        assert half == [], f"after the kill of {whom} at {script}: {half}"
        if running.process.returncode == 0:
            # None of that kind was left, or it had made all that it makes before the signal.
            assert faults.artifacts(folder) == reference
            for name in ("results", "figures", "data", ".snakemake"):
                shutil.rmtree(folder / name, ignore_errors=True)
            runs += 1
            assert runs <= 2 * number, f"no job of {script} was met"
            continue
        assert found is not None, running.text
        if whom == "job":
            assert running.process.returncode == 1
            assert "SIGKILL" in running.text, running.text
        left = len(faults.temporaries(folder / "results"))
        what = faults.locked(folder), orphans, outlived, left, len(half)
        kills.append(Kill(script, whom, *found, *what))
    return kills, runs


def told(kills, runs, seed):
    frame = pd.DataFrame(kills)
    summary = {
        "seed": seed,
        "runs that ended undisturbed": runs,
        "kills": len(frame),
        "of Snakemake": int((frame.whom == "snakemake").sum()),
        "jobs they met": frame["at"].value_counts().to_dict(),
        "locks left": int(frame.locked.sum()),
        "jobs that outlived Snakemake": int(frame.orphans[frame.whom == "snakemake"].sum()),
        "for at most, s": round(float(frame.outlived.max()), 1),
        "temporary files left": int(frame.temporaries.sum()),
        "files half-written": int(frame.half_written.sum()),
    }
    print(frame.round(1).to_string(), *(f"{k}: {v}" for k, v in summary.items()), sep="\n")
    return summary


@pytest.mark.parametrize(
    ("number", "targets"),
    [
        pytest.param(2, (faults.SCORE,), id="2"),
        pytest.param(20, (faults.FIGURE, faults.TRAINING), id="20", marks=pytest.mark.slow),
    ],
)
def test_kills_at_random_moments_lose_nothing(tmp_path, record_property, number, targets):
    calm = undisturbed(tmp_path / "calm", targets)
    reference, folder = calm[0], tmp_path / "disturbed"
    kills, runs = disturb(folder, targets, calm, number, SEED)
    record_property("kills", told(kills, runs, SEED))
    if number >= len(calm[1]):
        assert {kill.at for kill in kills} == set(calm[1])
    faults.unlock(folder, *targets)
    faults.makes(folder, *targets)
    assert faults.artifacts(folder) == reference
    assert faults.temporaries(folder / "results") == []
    again = faults.run(folder, *faults.SMOKE, "--", *targets)
    assert "Nothing to be done" in again.stdout
