"""Submission without a scheduler or a cluster: what the profiles would send, line by line."""

import json
import os
import re
import shlex
import sys
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from snakemake.iocontainers import ResourceList
from snakemake.utils import format as format_command

from conftest import ROOT, run, serving
from gradleak import __version__

PROFILES = ROOT / "profiles"
SYSTEMS = ("slurm", "pbs", "sge", "lsf")
# All that a profile for a batch system may set: where and how jobs run, nothing of what they do.
SUBMISSION = """
executor jobs local-cores retries keep-going latency-wait scheduler rerun-incomplete rerun-triggers
show-failed-logs default-resources container-image max-jobs-per-timespan precommand
default-storage-provider default-storage-prefix max-status-checks-per-second
slurm-init-seconds-before-status-checks cluster-generic-submit-cmd cluster-generic-status-cmd
cluster-generic-cancel-cmd
"""


def lines_of(kind):
    """System -> command of a kind, of the active lines and of those to copy."""
    text = (PROFILES / "generic/config.yaml").read_text()
    found = re.findall(rf"^(?:# )?cluster-generic-{kind}-cmd: (.+)$", text, re.MULTILINE)
    assert len(found) == len(SYSTEMS)
    return dict(zip(SYSTEMS, found, strict=True))


@pytest.fixture
def fake(tmp_path, monkeypatch):
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

    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return install


@pytest.mark.parametrize("name", ["slurm", "generic", "kubernetes"])
def test_profiles_say_how_jobs_run_and_nothing_of_what_they_do(name):
    profile = yaml.safe_load((PROFILES / name / "config.yaml").read_text())
    assert set(profile) <= set(SUBMISSION.split())
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


# Program, what it answers, the job's number in it, its arguments, and those for two GPUs.
SENT = {
    "slurm": ("sbatch", "17;cluster", "17", "--parsable --no-requeue --ntasks=1 --cpus-per-task=3 "
    "--mem=2900 --time=90 --job-name=attack --output=LOGS/%j.log{}", " --gpus=2"),
    "pbs": ("qsub", "17.head", "17.head", "-r n -l select=1:ncpus=3:mem=2900mb{} "
    "-l walltime=5400 -N attack -j oe -o LOGS/", ":ngpus=2"),
    "sge": ("qsub", "17", "17", "-terse -r n -cwd -V -pe smp 3 -l mem_free=967M -l h_rt=5400 "
    "-N attack -j y -o LOGS/{}", " -l gpu=2"),
    "lsf": ("bsub", "Job <17> is submitted to queue <normal>.", "17", "-rn -n 3 -M 2900 "
    "-R 'span[hosts=1] rusage[mem=2900]' -W 90 -J attack -o LOGS/%J.log{}", " -gpu num=2"),
}  # fmt: skip


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("system", SYSTEMS)
def test_submit_lines_pass_what_a_job_asks_for(tree, fake, system, gpus):
    program, answer, number, expected, more = SENT[system]
    noted = fake(program, answer)
    resources = ResourceList(fromdict={"mem_mb": 2900, "runtime": 90, "gpu": gpus})
    line = format_command(lines_of("submit")[system], threads=3, resources=resources, rule="attack")
    # As the plugin runs it: the script's path behind the line, in a shell.
    done = run("/bin/sh", "-c", f'{line} "/a folder/job.sh"', cwd=tree)
    assert (done.returncode, done.stdout.split()) == (0, [number]), done.stderr
    expected = expected.format(more if gpus else "").replace("LOGS", "results/logs/cluster")
    words = [*shlex.split(expected), "/a folder/job.sh"]
    assert noted.read_text().rstrip("\n").split("\0") == words
    assert (tree / "results" / "logs" / "cluster").is_dir()


def test_a_submission_that_is_refused_is_an_error(tree, fake):
    fake("sbatch", code=1, error="sbatch: error: invalid partition")
    line = "profiles/generic/submit.sh 0 --gpus=0 sbatch @GPU@ job.sh"
    done = run("/bin/sh", "-c", line, cwd=tree)
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
def test_status_scripts_say_what_the_system_means(fake, monkeypatch, system, answers, expected):
    for program, answer in answers.items():
        noted = fake(program, *answer)
    monkeypatch.setenv("GRADLEAK_STATUS_SLEEP", "0")
    done = run(ROOT / lines_of("status")[system], "17")
    assert (done.returncode, done.stdout) == (0, f"{expected}\n"), done.stderr
    assert "17" in noted.read_text()


TRAINED = "results/training/embedded-smoke/fedkl_central_mnist/fedkl_trained_lenet.safetensors"
TRAINED_FROM = [
    f"{name}.safetensors"
    for name in ("data/digits-train", "results/models/smoke/fedkl_trained_lenet")
]


def submission(tree, refusal, fake, target, *, made):
    for name in made:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    sbatch = fake("sbatch", code=1, error="sbatch: error: a test takes no jobs")
    for program in ("squeue", "sinfo", "scontrol", "sacct", "sacctmgr"):
        fake(program)
    more = ("--retries", 0, "--rerun-triggers", "mtime", "--config", "scale=smoke", "device=cuda")
    said = refusal("--workflow-profile", "profiles/slurm", *more, "--", target)
    assert "a test takes no jobs" in said
    (sent,) = [line.split("\0") for line in sbatch.read_text().splitlines()]
    return sent


def test_slurm_is_asked_for_a_gpu_by_jobs_that_use_one(tree, refusal, fake):
    trained = submission(tree, refusal, fake, TRAINED, made=TRAINED_FROM)
    assert trained[trained.index("--comment") + 1].startswith("rule_train_wildcards_")
    assert "--gpus=1" in trained and not [word for word in trained if word.startswith("--gres")]
    assert "--cpus-per-task=1" in trained
    assert int(trained[trained.index("--mem") + 1]) > 400
    assert int(trained[trained.index("-t") + 1]) >= 5


