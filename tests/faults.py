"""Running the pipeline and getting in its way: processes, signals, mounts, what was left behind."""

import csv
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

import conftest
from pipeline_trees import results_of as artifacts

SMOKE = ("--config", "scale=smoke")
# All of R-GAP on one network, and a training with a checkpoint: every kind of job, few of each.
CELL = "embedded-smoke/copa_pair/cnn3_v2_tanh"
SCORE = f"results/scores/{CELL}/none/rgap.csv"
TRAINING = "results/training/embedded-smoke/rgap_resnet18/rgap_resnet18.csv"
FIGURE = "figures/copa_fig1.pdf"
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.[a-z0-9]+")


def command(*arguments):
    return [sys.executable, "-m", "snakemake", *map(str, arguments)]


def environment(**more):
    """Ours, without a count of threads that a session may have set, and `more`."""
    return {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | more


def run(folder, *arguments, prefix=(), **more):
    line = [*prefix, *command(*arguments)]
    return conftest.run(*line, together=True, cwd=folder, env=environment(**more))


def makes(folder, *targets, options=(), **more):
    done = run(folder, *SMOKE, *options, "--", *targets, **more)
    assert done.returncode == 0, done.stdout
    return done.stdout


def calm(tmp_path_factory):
    """A folder in which one score was made undisturbed."""
    folder = conftest.copy_tree(tmp_path_factory.mktemp("calm"))
    makes(folder, SCORE)
    return folder


def words(text):
    return " ".join(text.split())


def alive(process):
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _own_terminal():
    """Signals as a shell has them; a terminal on standard input becomes one's own."""
    # A shell starts what it puts behind itself with SIGINT ignored, nohup with SIGHUP.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Running:
    """Snakemake at work, in a process group of its own; on a terminal of its own if need be."""

    def __init__(self, folder, *arguments, terminal=False):
        self.folder, self.log = folder, folder / "run.log"
        self.terminal, end = os.openpty() if terminal else (None, subprocess.DEVNULL)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command(*arguments),
                cwd=folder,
                env=environment(),
                stdin=end,
                stdout=end if terminal else log,
                stderr=end if terminal else subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_own_terminal,
            )
        if terminal:
            os.close(end)
            self.open = threading.Event()
            self.open.set()
            self.screen = threading.Thread(target=self._show)
            self.screen.start()
        self.seen = {}

    def _show(self):
        """What stands on the terminal, into the log."""
        with self.log.open("wb", buffering=0) as log:
            while self.open.is_set():
                if select.select([self.terminal], [], [], 0.05)[0]:
                    try:
                        log.write(os.read(self.terminal, 65536))
                    except OSError:  # of a terminal on which nothing runs any more
                        return

    def close_terminal(self):
        """Close the window: a hangup to all that runs in it, and no more output or input."""
        if self.terminal is not None:
            self.open.clear()
            self.screen.join()
            os.close(self.terminal)
            self.terminal = None

    @property
    def text(self):
        return self.log.read_text()

    def jobs(self):
        found, children = {}, []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True)
        for child in children:
            with suppress(psutil.Error):
                line = child.cmdline()
                script = re.search(r"\.snakemake/scripts/tmp\w+\.(\w+)\.py", " ".join(line[-1:]))
                if script and "python" in Path(line[0]).name:
                    found[child] = script[1]
        self.seen.update(found)
        return found

    def _wait(self, look, seconds=120):
        """The first job that `look` takes; None if the run ends before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if found := [process for process, name in self.jobs().items() if look(process, name)]:
                return found[0]
            time.sleep(0.005)
        return None

    def next_job(self, script=""):
        """Wait for a living job whose script's name begins so; None if the run ends before."""
        return self._wait(lambda process, name: name.startswith(script) and alive(process))

    def wait_for_import(self, library="numpy"):
        """Wait until a job imports that library, the first of those that take seconds."""

        def imports(process, _):
            with suppress(psutil.Error):
                return any(f"/{library}/" in one.path for one in process.memory_maps())

        assert self._wait(imports), f"no job imported {library}:\n{self.text}"

    def signal(self, number, group=False):
        (os.killpg if group else os.kill)(self.process.pid, number)

    def wait(self):
        return self.process.wait(300)

    def end(self):
        """End what is left of it; how many jobs outlived Snakemake, and for how many seconds."""
        orphans = [child for child in self.seen if child.is_running()]
        start = time.monotonic()
        _, living = psutil.wait_procs(orphans, timeout=40)
        took = time.monotonic() - start
        for child in living:
            child.kill()
        assert not living, f"jobs outlived Snakemake by {took:.0f} s: {living}"
        return len(orphans), took

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.close_terminal()


def temporaries(folder):
    return [path for path in folder.rglob(".*") if TEMPORARY.fullmatch(path.name)]


def half_written(folder, reference):
    """Files under their final name of other bytes than those of an undisturbed run.

    A curve of training grows epoch by epoch under its own name: it must parse, no more.
    """
    found = []
    for name, content in artifacts(folder).items():
        path, whole = folder / name, content == reference.get(name)
        if TEMPORARY.fullmatch(path.name) or ".checkpoints" in path.parent.suffix:
            continue
        if name.endswith(".curve.csv"):
            rows = csv.reader(path.read_text().splitlines())
            whole = path.read_bytes().endswith(b"\n") and len(set(map(len, rows))) == 1
        if not whole:
            found.append(name)
    for path in (folder / "results/provenance").rglob("*.json"):
        if not TEMPORARY.fullmatch(path.name):
            json.loads(path.read_text())
    return found


def locked(folder):
    return any((folder / ".snakemake/locks").glob("*"))


def unlock(folder, *targets):
    """First half of what docs/faults.md tells to do after a kill."""
    if locked(folder):
        makes(folder, *targets, options=("--unlock",))


def namespace(script):
    """Command that runs a shell script with mounts of its own; None where that is not allowed."""
    for options in (("-m",), ("-rm",)):
        prefix = ["unshare", *options, "--propagation", "private", "bash", "-euc"]
        with suppress(OSError):
            if conftest.run(*prefix, "mount -t tmpfs none /mnt").returncode == 0:
                return [*prefix, script, "bash"]
    return None


@contextmanager
def memory_limit(mib):
    """Command that begins a process in a group of its own with `mib` of memory, and its folder.

    None where groups cannot be made. Both versions of the kernel's control groups are tried.
    """
    first = Path("/sys/fs/cgroup/memory")
    top, limit = (first, "limit_in_bytes") if first.is_dir() else (first.parent, "max")
    group, prefix = top / f"gradleak-test-{os.getpid()}", None
    with suppress(OSError):
        group.mkdir()
        (group / f"memory.{limit}").write_text(str(mib * 2**20))
        prefix = ("bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "bash")
    try:
        yield prefix, group
    finally:
        if group.is_dir():
            group.rmdir()


def killed_for_memory(group):
    for name in ("memory.oom_control", "memory.events"):
        if (group / name).exists():
            return int(re.search(r"^oom_kill (\d+)", (group / name).read_text(), re.M)[1])
    raise AssertionError(f"{group} does not tell of kills")
