"""Slurm on this machine alone, for tests: its daemons, folders and /etc/slurm are private."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DAEMONS = ("munged", "slurmctld", "slurmd")
NEEDED = (*DAEMONS, "sbatch", "srun", "squeue", "scancel", "scontrol", "unshare", "setpriv")
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def reason_to_skip():
    """Why Slurm cannot be brought up here, or None."""
    if os.geteuid() != 0:
        return "needs root, for mount namespaces and Slurm's daemons"
    missing = [name for name in NEEDED if shutil.which(name, path=SEARCH) is None]
    if missing:
        return (
            "needs the Debian packages slurm-wlm and munge, which tests/slurm/setup.sh installs "
            f"(missing: {', '.join(missing)})"
        )
    if not Path("/etc/slurm").is_dir():
        return "needs a folder /etc/slurm to mount its own over"
    tried = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "--", "true"], capture_output=True
    )
    return None if tried.returncode == 0 else "needs the right to make mount namespaces"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """Starts Slurm when entered, and stops what it started when left, whatever happened."""

    def __init__(self, cpus):
        self.cpus, self.daemons = cpus, []

    def __enter__(self):
        # A short path: a socket's name has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        try:
            self._configure()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._cancel()
        # The node first, so that it can report; then the controller, then what signs for both.
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _cancel(self, seconds=20):
        """End the jobs that a failed test left: without a node they would run on."""
        end = time.monotonic() + seconds
        while len(self.daemons) == len(DAEMONS) and time.monotonic() < end:
            self.run("scancel", "--partition=main")
            if not self.run("squeue", "--noheader").stdout.strip():
                break
            time.sleep(0.5)

    def _configure(self):
        for name in ("etc", "state", "spool", "log"):
            (self.folder / name).mkdir()
        text = (HERE / "slurm.conf").read_text()
        for key, value in {
            "FOLDER": self.folder,
            "CPUS": self.cpus,
            "CONTROLLER": free_port(),
            "NODE": free_port(),
        }.items():
            text = text.replace(f"@{key}@", str(value))
        (self.folder / "etc" / "slurm.conf").write_text(text)
        # A device that is always there, so that jobs can be given a GPU which no machine needs.
        (self.folder / "etc" / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))

    def _start(self):
        munge = self.folder / "munge"
        self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--socket={munge}.socket",
            f"--key-file={munge}.key",
            f"--pid-file={munge}.pid",
            f"--seed-file={munge}.seed",
            f"--log-file={self.folder}/log/munged.log",
        )
        self._wait("munged's socket", Path(f"{munge}.socket").exists)
        self._daemon("slurmctld", "-D", "-c")
        self._wait("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0)
        self._daemon("slurmd", "-D", "-N", "localhost")
        self._wait("an idle node", lambda: "idle" in self.run("sinfo", "-h", "-o", "%T").stdout)

    def _daemon(self, name, *arguments):
        with (self.folder / "log" / f"{name}.out").open("w") as out:
            self.daemons.append(
                subprocess.Popen(
                    # Ends with the tests, even if they are killed.
                    self._inside("setpriv", "--pdeathsig", "TERM", name, *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"PATH": SEARCH},
                )
            )

    def _inside(self, *command):
        return [HERE / "inside.sh", self.folder / "etc", *map(str, command)]

    def _wait(self, what, ready, seconds=60):
        end = time.monotonic() + seconds
        while not ready():
            dead = [daemon for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"waited in vain for {what}:\n{self.logs()}")
            time.sleep(0.2)

    def logs(self):
        """The daemons' last words."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
            for path in sorted((self.folder / "log").iterdir())
        )

    def run(self, *command, cwd=None, env=None):
        """Run a command on the cluster's submit host; the finished process, output as text."""
        return subprocess.run(
            self._inside(*command),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def jobs(self, folder):
        """The scheduler's records of the jobs that were submitted from `folder`."""
        done = self.run("squeue", "--json", "--states=all")
        assert done.returncode == 0, done.stderr
        return [
            job
            for job in json.loads(done.stdout)["jobs"]
            if job["current_working_directory"] == str(folder)
        ]

    def completed(self):
        """Job id -> fields, from the file to which Slurm writes a line when a job has ended."""
        records = {}
        for line in (self.folder / "jobs.txt").read_text().splitlines():
            fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
            records[int(fields["JobId"])] = fields
        return records
