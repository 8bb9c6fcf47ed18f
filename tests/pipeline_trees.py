"""Trees in which targets were made once, copies of them, workflows of some rules; what reruns."""

import copy
import os
import re
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import yaml

from conftest import ROOT, copy_tree, run
from gradleak.config import yaml_checks

SMOKE = ("--config", "scale=smoke")


@contextmanager
def made(folder, *targets):
    """A tree in which targets were made at smoke scale, removed at the end; all without any."""
    copy_tree(folder)
    done = run(sys.executable, "-m", "snakemake", *SMOKE, "--", *targets, cwd=folder)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder
    finally:
        shutil.rmtree(folder)


def need_room(folder):
    """Fail in one line where the whole pipeline at smoke scale, 5 GB, has no room."""
    sizes = pd.read_csv(ROOT / "docs/results/pipeline/disk.csv")
    # A tenth more for data, figures and records.
    needed = 1.1 * sizes.megabytes[sizes.scale == "smoke"].sum() / 1e3
    free = shutil.disk_usage(folder).free / 1e9
    if free < needed:
        pytest.fail(f"{folder}: {free:.1f} of {needed:.1f} GB are free; set TMPDIR elsewhere")


def copied(built, folder):
    return Path(shutil.copytree(built, folder, copy_function=_copied))


def _copied(source, target):
    """Copy a file; arrays, of which there are many, are linked, as jobs replace them whole."""
    if source.endswith(".safetensors"):
        os.link(source, target)
        return target
    return shutil.copy2(source, target)


def scheduled(snakemake, folder, *arguments):
    """Jobs that a dry run would start, as (rule, wildcards) pairs."""
    done = snakemake(folder, "-n", "--verbose", *arguments)
    text = done.stdout + done.stderr
    found = []
    for block in re.split(r"\n(?=(?:local)?rule )", text):
        if name := re.match(r"\s*(?:local)?rule (\w+):", block):
            wildcards = re.search(r"wildcards: (.*)", block)
            found.append((name[1], wildcards[1] if wildcards else ""))
    return found


def jobs_of(text):
    """Number of jobs of each rule, from the table that a dry run prints."""
    return {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE)}


def rule_blocks():
    """Name and text of each rule of the pipeline, as it is written."""
    for path in (ROOT / "workflow/rules").glob("*.smk"):
        for block in re.split(r"(?m)^(?=(?:use )?rule )", path.read_text())[1:]:
            yield re.match(r"(?:use rule \w+ as |rule )(\w+)", block)[1], block


def build(folder, rules, settings, more=""):
    """Make a workflow of the files `rules` alone, with `settings` as config.yaml."""
    copy_tree(folder, ("src", "workflow"))
    (folder / "envs").mkdir(exist_ok=True)
    (folder / "envs/gradleak.yaml").write_text("dependencies: []\n")
    names = ("config_file", "common", *rules)
    included = "".join(f'include: "workflow/rules/{name}.smk"\n' for name in names)
    (folder / "Snakefile").write_text(f'configfile: "config.yaml"\n{included}{more}')
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))


ABOUT_THE_RUN = ("logs", "benchmarks", "provenance")  # what tells of the run, not of the result


def result_paths(folder):
    """Every file that equal inputs must make equal, by its path in the tree."""
    found = {}
    for top in ("results", "figures", "data"):
        for path in (folder / top).rglob("*"):
            parts = path.relative_to(folder).parts
            if path.is_file() and parts[1] not in ABOUT_THE_RUN and ".seconds." not in path.name:
                found["/".join(parts)] = path
    return found


def results_of(folder):
    return {name: path.read_bytes() for name, path in result_paths(folder).items()}


# Another home, time zone, language, hash seed and number of cores, as on somebody else's account.
ELSEWHERE = {"TZ": "Asia/Tokyo", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "7"}


def assert_same_bytes(built, fresh, snakemake, targets, monkeypatch):
    """Make targets again as somebody else would; returns names of what was made there."""
    for key, value in (ELSEWHERE | {"HOME": str(fresh.parent)}).items():
        monkeypatch.setenv(key, value)
    snakemake(copy_tree(fresh), "--cores", 1, *SMOKE, "--", *targets)
    expected, found = results_of(built), results_of(fresh)
    kinds = {Path(name).suffix for name in found}
    assert {".safetensors", ".csv", ".pdf", ".png"} <= kinds
    assert [name for name, content in found.items() if content != expected.get(name)] == []
    return found.keys()


def whole(path=ROOT / "config.yaml"):
    return yaml_checks.with_included(yaml_checks.read(path))[0]


def changed(settings, path, value):
    """A copy of settings with another value at a path such as ``models.net.layers.0.conv``."""
    raw = copy.deepcopy(settings)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = raw
    for part in parents:
        place = place[part]
    place[last] = value
    return raw
