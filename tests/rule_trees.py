"""A workflow of some of our rules, in a folder of its own."""

import subprocess
import sys

import yaml

from conftest import copy_tree


def build(folder, rules, settings, more=""):
    """A Snakefile that includes the files `rules`, with `settings` as config.yaml."""
    copy_tree(folder, ("src", "workflow"))
    (folder / "envs").mkdir(exist_ok=True)
    (folder / "envs" / "gradleak.yaml").write_text("dependencies: []\n")
    names = ("config_file", "common", *rules)
    included = "".join(f'include: "workflow/rules/{name}.smk"\n' for name in names)
    (folder / "Snakefile").write_text(f'configfile: "config.yaml"\n{included}{more}')
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))


def run(folder, *arguments):
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=folder, check=False, **streams)
