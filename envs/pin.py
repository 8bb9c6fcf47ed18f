"""Write envs/gradleak.yaml from requirements.lock: `python envs/pin.py`.

Snakemake copies an environment file before it builds it, so the file cannot refer to the lock and
must name the versions itself. A test compares the two.
"""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "3.11"
TARGET = {
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
HEADER = """\
# Environment of every rule for `--sdm conda`, written by `python envs/pin.py` from the lock.
# Python packages come from the Python package index: conda channels lag behind torch.
"""


def locked() -> dict[str, str]:
    """Exact versions of the lock that hold for `TARGET`, by package name."""
    out = {}
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if re.match(r"[a-z0-9]", line):
            requirement = Requirement(line.removesuffix("\\").strip())
            if requirement.marker is None or requirement.marker.evaluate(TARGET):
                out[requirement.name] = str(requirement.specifier)
    return out


def environment() -> str:
    """Text of envs/gradleak.yaml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = sorted(Requirement(entry).name for entry in project["dependencies"])
    versions = locked()
    pins = "".join(f"      - {name}{versions[name]}\n" for name in names)
    return (
        f"{HEADER}channels:\n  - conda-forge\n  - nodefaults\n"
        f"dependencies:\n  - python={PYTHON}\n  - pip\n  - pip:\n{pins}"
    )


if __name__ == "__main__":
    (ROOT / "envs" / "gradleak.yaml").write_text(environment(), encoding="utf-8")
