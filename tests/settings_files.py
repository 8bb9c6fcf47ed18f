"""Settings that the source tree ships, as they are written, in one mapping."""

from pathlib import Path

from gradleak.config import yaml_checks

ROOT = Path(__file__).resolve().parents[1]


def whole(path=ROOT / "config.yaml"):
    """Keys of config.yaml and of the files that it includes, to change and to write back."""
    return yaml_checks.with_included(yaml_checks.read(path))[0]
