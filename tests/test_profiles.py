"""Submission without a scheduler: what the profiles would send, line by line."""

import os
import re
import shlex
import sys

import pytest
import yaml
from snakemake.iocontainers import ResourceList
from snakemake.utils import format as format_command

from conftest import ROOT, run

PROFILES = ROOT / "profiles"
GENERIC = PROFILES / "generic"
SYSTEMS = ("slurm", "pbs", "sge", "lsf")
# All that a profile for a batch system may set: where and how jobs run, nothing of what they do.
SUBMISSION = {
    "executor", "jobs", "local-cores", "retries", "keep-going", "latency-wait", "scheduler",
    "rerun-incomplete", "rerun-triggers", "show-failed-logs", "default-resources",
    "container-image", "max-jobs-per-timespan", "precommand", "default-storage-provider",
    "default-storage-prefix", "max-status-checks-per-second",
    "slurm-init-seconds-before-status-checks", "cluster-generic-submit-cmd",
    "cluster-generic-status-cmd", "cluster-generic-cancel-cmd",
}  # fmt: skip


def lines_of(kind):
    """System -> command of a kind, of the active lines and of those to copy."""
    text = (GENERIC / "config.yaml").read_text()
    found = re.findall(rf"^(?:# )?cluster-generic-{kind}-cmd: (.+)$", text, re.MULTILINE)
    assert len(found) == len(SYSTEMS)
    return dict(zip(SYSTEMS, found, strict=True))


