"""Sidecars: origin and cost of an artifact.

Equal inputs give equal bytes of artifacts. Facts that differ from run to run (commit, host, time,
memory) are in `results/provenance/{artifact}.json`, for every file that a job wrote.
"""

import csv
import hashlib
import json
import math
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import again, write_json
from gradleak.runtime.provenance import TREE, versions
from gradleak.settings.fields import SCALES

# Code of a run, of which new files count although git does not know them.
SOURCES = ("Snakefile", "benchmarks", "papers", "src", "workflow")
FOLDER = Path("results/provenance")
# Scripts whose jobs are read from records too, with the wildcards that name them, in the order of
# paths; and other rules that run one of them.
NAMES = {
    "attack": ("experiment", "model", "defence", "attack"),
    "score": ("experiment", "model", "defence", "attack"),
    "security": ("experiment", "model"),
    "rank_analysis": ("experiment", "model"),
    "train": ("training", "model"),
}
TRAINING = ("train_locked", "train_federated", "train_federated_locked")
SCRIPTS = {script: script for script in NAMES} | dict.fromkeys(TRAINING, "train")
_earlier = {"seconds": 0.0, "cpu_seconds": 0.0}  # of processes that were cut off
TIMESTAMP = ".snakemake_timestamp"  # Snakemake puts it into an output folder once the job is done


def path_of(artifact: str | os.PathLike[str]) -> Path:
    """Path of an artifact's sidecar: its own below `results/`, or its last two parts elsewhere."""
    path = Path(os.path.relpath(artifact))
    if path.parts[0] == os.pardir:
        path = Path(*Path(os.path.normpath(Path(artifact).absolute())).parts[1:][-2:])
    elif path.parts[0] == "results":
        path = Path(*path.parts[1:])
    return FOLDER / path.with_name(f"{path.name}.json")


def checksum(path: str | os.PathLike[str]) -> str:
    """SHA-256 (hex) of a file, or of the names and contents of all files of a folder."""
    source = Path(path)
    if source.is_dir():
        digest = hashlib.sha256()
        for file in sorted(source.rglob("*")):
            if file.is_file() and file.name != TIMESTAMP:
                digest.update(f"{file.relative_to(source)}:{checksum(file)};".encode())
        return digest.hexdigest()
    with source.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(TREE), *arguments]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


@cache
def commit() -> dict[str, Any]:
    """Commit of the code (None without git), and whether tracked files or new code files differ."""
    top, found = _git("rev-parse", "--show-toplevel"), _git("rev-parse", "HEAD")
    if top is None or found is None or Path(top).resolve() != TREE:
        return {"commit": None, "changed": None}
    changed = _git("status", "--porcelain", "-uno")
    unknown = _git("-C", top, "status", "--porcelain", "--", *SOURCES)
    return {"commit": found, "changed": bool(changed or unknown)}


def peak_mib() -> float:
    """Highest resident memory of this process so far, in MiB."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 2**10 if found else float("nan")


def age() -> float:
    """Seconds since this process started, by a monotonic clock."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
        # After the name, which may have spaces: `starttime` is the 22nd field, in ticks since boot.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return max(0.0, time.time() - psutil.Process().create_time())


def spent() -> dict[str, float]:
    """Wall and CPU seconds of this job so far, imports and child processes included.

    Those of earlier processes count whose checkpoint it goes on from.
    """
    own = {"seconds": age(), "cpu_seconds": sum(os.times()[:4])}
    return {name: round(own[name] + _earlier[name], 3) for name in own}


def go_on_after(before: Mapping[str, float]) -> None:
    """Count what a checkpoint says was `spent` until then; of several checkpoints, the most."""
    for name, seconds in _earlier.items():
        _earlier[name] = max(seconds, float(before.get(name, 0.0)))


def measured() -> dict[str, float | int]:
    """Resources used by this job, see `spent`; memory and threads are those of this process."""
    torch = sys.modules.get("torch")
    return {
        **spent(),
        "peak_mib": round(peak_mib(), 1),
        "torch_threads": torch.get_num_threads() if torch else 0,
    }


