"""The workflow in other folders: used as a module, and as snakedeploy deploys it."""

import json
import shutil
import sys
from pathlib import Path

import yaml
from snakemake.common import get_appdirs

from conftest import ROOT, TREE, copy_tree, run
from pipeline_trees import jobs_of

MODEL = "results/models/smoke/cnn3_v3_tanh.safetensors"
USER = """
rule paper:
    input: "{model}"
    output: "paper.txt"
    script: "paper.py"
module gradleak:
    snakefile: "{root}/workflow/Snakefile"
    config: {config}
use rule * from gradleak as gradleak_*
"""


def user(folder, config):
    """A project with a Snakefile and settings of its own."""
    (folder / "Snakefile").write_text(USER.format(root=ROOT, model=MODEL, config=config))
    (folder / "paper.py").write_text("open(snakemake.output[0], 'w').close()\n")
    (folder / "config.yaml").write_text("mine: 1\n")


def test_another_snakefile_uses_it_as_a_module(tmp_path, snakemake):
    user(tmp_path, {"scale": "smoke"})
    # Its own rules and default target stay what they are.
    snakemake(tmp_path, "--cores", 1)
    assert (tmp_path / MODEL).is_file() and (tmp_path / "paper.txt").is_file()
    done = snakemake(tmp_path, "-n", "--", "figures/copa_fig1.pdf")
    jobs = jobs_of(done.stdout + done.stderr)
    assert jobs["gradleak_figure"] == 1 and jobs["gradleak_model"] == 3


def test_a_key_that_a_module_lacks_is_refused_in_a_sentence(tmp_path, snakemake):
    user(tmp_path, {"scal": "smoke"})
    done = snakemake(tmp_path, "-n", check=False)
    words = "the config of the module: unknown key 'scal' (did you mean 'scale'?)"
    assert words in done.stdout + done.stderr
    # Its own config file may hold what gradleak refuses in one of its own.
    (tmp_path / "own.yaml").write_text("mine: 1\nmine: 2\n")
    user(tmp_path, {"scale": "smoke"})
    snakemake(tmp_path, "-n", "--configfile", "own.yaml", "--")
    # Of a command line that the module is given.
    user(tmp_path, {"scale": "smoke", "attacks": {"copa": {"iterations": "-5"}}})
    done = snakemake(tmp_path, "-n", check=False)
    assert "the config of the module: attacks.copa.iterations: -5 is" in done.stdout + done.stderr


# What snakedeploy 0.17 writes of a repository on GitHub, besides copies of config/ and profiles/.
DEPLOYED = """
configfile: "config/config.yaml"
module gradleak:
    snakefile:
        github("someone/gradleak", path="workflow/Snakefile", tag="v1")
    config:
        config
use rule * from gradleak
"""


def test_a_deployed_folder_runs(tmp_path, snakemake, monkeypatch):
    # In place of the network: the clone that Snakemake keeps of a repository on GitHub.
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    cache = Path(get_appdirs().user_cache_dir, "snakemake/source-cache/snakemake-git-cache")
    source = copy_tree(tmp_path / "source", (*TREE, "config", ".gitignore"))
    git = ("git", "-c", "user.name=me", "-c", "user.email=me@example.org")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "x"), ("tag", "v1")):
        run(*git, *command, cwd=source, check=True)
    run(*git, "clone", "-q", "--bare", source, cache / "github.com/someone/gradleak", check=True)
    commit = run(*git, "rev-parse", "HEAD", cwd=source, check=True).stdout.strip()
    folder = tmp_path / "deployed"
    for name in ("config", "profiles"):
        shutil.copytree(source / name, folder / name)
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(DEPLOYED)
    shutil.rmtree(source)
    snakemake(folder, "--config", "scale=smoke", "--", MODEL)
    record = json.loads((folder / f"results/provenance/{MODEL[8:]}.json").read_text())
    assert record["commit"] == commit and record["changed"] is False


def test_a_clone_that_snakedeploy_deploys_runs_with_the_documented_snakefile(tmp_path, snakemake):
    source = copy_tree(tmp_path / "gradleak", (*TREE, "config", "LICENSE"))
    folder = tmp_path / "my-run"
    deploy = Path(sys.executable).parent / "snakedeploy", "deploy-workflow"
    run(*deploy, source, folder, "--branch", "main", check=True)
    for name in ("config", "profiles"):
        ours = {path.relative_to(source) for path in (source / name).rglob("*")}
        assert {path.relative_to(folder) for path in (folder / name).rglob("*")} == ours
    # Its path does not lead to the clone, as the README says.
    written = (folder / "workflow/Snakefile").read_text()
    assert '"workflow/Snakefile"' in written
    blocks = (ROOT / "config/README.md").read_text().split("```")
    (own,) = [block for block in blocks if "configfile:" in block]
    full = own.replace("/path/to/gradleak", str(source))
    whole = written.replace('"workflow/Snakefile"', f'"{source}/workflow/Snakefile"')
    for text in (full, whole):
        (folder / "workflow/Snakefile").write_text(text)
        done = snakemake(folder, "-n", "--", MODEL.replace("smoke", "laptop"))
        assert jobs_of(done.stdout + done.stderr)["model"] == 1
    snakemake(folder, "--config", "scale=smoke", "--", MODEL)
    assert (folder / MODEL).is_file()


def test_deployed_settings_are_those_of_the_source():
    deployed, source = (
        yaml.safe_load((ROOT / name).read_text()) for name in ("config/config.yaml", "config.yaml")
    )
    assert deployed.items() <= source.items()
