"""The pipeline as a whole, measured in copies of its tree; no time is asserted."""

import pytest

from benchmarks import pipeline, threads
from gradleak.config import loader as gradleak_config
from gradleak.errors import ArtifactError
from settings_files import whole

TOY = """
configfile: "config.yaml"

rule all:
    input: expand("results/{n}.csv", n=range(config["amount"]))

rule amount:
    output: "out.txt"
    run:
        assert config["amount"] == 7
        open(output[0], "w").write("done")

rule one:
    output: "results/{n}.csv"
    threads: 1
    script: "workflow/job.py"
"""
SCRIPT = """
import time
from pathlib import Path
from gradleak.runtime.job import job

with job(snakemake):
    while time.process_time() < 1:
        pass
    Path(snakemake.output[0]).write_text("done")
"""


@pytest.fixture
def toy(tmp_path):
    (tmp_path / "Snakefile").write_text(TOY)
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/job.py").write_text(SCRIPT)
    (tmp_path / "config.yaml").write_text("amount: 1\nscale: laptop\nimages: embedded\n")
    return tmp_path


def test_wall_time_runs_in_a_copy_with_the_settings_of_this_run(toy):
    before = sorted(path.name for path in toy.iterdir())
    found = pipeline.wall_time("out.txt", {"amount": 7}, 1, toy)
    assert found["what"] == "pipeline out.txt"
    assert found["ours_s"] > 0 < found["reference_s"]
    assert sorted(path.name for path in toy.iterdir()) == before
    with pytest.raises(ArtifactError, match=r"could not make nothing\.txt"):
        pipeline.wall_time("nothing.txt", {}, 1, toy)


@pytest.mark.slow
def test_overhead_counts_the_jobs_of_each_run(toy):
    over = {"amount": 3, "scale": "smoke"}
    first, second = pipeline.overhead_rows("all", over, toy)
    assert first["what"] == "pipeline all, smoke"
    assert first["note"].startswith("3 jobs from empty results on 2 cores")
    # Three jobs of a second each, imports included, on two cores.
    assert 1.3 < first["reference_s"] < 20
    assert first["ratio"] == first["reference_s"] / first["ours_s"]
    assert second["what"] == "pipeline all, smoke, cores"
    assert second["ours_s"] == first["ours_s"]


@pytest.mark.slow
def test_a_job_is_made_on_one_thread_and_on_two(toy):
    [row] = threads.compare({"amount": 1}, ["results/0.csv"], toy)
    assert (row["artifact"], row["script"], row["declared"]) == ("results/0.csv", "job", 1)
    assert row["gain"] == row["seconds_1"] / row["seconds_2"]
    assert row["fastest"] == (2 if row["gain"] >= threads.WORTH else 1)
    with pytest.raises(ArtifactError, match=r"could not make results/none\.txt"):
        threads.compare({}, ["results/none.txt"], toy)


def test_few_images_and_steps_make_a_config_that_is_accepted():
    config = gradleak_config.load(whole())
    plain = config.model_dump(mode="json", exclude_unset=True)
    few = gradleak_config.load(whole() | threads.shortened(plain))
    assert max(e.seeds for e in few.experiments.values()) == 1
    counts = [t.count for t in few.targets.values() if t.count is not None]
    assert max(counts) == threads.FEW["count"]
    assert few.attacks["dlg"].iterations == threads.FEW["iterations"]
    assert few.models == config.models
