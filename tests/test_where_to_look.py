"""The last lines of a run, which say where to look."""

import os

import pytest

from conftest import PACKAGES

TOY = f"""
import sys
from pathlib import Path

sys.path[:0] = {list(PACKAGES)!r}
from gradleak.pipeline.run_output import ending

FIGURES = ["figures/one.pdf", "figures/two.pdf"]
TABLES = ["results/tables/one.csv"]


rule all:
    default_target: True
    input:
        FIGURES, TABLES, "results/claims.csv",


rule claims:
    input:
        "results/claims.csv",


rule page:
    input:
        rules.all.input,
    output:
        "results/report.html",
    shell:
        "touch {{output}}"


rule one:
    output:
        "{{path}}.{{kind,pdf|csv}}",
    shell:
        "touch {{output}}"


onsuccess:
    if workflow.is_main_process:
        ending.tell_at_the_end(workflow, FIGURES, TABLES)
"""
FILES = "results/claims.csv, figures/ (2 of 2 figures)"
SHOWN = ("results/claims.csv", "figures/one.pdf", "figures/two.pdf", "results/tables/one.csv")
ALONE = f"Look at {FILES}. `snakemake results/report.html` puts them on one page."
WITH_PAGE = f"Look at results/report.html, {FILES}."


@pytest.fixture
def toy(tmp_path, snakemake):
    """Run a workflow of a few empty files that ends as ours; returns what it says."""
    (tmp_path / "Snakefile").write_text(TOY)

    def run(*arguments, check=True):
        return snakemake(tmp_path, "--cores", "1", *arguments, check=check).stderr.splitlines()

    return run


def test_all_ends_with_the_line(toy):
    assert not any("Look at" in line for line in toy("--dry-run"))
    said = toy("--", "all")
    assert said[-1] == ALONE
    assert any(line.startswith("Complete log") for line in said[:-1])
    assert sum("Look at" in line for line in said) == 1
    # Snakemake has no handler for this; where its lines are ours, test_run_output.py has it.
    assert not any("Look at" in line for line in toy())


def test_of_another_target_its_path_is_said_and_nothing_after_a_failure(toy, tmp_path):
    assert toy("--", "figures/one.pdf")[-1] == "figures/one.pdf"
    assert toy("--", "figures/two.pdf", "claims")[-2:] == ["figures/two.pdf", "results/claims.csv"]
    (tmp_path / "results/claims.csv").unlink()
    (tmp_path / "results").rmdir()
    (tmp_path / "results").write_text("a file where a folder has to be")
    said = toy("--", "claims", check=False)
    assert not any("Look at" in line or line == "results/claims.csv" for line in said)


@pytest.mark.slow
def test_the_page_is_named_unless_it_is_older_than_what_it_shows(toy, tmp_path):
    assert toy("--", "results/report.html")[-1] == WITH_PAGE

    def last(newest):
        """After a run of `all` that made `newest` last."""
        for path in SHOWN:
            os.utime(tmp_path / path, (100, 100))
        os.utime(tmp_path / "results/report.html", (200, 200))
        os.utime(tmp_path / newest, (300, 300))
        return toy("--forcerun", "all", "--", "all")[-1]

    assert last("results/report.html") == WITH_PAGE
    for newest in SHOWN:
        assert last(newest) == ALONE, newest


def test_the_pipeline_s_own_all_ends_with_the_line(tree, snakemake):
    """Its figures and tables by name, of which one job makes one."""
    (tree / "results").mkdir()
    (tree / "results/claims.csv").touch()
    begin = ("--cores", "1", "--config", "scale=smoke", "--until")
    done = snakemake(tree, *begin, "results/tables/mkor_unique_samples.csv", "--", "all")
    assert (tree / "results/tables/mkor_unique_samples.csv").exists()
    assert done.stderr.splitlines()[-1] == ALONE.replace(FILES, "results/claims.csv")
