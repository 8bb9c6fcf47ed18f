"""SIGKILL at random moments, then the documented resume: nothing half-written, the same bytes."""

import random
import shutil
import signal
import time
from dataclasses import asdict, dataclass

import pandas as pd
import pytest

import faults
from conftest import copy_tree

SEED = 20_240_607


@dataclass
class Kill:
    """One kill: whom, after how many seconds of the run, and what it left."""

    whom: str
    moment: float
    running: str
    locked: bool
    orphans: int
    outlived: float
    temporaries: int
    half_written: int


def undisturbed(folder, targets):
    """Bytes of a run that nothing disturbs, its jobs, and seconds from one start to the next."""
    running = faults.Running(copy_tree(folder), *faults.SMOKE, "--", *targets)
    try:
        running.wait_for_job()
        start = time.monotonic()
        assert running.wait() == 0, running.text
    finally:
        running.stop()
    return faults.artifacts(folder), running.planned, (time.monotonic() - start) / running.planned


def start_anew(folder):
    for name in ("results", "figures", "data", ".snakemake"):
        shutil.rmtree(folder / name, ignore_errors=True)


def kill(running, whom, generator, pause):
    """Kill Snakemake or one of its jobs at a random moment; what ran then, None if nothing did.

    The moment is that at which a job begins, drawn from all that are to be done, and a pause.
    """
    running.wait_until(generator.randint(1, running.planned))
    time.sleep(generator.uniform(0, pause))
    while running.process.poll() is None:
        jobs = running.jobs()
        if whom == "snakemake":
            running.signal(signal.SIGKILL)
            running.wait()
            return " ".join(sorted(jobs.values()))
        if jobs:
            process = generator.choice(sorted(jobs, key=lambda job: job.pid))
            process.kill()
            running.wait()
            return jobs[process]
        time.sleep(0.02)
    return None


def disturb(folder, targets, calm, number, seed):
    """Kill `number` runs one after the other, each resumed from what the one before it left.

    A run with less than a fifth of all jobs left goes on to its end, and the next begins with
    nothing, so that kills are not all among the last jobs.
    """
    reference, total, pause = calm
    generator, kills, runs = random.Random(seed), [], 0
    copy_tree(folder)
    while len(kills) < number:
        whom = ("snakemake", "job")[len(kills) % 2]
        faults.unlock(folder, *targets)
        running = faults.Running(folder, *faults.SMOKE, "--", *targets)
        start = time.monotonic()
        try:
            running.wait_until(1)
            few = running.planned < max(1, total // 5)
            found = running.wait() if few else kill(running, whom, generator, pause)
            moment = time.monotonic() - start
            orphans, outlived = running.end()
        finally:
            running.stop()
        half = faults.half_written(folder, reference)
        assert half == [], f"after {moment:.1f} s of {whom}: {half}"
        if running.process.returncode == 0:
            # Few jobs were left, or the last one had made all that it makes before the signal.
            assert faults.artifacts(folder) == reference
            start_anew(folder)
            runs += 1
            continue
        if whom == "job":
            assert running.process.returncode == 1
            assert "SIGKILL" in running.text, running.text
        locked = any((folder / ".snakemake/locks").glob("*"))
        left = len(faults.temporaries(folder / "results"))
        kills.append(Kill(whom, moment, found, locked, orphans, outlived, left, len(half)))
    return kills, runs


def told(kills, runs, seed):
    """The figures, as docs/faults.md quotes them."""
    frame = pd.DataFrame([asdict(kill) for kill in kills])
    by_rule = frame.running.str.split().explode().value_counts().to_dict()
    summary = {
        "seed": seed,
        "runs that ended undisturbed": runs,
        "kills": len(frame),
        "of Snakemake": int((frame.whom == "snakemake").sum()),
        "jobs that ran then": by_rule,
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
        pytest.param(3, (faults.SCORE,), id="3"),
        pytest.param(20, (faults.FIGURE, faults.TRAINING), id="20", marks=pytest.mark.slow),
    ],
)
def test_kills_at_random_moments_lose_nothing(tmp_path, record_property, number, targets):
    calm = undisturbed(tmp_path / "calm", targets)
    reference, folder = calm[0], tmp_path / "disturbed"
    kills, runs = disturb(folder, targets, calm, number, SEED)
    record_property("kills", told(kills, runs, SEED))
    faults.resume(folder, *targets)
    assert faults.artifacts(folder) == reference
    assert faults.temporaries(folder / "results") == []
    again = faults.run(folder, *faults.SMOKE, "--", *targets)
    assert "Nothing to be done" in again.stdout
