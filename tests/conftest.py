"""Shared by tests: a copy of the tree to run the pipeline in, a server, errors as users see."""

import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import hypothesis
import pytest
import torch

from browser import Browser, reason_to_skip
from gradleak.errors import DataError

ROOT = Path(__file__).resolve().parents[1]
# Entries of PYTHONPATH for processes that import the packages.
PACKAGES = (str(ROOT / "src"), str(ROOT))
TREE = (
    "Snakefile", "config.yaml", "papers", "src", "benchmarks", "requirements.lock", "workflow",
    "profiles", "envs", "examples", "notebooks", "CITATION.cff", "LICENSE",
)  # fmt: skip

# Where the arrays of the real images lie, if anywhere. Runs of the pipeline would take them too, so
# the variable goes; xdist's workers find it under another name.
REAL_DATA = os.environ.setdefault("_GRADLEAK_REAL", os.environ.pop("GRADLEAK_DATA_ROOT", ""))

# Files whose tests take minutes: first, so that no process is left alone with one at the end.
LONGEST = [
    f"test_{n}.py" for n in ("everything", "pipeline", "auditing_cases", "branches", "clean")
]


def pytest_configure():
    """Run on one thread for each process, time nothing, and let jobs keep what they compile.

    Threads of two processes on two cores would wait for each other, and a thousand jobs would
    compile the package a thousand times where the environment says so.
    """
    # A busy machine is no failure.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else 9)


def copy_tree(folder, names=TREE):
    """Copy the pipeline, or some of it, into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    ignored = shutil.ignore_patterns(".snakemake")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run(*command, together=False, **options):
    """A process that has ended, with its output and errors as text (as one if `together`)."""
    errors = subprocess.STDOUT if together else subprocess.PIPE
    pipes = {"stdout": subprocess.PIPE, "stderr": errors}
    return subprocess.run([*map(str, command)], **pipes, text=True, **{"check": False, **options})


def shell(folder):
    """A way to run commands in a copy of the tree as its user would; it returns what they print."""
    paths = map(str, (folder / "src", folder, folder / "tests"))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
    }

    def start(command):
        done = run("bash", "-c", command, cwd=folder, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return start


def sentence(kind, function, *arguments, **options):
    """The message with which a call is refused, in one line."""
    with pytest.raises(kind) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def tree(tmp_path):
    """A copy of the pipeline in an empty folder."""
    return copy_tree(tmp_path)


@pytest.fixture
def snakemake():
    """Run Snakemake in a folder; returns the finished process, output as text."""

    def start(folder, *arguments, check=True):
        done = run(sys.executable, "-m", "snakemake", *arguments, cwd=folder)
        text = done.stdout + done.stderr
        # Python prints a fault of our log handler, and the run goes on.
        assert "--- Logging error ---" not in text, text
        assert not check or done.returncode == 0, text
        return done

    return start


@pytest.fixture
def refusal(tree, snakemake):
    """Run Snakemake in the tree, where it must fail; returns what it says, in one line."""

    def start(*arguments):
        done = snakemake(tree, *arguments, check=False)
        text = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0 and "Traceback (most recent" not in text
        return text

    return start


@contextmanager
def serving(handler):
    """Serve on this machine, at the `url` of what is returned."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield http
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class Server:
    """Serves `files`; `cuts` says after how many bytes each of the next replies breaks off.

    If it `stalls` it goes silent there, or before its first word, instead of breaking off.
    """

    def __init__(self):
        self.files, self.cuts, self.requests, self.ranges = {}, [], [], True
        self.stalls, self.closed = False, threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.reply(self)

            def log_message(self, *arguments):
                pass

        self.running = ExitStack()
        self.url = f"{self.running.enter_context(serving(Handler)).url}/files"

    def reply(self, handler):
        name, wanted = handler.path.rpartition("/")[2], handler.headers.get("Range")
        self.requests.append((name, wanted))
        if self.stalls and not self.cuts:
            self.closed.wait()
            return
        if name not in self.files:
            handler.send_error(404)
            return
        content, start = self.files[name], 0
        if self.ranges and wanted:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        end = start + self.cuts.pop(0) if self.cuts else len(content)
        handler.wfile.write(content[start:end])
        if self.stalls:
            self.closed.wait()

    def close(self):
        self.closed.set()
        self.running.close()


@pytest.fixture
def server():
    running = Server()
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser():
    """A running Chromium; where there is none the tests that ask for it are skipped."""
    if reason_to_skip() is not None:
        pytest.skip(reason_to_skip())
    with Browser() as running:
        yield running


@contextmanager
def refused(*parts, kind=DataError):
    """Expect an error of a `kind` whose sentence has all `parts`."""
    with pytest.raises(kind) as error:
        yield
    text = str(error.value)
    # But for what is quoted, and SqueezeNet 1.1.
    own = re.sub(r"\(.*?\)", "", text).replace("1.1 ", "")
    assert text.endswith(".") and "\n" not in text and ". " not in own
    for part in parts:
        assert str(part) in text