def gpu() -> str | None:
    """Name of the card that this process computed on, if any."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name()) if torch and torch.cuda.is_initialized() else None


def read(path: Path) -> dict[str, Any]:
    """Read a sidecar."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def check(path: str | os.PathLike[str]) -> None:
    """Raise `ArtifactError` if a file differs from its sidecar, or became a folder.

    A file without a sidecar, or of the shared cache, may come from another checkout: it is skipped.
    """
    place = path_of(path)
    if Path(path).is_symlink() or not Path(path).exists() or not place.is_file():
        return
    try:
        made = read(place)
        artifact, wanted = made["artifact"], made["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        return  # results/provenance.json reports it.
    if artifact == os.fspath(path) and checksum(path) != wanted:
        raise ArtifactError(
            f"{path} was changed after it was made, by its SHA-256 in {place}; {again(path)}."
        )


def jobs(folder: Path) -> list[dict[str, Any]]:
    """One sidecar per job in a folder: that of the output written last."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in map(read, sorted(folder.rglob("*.json"))):
        wildcards = tuple(sorted(entry["wildcards"].items()))
        job = entry["rule"], entry["images"], entry["scale"], wildcards
        if job not in found or entry["ended"] >= found[job]["ended"]:
            found[job] = entry
    return list(found.values())


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Jobs of the scripts in `NAMES` that records below `folder` list, with what they took.

    Sidecars stay where jobs ran; a record goes on from machine to machine. `ArtifactError` if
    there are none, or for a row that is not of a record.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}  # files of one job are listed one by one
    for listed in sorted(folder.rglob("artifacts.csv")):
        with listed.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            try:
                entries = [_recorded_job(row) for row in rows if row["rule"] in SCRIPTS]
            except (KeyError, TypeError, ValueError):
                raise ArtifactError(
                    f"{listed}, line {rows.line_num}: expected an artifact, rule, gpu, peak_mib, "
                    "cpu_seconds; take the file from a record (docs/claims.md)."
                ) from None
        for job in entries:
            found[job["script"], job["scale"], job["gpu"], *job["wildcards"].values()] = job
    if not found:
        raise ArtifactError(
            f"{folder} has no artifacts.csv with attacks, scores or trainings; give a record's "
            "folder, such as docs/results/mkor/parts."
        )
    return list(found.values())


def _recorded_job(row: Mapping[str, str]) -> dict[str, Any]:
    """Job of a row; `KeyError`, `TypeError` or `ValueError` for one that is not of a record."""
    script = SCRIPTS[row["rule"]]
    _, _, case, *folders, file = Path(row["artifact"]).parts
    # A training has further files, such as its curve: {model}.curve.csv.
    values = (*folders, file.partition(".")[0])
    wildcards = dict(zip(NAMES[script], values, strict=True))
    took = {name: float(row[name]) for name in ("peak_mib", "cpu_seconds")}
    images, _, scale = case.rpartition("-")
    if scale not in SCALES or not all(0 < amount < math.inf for amount in took.values()):
        raise ValueError(row)
    where = {"images": images, "scale": scale, "wildcards": wildcards}
    return {"script": script, **where, "gpu": row["gpu"], **took}


def write(snakemake: Any) -> None:
    """Write the sidecar of each output of a job that has just succeeded."""
    sums = {str(path): checksum(path) for path in snakemake.output}
    shared = {
        "rule": snakemake.rule,
        # Snakemake runs a copy named tmp….attack.py.
        "script": Path(sys.argv[0]).stem.rpartition(".")[2],
        "images": snakemake.config.get("images"),
        "scale": snakemake.config.get("scale"),
        "wildcards": dict(snakemake.wildcards.items()),
        "input": sorted(str(path) for path in snakemake.input),
        "params": json.loads(json.dumps(dict(snakemake.params.items()), default=str)),
        "threads": snakemake.threads,
        "versions": {"python": platform.python_version(), **versions()},
        **commit(),
        "host": socket.gethostname(),
        "gpu": gpu(),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **measured(),
    }
    for path, digest in sums.items():
        write_json(path_of(path), {"artifact": path, "sha256": digest, **shared})