@pytest.fixture
def fake(tmp_path):
    """Put a program on the path that notes its arguments and answers as told."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def install(name, answer="", code=0, error=""):
        program = folder / name
        program.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"with open({str(tmp_path / name)!r}, 'a') as noted:\n"
            "    noted.write('\\0'.join(sys.argv[1:]) + '\\n')\n"
            f"print({answer!r}); print({error!r}, file=sys.stderr); sys.exit({code})\n"
        )
        program.chmod(0o755)
        return tmp_path / name

    install.path = f"{folder}:{os.environ['PATH']}"
    return install


@pytest.mark.parametrize("name", ["slurm", "generic", "kubernetes"])
def test_profiles_say_how_jobs_run_and_nothing_of_what_they_do(name):
    profile = yaml.safe_load((PROFILES / name / "config.yaml").read_text())
    assert set(profile) <= SUBMISSION
    # It replaces the default profile, whose settings it has to repeat; cores are the nodes'.
    default = yaml.safe_load((PROFILES / "default" / "config.yaml").read_text())
    del default["cores"]
    assert default.items() <= profile.items()
    assert profile["retries"] == 2, "memory and minutes double with each attempt"


@pytest.mark.parametrize("name", ["slurm", "generic"])
def test_a_dry_run_with_the_profile_needs_nothing_else(tree, snakemake, name):
    target = "results/tables/copa_table1.csv"
    done = snakemake(tree, "-n", "--workflow-profile", f"profiles/{name}", "--", target)
    assert f"Using workflow specific profile profiles/{name}" in done.stderr
    assert re.search(r"^table +1$", done.stdout, re.MULTILINE)


ANSWERS = {
    "slurm": ("sbatch", "17;cluster", "17"),
    "pbs": ("qsub", "17.head", "17.head"),
    "sge": ("qsub", "17", "17"),
    "lsf": ("bsub", "Job <17> is submitted to queue <normal>.", "17"),
}
SENT = {
    "slurm": "--parsable --no-requeue --ntasks=1 --cpus-per-task=3 --mem=2900 --time=90 "
    "--job-name=attack --output=results/logs/cluster/%j.log{}",
    "pbs": "-r n -l select=1:ncpus=3:mem=2900mb{} -l walltime=5400 -N attack -j oe "
    "-o results/logs/cluster/",
    "sge": "-terse -r n -cwd -V -pe smp 3 -l mem_free=967M -l h_rt=5400 -N attack -j y "
    "-o results/logs/cluster/{}",
    "lsf": "-rn -n 3 -M 2900 -R 'span[hosts=1] rusage[mem=2900]' -W 90 -J attack "
    "-o results/logs/cluster/%J.log{}",
}
GPU = {"slurm": " --gpus=2", "pbs": ":ngpus=2", "sge": " -l gpu=2", "lsf": " -gpu num=2"}


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("system", SYSTEMS)
def test_submit_lines_pass_what_a_job_asks_for(tree, fake, system, gpus):
    program, answer, number = ANSWERS[system]
    noted = fake(program, answer)
    resources = ResourceList(fromdict={"mem_mb": 2900, "runtime": 90, "gpu": gpus})
    line = format_command(lines_of("submit")[system], threads=3, resources=resources, rule="attack")
    # As the plugin runs it: the script's path behind the line, in a shell.
    shell = ("/bin/sh", "-c", f'{line} "/a folder/job.sh"')
    done = run(*shell, cwd=tree, env={"PATH": fake.path})
    assert (done.returncode, done.stdout.split()) == (0, [number]), done.stderr
    expected = SENT[system].format(GPU[system] if gpus else "")
    words = [*shlex.split(expected), "/a folder/job.sh"]
    assert noted.read_text().rstrip("\n").split("\0") == words
    assert (tree / "results" / "logs" / "cluster").is_dir()


def test_a_submission_that_is_refused_is_an_error(tree, fake):
    fake("sbatch", code=1, error="sbatch: error: invalid partition")
    line = "profiles/generic/submit.sh 0 --gpus=0 sbatch @GPU@ job.sh"
    done = run("/bin/sh", "-c", line, cwd=tree, env={"PATH": fake.path})
    assert done.returncode == 1 and "invalid partition" in done.stderr and not done.stdout


@pytest.mark.parametrize("system", SYSTEMS)
def test_cancel_lines_are_one_program_and_status_scripts_exist(system):
    # The plugin runs the first with the jobs' ids and no shell.
    assert lines_of("cancel")[system] in {"scancel", "qdel", "bkill"}
    script = ROOT / lines_of("status")[system]
    assert script.name == f"status-{system}.sh" and os.access(script, os.X_OK)


# Program -> what it answers, with which exit status and error, and what that means.
GONE = ("", 1, "Following jobs do not exist: 17")
STATES = [
    ("slurm", {"squeue": ("RUNNING",)}, "running"),
    ("slurm", {"squeue": ("PENDING",)}, "running"),
    ("slurm", {"squeue": ("COMPLETED",)}, "success"),
    ("slurm", {"squeue": ("COMPLETED", 0, "squeue: warning: a plugin is missing")}, "success"),
    ("slurm", {"squeue": ("TIMEOUT",)}, "failed"),
    ("slurm", {"squeue": ("OUT_OF_MEMORY",)}, "failed"),
    ("slurm", {"squeue": ("", 1, "slurm_load_jobs error: Unable to contact")}, "running"),
    ("slurm", {"squeue": ("", 1, "Invalid job id specified"), "sacct": ("COMPLETED ",)}, "success"),
    ("slurm", {"squeue": ("",), "sacct": ("CANCELLED by 0",)}, "failed"),
    ("slurm", {"squeue": ("",), "sacct": ("", 1)}, "failed"),
    ("pbs", {"qstat": ("Job Id: 17.head\n    job_state = Q",)}, "running"),
    ("pbs", {"qstat": ("    job_state = F\n    Exit_status = 0",)}, "success"),
    ("pbs", {"qstat": ("    job_state = F\n    Exit_status = -29",)}, "failed"),
    ("pbs", {"qstat": ("    job_state = F\n    comment = deleted",)}, "failed"),
    ("pbs", {"qstat": ("    job_state = C\n    exit_status = 0",)}, "success"),
    ("pbs", {"qstat": ("", 153, "qstat: Unknown Job Id 17.head")}, "failed"),
    ("pbs", {"qstat": ("", 111, "Connection refused")}, "running"),
    ("sge", {"qstat": ("17 0.5 attack me r now",)}, "running"),
    ("sge", {"qstat": ("17 0.5 attack me Eqw now",)}, "failed"),
    ("sge", {"qstat": ("", 1, "unable to contact qmaster")}, "running"),
    ("sge", {"qstat": GONE, "qacct": ("failed       0\nexit_status  0",)}, "success"),
    ("sge", {"qstat": GONE, "qacct": ("failed  37 : enforced h_rt\nexit_status  137",)}, "failed"),
    ("sge", {"qstat": GONE, "qacct": ("", 1)}, "failed"),
    ("lsf", {"bjobs": ("PEND",)}, "running"),
    ("lsf", {"bjobs": ("DONE",)}, "success"),
    ("lsf", {"bjobs": ("EXIT",)}, "failed"),
    ("lsf", {"bjobs": ("", 255, "Job <17> is not found")}, "failed"),
    ("lsf", {"bjobs": ("", 255, "LSF is down. Please wait ...")}, "running"),
]


@pytest.mark.parametrize(("system", "answers", "expected"), STATES)
def test_status_scripts_say_what_the_system_means(fake, system, answers, expected):
    for program, answer in answers.items():
        noted = fake(program, *answer)
    environment = {"PATH": fake.path, "GRADLEAK_STATUS_SLEEP": "0"}
    done = run(ROOT / lines_of("status")[system], "17", env=environment)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr
    assert "17" in noted.read_text()


TRAINED = "results/training/embedded-smoke/fedkl_central_mnist/fedkl_trained_lenet.safetensors"


def submission(tree, snakemake, fake, target, *, made):
    """Arguments of sbatch for the one job that is left to do for a target on a GPU."""
    for name in made:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    sbatch = fake("sbatch", code=1, error="sbatch: error: a test takes no jobs")
    for program in ("squeue", "sinfo", "scontrol", "sacct", "sacctmgr"):
        fake(program)
    done = snakemake(
        *(tree, "--workflow-profile", "profiles/slurm", "--retries", "0"),
        *("--rerun-triggers", "mtime", "--config", "scale=smoke", "device=cuda", "--", target),
        check=False,
    )
    assert "a test takes no jobs" in done.stdout + done.stderr
    (sent,) = [line.split("\0") for line in sbatch.read_text().splitlines()]
    return sent


def test_slurm_is_asked_for_a_gpu_by_jobs_that_use_one(tree, snakemake, fake, monkeypatch):
    monkeypatch.setenv("PATH", fake.path)
    made = ("data/digits-train", "results/models/smoke/fedkl_trained_lenet")
    files = [f"{name}.safetensors" for name in made]
    trained = submission(tree, snakemake, fake, TRAINED, made=files)
    assert trained[trained.index("--comment") + 1].startswith("rule_train_wildcards_")
    assert "--gpus=1" in trained and not [word for word in trained if word.startswith("--gres")]
    assert "--cpus-per-task=1" in trained
    assert int(trained[trained.index("--mem") + 1]) > 400
    assert int(trained[trained.index("-t") + 1]) >= 5


@pytest.mark.slow
def test_slurm_is_asked_for_no_gpu_by_the_others(tree, snakemake, fake, monkeypatch):
    monkeypatch.setenv("PATH", fake.path)
    model = "results/models/smoke/cnn3_v1_tanh.safetensors"
    made = submission(tree, snakemake, fake, model, made=[])
    assert made[made.index("--comment") + 1] == "rule_model_wildcards_cnn3_v1_tanh"
    assert not [word for word in made if word.startswith(("--gpus", "--gres"))]
    assert "--ntasks=1" in made and "--cpus-per-task=1" in made
