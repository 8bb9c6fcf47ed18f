"""Write what envs/ takes from requirements.lock: `python envs/pin.py`.

Snakemake copies an environment's files before it builds it, so they cannot refer to the lock, and
one must hold the pins itself: the script, for Snakemake keeps the text of the YAML file with each
result. A test compares all files with the lock.
"""

import re
from pathlib import Path

ENVS = Path(__file__).resolve().parent
LOCK = ENVS.parent / "requirements.lock"
PYTHON = "3.11"
# What builds the packages of the lock that have no wheel.
BUILDERS = ("setuptools",)
WRITTEN = "written by `python envs/pin.py` from requirements.lock"


def entries(text: str) -> dict[str, str]:
    """Entries of a lock by package name and marker, each with its hashes on one line."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    lines = (line.strip() for line in joined.splitlines() if re.match(r"[a-z0-9]", line))
    return {line.split(" --hash")[0]: line for line in lines}


def build_lock(lock: str) -> str:
    """Text of envs/build.lock: what must be there before the lock can be installed."""
    kept = [line for key, line in entries(lock).items() if key.split("==")[0] in BUILDERS]
    missing = len(BUILDERS) - len(kept)
    if missing:
        raise SystemExit(f"requirements.lock lacks {missing} of {', '.join(BUILDERS)}.")
    broken = (line.replace(" --hash", " \\\n    --hash") for line in kept)
    header = f"# Builds the packages that have no wheel, without an index; {WRITTEN}.\n"
    return header + "".join(f"{line}\n" for line in broken)


def conda() -> str:
    """Text of envs/gradleak.yaml, which Snakemake keeps with every file that a job makes."""
    return (
        "# Environment of every rule for `--sdm conda`; written by `python envs/pin.py`.\n"
        "# Python packages are added by gradleak.post-deploy.sh: conda channels lag behind torch.\n"
        "channels:\n  - conda-forge\n  - nodefaults\n"
        f"dependencies:\n  - python={PYTHON}\n  - pip\n"
    )


def post_deploy(lock: str) -> str:
    """Text of envs/gradleak.post-deploy.sh, which Snakemake runs in the new environment."""
    pinned = "".join(f"{line}\n" for line in entries(lock).values())
    install = '"$python" -m pip install'
    return (
        "#!/usr/bin/env bash\n"
        f"# Python packages of every rule for `--sdm conda`; {WRITTEN}.\n"
        "set -euo pipefail\n"
        "# Snakemake puts this file beside the environment. Where that could not be activated,\n"
        "# `python` would be another one.\n"
        'python="${0%.post-deploy.sh}/bin/python"\n'
        "# First what builds packages without a wheel: pip would fetch it unchecked. The lock is\n"
        "# complete, and pip 23 would look in vain for the extra of a pinned package.\n"
        f"{install} --require-hashes -r /dev/stdin <<'END'\n{build_lock(lock)}END\n"
        f"{install} --no-deps --no-build-isolation --require-hashes -r /dev/stdin <<'END'\n"
        f"{pinned}END\n"
    )


INSTALL = "pip install --no-cache-dir"
STEPS = f"""\
{INSTALL} --require-hashes -r /opt/gradleak/build.lock
{INSTALL} --no-deps --no-build-isolation --require-hashes -r /opt/gradleak/requirements.lock
"""
REBUILD = "# No result and no source is copied: jobs find the package in the checkout.\n"


def containerfile() -> str:
    """Text of envs/Containerfile, for docker, podman and buildah."""
    first, second = STEPS.splitlines()
    return (
        f"# Environment of every rule as an image; {WRITTEN.replace(' from', ' for')}.\n"
        f"{REBUILD}"
        "# A tag, for no digest could be looked up where this was written; pin one by\n"
        f"# --build-arg BASE=docker.io/library/python:{PYTHON}-slim@sha256:...\n"
        f"ARG BASE=docker.io/library/python:{PYTHON}-slim\n"
        "FROM ${BASE}\n"
        "COPY requirements.lock envs/build.lock /opt/gradleak/\n"
        f"RUN {first} \\\n && {second}\n"
        "ENV PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib\n"
    )


def definition() -> str:
    """Text of envs/gradleak.def, for Apptainer where no docker or podman is at hand."""
    steps = "".join(f"    {line}\n" for line in STEPS.splitlines())
    return (
        f"# The same image for `apptainer build`; {WRITTEN.replace(' from', ' for')}.\n"
        f"{REBUILD}"
        f"Bootstrap: docker\nFrom: python:{PYTHON}-slim\n\n"
        "%files\n    requirements.lock /opt/gradleak/requirements.lock\n"
        "    envs/build.lock /opt/gradleak/build.lock\n\n"
        f"%post\n    set -e\n{steps}\n"
        "%environment\n    export PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib\n"
    )


def files() -> dict[str, str]:
    """Texts of all files written here, by name."""
    lock = LOCK.read_text(encoding="utf-8")
    return {
        "build.lock": build_lock(lock),
        "gradleak.yaml": conda(),
        "gradleak.post-deploy.sh": post_deploy(lock),
        "Containerfile": containerfile(),
        "gradleak.def": definition(),
    }


if __name__ == "__main__":
    for name, text in files().items():
        (ENVS / name).write_text(text, encoding="utf-8")
