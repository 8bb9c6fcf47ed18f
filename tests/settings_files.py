"""Settings that the source tree ships, as they are written, in one mapping."""

import copy

from conftest import ROOT
from gradleak.config import yaml_checks


def whole(path=ROOT / "config.yaml"):
    """Keys of config.yaml and of the files that it includes, to change and to write back."""
    return yaml_checks.with_included(yaml_checks.read(path))[0]


def changed(settings, path, value):
    """A copy of settings with another value at a path such as ``models.net.layers.0.conv``."""
    raw = copy.deepcopy(settings)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = raw
    for part in parents:
        place = place[part]
    place[last] = value
    return raw
