"""Shared fixtures: small networks, a copy of the tree to run the pipeline in."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TREE = ("Snakefile", "config.yaml", "workflow", "profiles", "envs")


@pytest.fixture
def tree(tmp_path):
    """A copy of the pipeline in an empty folder."""
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", ".snakemake")
            )
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


@pytest.fixture
def snakemake():
    """Run Snakemake in a folder; returns the finished process, output as text."""

    def run(folder, *arguments, check=True):
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", *map(str, arguments)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        return done

    return run