@pytest.mark.slow
def test_slurm_is_asked_for_no_gpu_by_the_others(tree, refusal, fake):
    model = "results/models/smoke/cnn3_v1_tanh.safetensors"
    made = submission(tree, refusal, fake, model, made=[])
    assert made[made.index("--comment") + 1] == "rule_model_wildcards_cnn3_v1_tanh"
    assert not [word for word in made if word.startswith(("--gpus", "--gres"))]
    assert "--ntasks=1" in made and "--cpus-per-task=1" in made


SECRET = "told-to-nobody"
LISTING = '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{}'
LISTED = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size>"
KUBECONFIG = """{apiVersion: v1, kind: Config, current-context: test,
clusters: [{name: test, cluster: {server: "URL"}}], users: [{name: test, user: {}}],
contexts: [{name: test, context: {cluster: test, user: test}}]}"""


class Handler(BaseHTTPRequestHandler):
    """Answers as S3 and as Kubernetes do, as far as a run asks; every pod fails at once."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        path = urlsplit(self.path).path
        self.answer(200 if path in self.server.objects or path == "/gradleak" else 404)

    def do_GET(self):
        path = urlsplit(self.path).path
        if path == "/gradleak":
            prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
            keys = [name.removeprefix("/gradleak/") for name in self.server.objects]
            found = [key for key in keys if key.startswith(prefix)]
            contents = "".join(LISTED.format(key) + "</Contents>" for key in found)
            self.answer(200, LISTING.format(contents) + "</ListBucketResult>")
        elif path.endswith("/status"):
            self.answer(200, json.dumps({"status": {"failed": 1}}))
        elif path.endswith("/pods"):
            self.answer(200, json.dumps({"items": []}))
        else:
            self.answer(404)

    def do_PUT(self):
        self.body()
        self.server.objects.add(urlsplit(self.path).path)
        self.answer(200)

    def do_POST(self):
        body = json.loads(self.body())
        if urlsplit(self.path).path.endswith("/jobs"):
            self.server.jobs.append(body)
        self.answer(201, json.dumps(body))

    def do_DELETE(self):
        self.body()
        self.answer(200, "{}")

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, code, text=""):
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"application/{'xml' if text[:1] == '<' else 'json'}")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"none"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A bucket with no object, and a cluster that notes the jobs that it is given."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_ACCESS_KEY", "key")
    monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_SECRET_KEY", SECRET)
    with serving(Handler) as http:
        http.objects, http.jobs = set(), []
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.replace("URL", http.url))
        yield http


PROFILE = ("--workflow-profile", "profiles/kubernetes", "--storage-s3-endpoint-url")


@pytest.mark.slow
def test_a_dry_run_plans_every_job_with_its_files_in_the_bucket(tree, snakemake, cloud):
    smoke = "--config", "scale=smoke", "--", "figures/copa_fig1.pdf"
    done = snakemake(tree, "-n", "--verbose", *PROFILE, cloud.url, *smoke)
    out = done.stdout + done.stderr
    assert "s3://gradleak/figures/copa_fig1.pdf" in out
    assert "s3://gradleak/results/reconstructions/embedded-smoke/copa_pair/" in out
    local = snakemake(tree, "-n", "--cores", "1", *smoke)
    total = [line for line in out.splitlines() if line.startswith("total ")]
    assert total[0] in (local.stdout + local.stderr).splitlines()
    assert not cloud.jobs and not cloud.objects


def pod(cloud, tree, snakemake, *target):
    further = "--retries", "0", "--seconds-between-status-checks", "1", "--rerun-triggers", "mtime"
    snakemake(tree, *PROFILE, cloud.url, *further, "--config", *target, check=False)
    assert len(cloud.jobs) == 1
    spec = cloud.jobs[0]["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


def test_a_pod_asks_for_what_its_job_needs_and_for_no_gpu(tree, snakemake, cloud, fake):
    model = "results/models/smoke/cnn3_v1_tanh.safetensors"
    spec, container = pod(cloud, tree, snakemake, "scale=smoke", "--", model)
    assert container["image"] == f"gradleak:{__version__}"
    limits = container["resources"]["limits"]
    assert limits["cpu"] == "1000m" and int(limits["memory"].removesuffix("M")) > 400
    assert limits["memory"] == container["resources"]["requests"]["memory"]
    assert "nvidia.com/gpu" not in limits and not spec.get("tolerations")
    command = container["args"][-1]
    assert "--deploy-sources s3://gradleak/" in command
    assert "--target-jobs 'model:model=cnn3_v1_tanh'" in command
    assert SECRET not in json.dumps(cloud.jobs), "a secret stands in the pod's description"
    # What the pod runs before Snakemake calls pip, but no program of that name.
    first, end, _ = command.partition(" && python -m snakemake")
    assert end and "pip install" in first
    noted = fake("pip")
    done = run("/bin/sh", "-c", first, cwd=tree, env={"PATH": f"{tree / 'bin'}:/usr/bin:/bin"})
    assert done.returncode == 0 and not noted.exists()


def test_a_pod_of_a_job_on_a_gpu_asks_for_one(tree, snakemake, cloud):
    cloud.objects |= {f"/gradleak/{name}" for name in TRAINED_FROM}
    spec, container = pod(cloud, tree, snakemake, "scale=smoke", "device=cuda", "--", TRAINED)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert [entry["key"] for entry in spec["tolerations"]] == ["nvidia.com/gpu"]
