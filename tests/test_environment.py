"""Environments agree with the lock; the lock names no address and has a hash for each file."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_conda_environment_equals_the_lock():
    spec = importlib.util.spec_from_file_location("pin", ROOT / "envs" / "pin.py")
    pin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pin)
    stored = (ROOT / "envs" / "gradleak.yaml").read_text()
    assert stored == pin.environment(), "run `python envs/pin.py` and commit envs/gradleak.yaml"


def test_lock_has_hashes_and_no_addresses():
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert len(entries) > 50
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.split("\n")[0]


def test_this_environment_has_the_locked_versions():
    from importlib.metadata import version

    text = (ROOT / "requirements.lock").read_text()
    for name in ("torch", "snakemake", "safetensors", "scikit-image", "pandas"):
        assert f"{name}=={version(name)}" in text, f"{name} differs from the lock; run `make setup`"
