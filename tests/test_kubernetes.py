"""profiles/kubernetes as far as it goes without a cluster: a bucket and an API made of a dict."""

import json
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from conftest import run

TRAINED = "results/training/embedded-smoke/fedkl_central_mnist/fedkl_trained_lenet.safetensors"
SECRET = "told-to-nobody"
LISTING = '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{}'
LISTED = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size>"


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
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.objects, http.jobs = set(), []
    http.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    kubeconfig = tmp_path / "kubeconfig"
    named = {"name": "test"}
    settings = {"apiVersion": "v1", "kind": "Config", "current-context": "test"} | {
        "clusters": [{**named, "cluster": {"server": http.url}}],
        "users": [{**named, "user": {}}],
        "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(settings))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_ACCESS_KEY", "key")
    monkeypatch.setenv("SNAKEMAKE_STORAGE_S3_SECRET_KEY", SECRET)
    yield http
    http.shutdown()
    http.server_close()
    thread.join()


def arguments(cloud, *further):
    profile = "--workflow-profile", "profiles/kubernetes"
    return *profile, "--storage-s3-endpoint-url", cloud.url, *further


@pytest.mark.slow
def test_a_dry_run_plans_every_job_with_its_files_in_the_bucket(tree, snakemake, cloud):
    smoke = "--config", "scale=smoke", "--", "figures/copa_fig1.pdf"
    done = snakemake(tree, "-n", "--verbose", *arguments(cloud, *smoke))
    out = done.stdout + done.stderr
    assert "s3://gradleak/figures/copa_fig1.pdf" in out
    assert "s3://gradleak/results/reconstructions/embedded-smoke/copa_pair/" in out
    local = snakemake(tree, "-n", "--cores", "1", *smoke)
    total = [line for line in out.splitlines() if line.startswith("total ")]
    assert total[0] in (local.stdout + local.stderr).splitlines()
    assert not cloud.jobs and not cloud.objects


def pod(cloud, tree, snakemake, *target):
    further = "--retries", "0", "--seconds-between-status-checks", "1", "--rerun-triggers", "mtime"
    done = snakemake(tree, *arguments(cloud, *further, "--config", *target), check=False)
    out = done.stdout + done.stderr
    assert len(cloud.jobs) == 1, out
    spec = cloud.jobs[0]["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


def test_a_pod_asks_for_what_its_job_needs_and_for_no_gpu(tree, snakemake, cloud):
    model = "results/models/smoke/cnn3_v1_tanh.safetensors"
    spec, container = pod(cloud, tree, snakemake, "scale=smoke", "--", model)
    assert container["image"] == "gradleak:0.1.0"
    limits = container["resources"]["limits"]
    assert limits["cpu"] == "1000m" and int(limits["memory"].removesuffix("M")) > 400
    assert limits["memory"] == container["resources"]["requests"]["memory"]
    assert "nvidia.com/gpu" not in limits and not spec.get("tolerations")
    command = container["args"][-1]
    assert "--deploy-sources s3://gradleak/" in command
    assert "--target-jobs 'model:model=cnn3_v1_tanh'" in command
    assert SECRET not in json.dumps(cloud.jobs), "a secret stands in the pod's description"
    assert_pip_fetches_nothing(command, tree)


def assert_pip_fetches_nothing(command, folder):
    """What the pod runs before Snakemake calls pip, but no program of that name."""
    first, end, _ = command.partition(" && python -m snakemake")
    assert end and "pip install" in first
    pip = folder / "pip"
    pip.write_text("#!/bin/sh\ntouch called\n")
    pip.chmod(0o755)
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = run("/bin/sh", "-c", first, cwd=folder, env=path)
    assert done.returncode == 0 and not (folder / "called").exists()


def test_a_pod_of_a_job_on_a_gpu_asks_for_one(tree, snakemake, cloud):
    made = ("data/digits-train", "results/models/smoke/fedkl_trained_lenet")
    cloud.objects |= {f"/gradleak/{name}.safetensors" for name in made}
    spec, container = pod(cloud, tree, snakemake, "scale=smoke", "device=cuda", "--", TRAINED)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert [entry["key"] for entry in spec["tolerations"]] == ["nvidia.com/gpu"]
