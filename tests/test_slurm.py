"""The pipeline on a real scheduler: Slurm on this machine, asked what it ran.

`make test-slurm` installs Slurm where it may and runs these tests; they take minutes.
"""

import os
import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import faults
from conftest import ROOT, copy_tree
from pipeline_trees import results_of
from slurm.cluster import Cluster, reason_to_skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(reason_to_skip() is not None, reason=f"Slurm {reason_to_skip()}"),
]
SMOKE = ("--config", "scale=smoke", "--")
TRAINING = "results/training/embedded-smoke/fedkl_central_mnist/fedkl_trained_lenet"
# All of COPA, and a training.
TARGETS = (
    *(f"figures/copa_{name}.pdf" for name in ("fig1", "fig2", "index")),
    *(f"results/tables/copa_{name}.csv" for name in ("table1", "table2", "index", "images")),
    f"{TRAINING}.safetensors",
)
SEARCH = "results/reconstructions/embedded-smoke/rgap_cnn6/rgap_cnn6s/none/gauss_newton.safetensors"
# The node has no database of jobs, so squeue is asked; jobs take seconds, so it is asked early.
PLUGIN = (
    *("--slurm-status-command=squeue", "--slurm-init-seconds-before-status-checks=4"),
    *("--default-resources", "slurm_partition=main"),
)
RESULTS = {".safetensors", ".csv", ".pdf", ".png"}


def locally(folder, *arguments):
    done = faults.run(folder, *arguments)
    assert done.returncode == 0, done.stdout
    return done.stdout


def submitted(cluster, folder, profile, *arguments):
    command = faults.command("--workflow-profile", profile, *arguments)
    done = cluster.run(*command, cwd=folder, env=faults.environment())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{cluster.logs()}"


def results(folder):
    return {name: it for name, it in results_of(folder).items() if Path(name).suffix in RESULTS}


def planned(folder, *targets):
    """(rule and wildcards, cores, MB, minutes) of each job, as a dry run on this machine tells."""
    out = locally(folder, "--dry-run", "--verbose", "--forceall", "--cores", "2", *SMOKE, *targets)
    jobs = []
    for block in re.split(r"\n(?=(?:local)?rule \w+:)", out.partition("Job stats")[2])[1:]:
        told = dict(re.findall(r"^ {4}(\w+): (.*)$", block, re.MULTILINE))
        resources = dict(part.split("=", 1) for part in told["resources"].split(", "))
        parts = filter(None, told.get("wildcards", "").split(", "))
        wildcards = [part.split("=", 1)[1] for part in parts]
        name = re.match(r"(?:local)?rule (\w+)", block)[1]
        comment = f"rule_{name}" + (f"_wildcards_{'_'.join(wildcards)}" if wildcards else "")
        asked = int(told.get("threads", 1)), int(resources["mem_mb"]), int(resources["runtime"])
        jobs.append((comment, *asked))
    return jobs


def short(job):
    return {key: job[key] for key in ("job_id", "comment", "job_state", "time_limit")}


@pytest.fixture(scope="module")
def cluster():
    # A core more than there are: one job of these tests does nothing but sleep.
    with Cluster((os.cpu_count() or 1) + 1) as running:
        yield running


@pytest.fixture(scope="module")
def killed(cluster, tmp_path_factory):
    """A run of killed.smk, beside the others, for it waits most of the time."""
    folder = tmp_path_factory.mktemp("killed")
    arguments = ("--snakefile", ROOT / "tests/slurm/killed.smk", *PLUGIN)
    with ThreadPoolExecutor() as pool:
        done = pool.submit(submitted, cluster, folder, ROOT / "profiles/slurm", *arguments)
        yield lambda: done.result() or folder


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = copy_tree(tmp_path_factory.mktemp("here"))
    locally(folder, "--cores", "2", *SMOKE, *TARGETS)
    return folder


@pytest.fixture(scope="module")
def there(cluster, killed, tmp_path_factory):
    folder = copy_tree(tmp_path_factory.mktemp("there"))
    submitted(cluster, folder, "profiles/slurm", *PLUGIN, *SMOKE, *TARGETS)
    return folder


