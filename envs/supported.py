"""Refuse a Python or machine that the lock has no wheels for: `python envs/supported.py`.

With `--lock` it asks the package index, through uv, whether requirements.lock installs on every
pair that it lets pass; nothing is installed. Old Pythons must be able to read this file.
"""

import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
PYTHONS = ((3, 11), (3, 12), (3, 13))
# Oldest glibc and macOS that PyTorch's wheels are for, and what uv calls each platform.
GLIBC, MACOS = (2, 28), (14, 0)
PLATFORMS = {
    ("Linux", "x86_64"): "x86_64-manylinux_2_28",
    ("Linux", "aarch64"): "aarch64-manylinux_2_28",
    ("Darwin", "arm64"): "aarch64-apple-darwin",
}
# Has no wheel at all; it is plain Python, and setuptools of build.lock builds it.
FROM_SOURCE = "connection-pool"


def refusal(python, system, machine, release):
    """Sentence that refuses a Python on a platform; empty where it is supported.

    Parameters
    ----------
    python
        Version of Python: (3, 11, 7).
    system, machine
        As `platform.uname` has them.
    release
        Version of glibc on Linux, of macOS on a Mac; empty where it is neither.
    """
    if tuple(python[:2]) not in PYTHONS:
        names = [".".join(map(str, one)) for one in PYTHONS]
        return (
            f"gradleak runs on Python {', '.join(names[:-1])} or {names[-1]}, "
            f"not {'.'.join(map(str, python))}; set PYTHON=python{names[0]} or the like."
        )
    oldest = {"Linux": GLIBC, "Darwin": MACOS}.get(system)
    if (system, machine) not in PLATFORMS or tuple(release) < oldest:
        found = {"Linux": "glibc", "Darwin": "macOS"}.get(system, "")
        version = ".".join(map(str, release)) or "none"
        return (
            "gradleak runs on Linux (x86-64 or arm64, glibc 2.28 or newer) and macOS 14 or newer "
            f"(arm64), not on {system} {machine}{f' with {found} {version}' if found else ''}: "
            "its packages have no wheels there; take another machine."
        )
    return ""


def here():
    """Arguments of `refusal` for this Python and machine."""
    system = platform.system()
    name, version = platform.libc_ver() if system == "Linux" else ("", "")
    if system == "Darwin":
        version = platform.mac_ver()[0]
    elif name != "glibc":
        version = ""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return sys.version_info[:3], system, platform.machine(), numbers


def resolve(pair):
    """Ask for all wheels of the lock on one pair: status of uv, and what it said."""
    python, name = pair
    with tempfile.TemporaryDirectory() as folder:
        options = ["--dry-run", "--quiet", "--require-hashes", "--target", folder, "-r", str(LOCK)]
        options += ["--only-binary", ":all:", "--no-binary", FROM_SOURCE]
        options += ["--python-version", ".".join(map(str, python)), "--python-platform", name]
        done = subprocess.run(
            [sys.executable, "-m", "uv", "pip", "install", *options],
            env=dict(os.environ, MACOSX_DEPLOYMENT_TARGET=".".join(map(str, MACOS))),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    return done.returncode, done.stdout.strip()


def check_lock():
    """Sentence that says where the lock does not install; empty where it does everywhere."""
    pairs = [(python, name) for python in PYTHONS for name in PLATFORMS.values()]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(resolve, pairs))
    for (python, name), (status, said) in zip(pairs, answers):  # noqa: B905 (Python 3.9 lacks it)
        if "Failed to fetch" in said:
            print("requirements.lock was not checked on other platforms: no package index answered")
            return ""
        if status:
            return f"requirements.lock: Python {'.'.join(map(str, python))}, {name}: {said}"
    return ""


if __name__ == "__main__":
    sys.exit((check_lock() if sys.argv[1:] == ["--lock"] else refusal(*here())) or None)
