"""SIGKILL at random moments, then the documented resume: nothing half-written, the same bytes."""

import random
import shutil
import signal
import time
from collections import namedtuple

import pandas as pd
import pytest

import faults
from conftest import copy_tree
from gradleak.runtime import job_records

SEED = 20_240_607
# One kill: at which job, of whom, after how many seconds of it, and what it left.
Kill = namedtuple("Kill", "at whom moment running locked orphans outlived temporaries half_written")


def undisturbed(folder, targets):
    """Bytes of a run that nothing disturbs, and the longest seconds of a job by its script."""
    running = faults.Running(copy_tree(folder), *faults.SMOKE, "--", *targets)
    try:
        assert running.wait() == 0, running.text
    finally:
        running.stop()
    jobs = pd.DataFrame(job_records.jobs(folder / job_records.FOLDER))
    return faults.artifacts(folder), jobs.groupby("script").seconds.max().to_dict()


def in_turn(scripts, number, generator):
    """A script for each kill, all of them before any comes again."""
    turns = range(-(-number // len(scripts)))
    order = [one for _ in turns for one in generator.sample(sorted(scripts), len(scripts))]
    return order[:number]


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
    generator, kills, runs = random.Random(seed), [], 0
    order = in_turn(longest, number, generator)
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