def test_slurm_ran_every_job_with_what_it_asked_for(cluster, there):
    plan, jobs = planned(there, *TARGETS), cluster.jobs(there)
    asked = ("comment", "cpus", "memory_per_node", "time_limit")
    assert Counter(tuple(job[key] for key in asked) for job in jobs) == Counter(plan)
    assert len(plan) > 150
    assert any(comment.startswith("rule_train_") for comment, *_ in plan)
    records = cluster.completed()
    for job in jobs:
        record = records[job["job_id"]]
        assert record["JobState"] == job["job_state"] == "COMPLETED", short(job)
        assert record["NodeList"] == "localhost" and record["ExitCode"] == "0:0", record
        assert not job["tres_per_job"] and not job["tres_per_node"], "a CPU job asks for a GPU"


def test_results_are_those_of_a_local_run(here, there):
    expected, found = results(here), results(there)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert {Path(name).suffix for name in expected} == RESULTS


def attempts(cluster, folder, rule):
    jobs = [job for job in cluster.jobs(folder) if job["comment"] == f"rule_{rule}"]
    return sorted(jobs, key=lambda job: job["job_id"])


@pytest.mark.parametrize(
    ("rule", "key", "asked"), [("late", "time_limit", 1), ("large", "memory_per_node", 600)]
)
def test_a_job_out_of_time_or_memory_comes_back_with_twice_as_much(
    cluster, killed, rule, key, asked
):
    folder = killed()
    first, second = attempts(cluster, folder, rule)
    assert first["job_state"] != "COMPLETED" == second["job_state"], (short(first), short(second))
    assert (first["job_state"] == "TIMEOUT") == (rule == "late"), short(first)
    assert (first[key], second[key]) == (asked, 2 * asked)
    assert (folder / f"{rule}.txt").read_text().strip() == "2"
    record = cluster.completed()[first["job_id"]]
    assert (record["JobState"] == "TIMEOUT") == (rule == "late")


def test_a_job_of_the_pipeline_comes_back_with_more_memory(cluster, here, tmp_path):
    """A table of measured jobs that says too little costs an attempt, not the run."""
    folder = copy_tree(tmp_path)
    table = folder / "workflow" / "resources.csv"
    pattern = re.compile(r"^(attack,gauss_newton small,smoke,\d+),[^,]*", re.M)
    lines, count = pattern.subn(r"\1,1", table.read_text())
    assert count == 1
    table.write_text(lines)
    submitted(cluster, folder, "profiles/slurm", *PLUGIN, *SMOKE, SEARCH)
    locally(here, "--cores", "2", *SMOKE, SEARCH)
    assert (folder / SEARCH).read_bytes() == (here / SEARCH).read_bytes()
    jobs = [job for job in cluster.jobs(folder) if job["comment"].endswith("_gauss_newton")]
    *killed, last = sorted(jobs, key=lambda job: job["job_id"])
    assert killed and all(job["job_state"] not in ("COMPLETED", "TIMEOUT") for job in killed)
    assert last["job_state"] == "COMPLETED", short(last)
    asked_for = [job["memory_per_node"] for job in (*killed, last)]
    assert asked_for == [600 * 2**attempt for attempt in range(len(asked_for))]


def test_a_job_that_asks_for_a_gpu_gets_one(cluster, killed):
    folder = killed()
    (job,) = attempts(cluster, folder, "gpu")
    assert job["job_state"] == "COMPLETED" and job["tres_per_job"] == "gres:gpu:1", short(job)
    assert (folder / "gpu.txt").read_text().strip() == "0"


def test_any_batch_system_by_its_own_commands(cluster, here, tmp_path):
    target = "results/tables/copa_table1.csv"
    folder = copy_tree(tmp_path)
    for top in ("data", "results/targets", "results/models"):
        shutil.copytree(here / top, folder / top)
    quiet = "--rerun-triggers", "mtime"
    checks = "--seconds-between-status-checks", "3"
    submitted(cluster, folder, "profiles/generic", *quiet, *checks, *SMOKE, target)
    locally(here, "--cores", "2", *SMOKE, target)
    assert (folder / target).read_bytes() == (here / target).read_bytes()
    jobs, records = cluster.jobs(folder), cluster.completed()
    assert jobs and {records[job["job_id"]]["JobState"] for job in jobs} == {"COMPLETED"}
    plan = {comment.partition("_wildcards")[0]: rest for comment, *rest in planned(here, target)}
    for job in jobs:
        told = [job["cpus"], job["memory_per_node"], job["time_limit"]]
        assert told == plan[f"rule_{job['name']}"], short(job)
