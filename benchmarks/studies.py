"""Studies of the library by name."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import local_training, norms, private
from benchmarks.client_networks import Images


def make(
    name: str, data: Images, others: Images, folder: Path, amounts: dict[str, Any]
) -> pd.DataFrame:
    """Make the table of a study: ``local_training``, ``norms`` or ``private``.

    `data` are images under attack, `others` those of trainings and proxies; `folder` keeps each
    attack.
    """
    module = {"local_training": local_training, "norms": norms, "private": private}[name]
    return module.compare(data, others, folder, amounts)


def place(folder: str, name: str, amounts: dict[str, Any], code: str) -> Path:
    """Return a study's folder: attacks by other code, or of other amounts, are no part of it."""
    same = {key: value for key, value in amounts.items() if key != "clients"}
    mark = hashlib.sha256(f"{code} {json.dumps(same, sort_keys=True)}".encode()).hexdigest()
    return Path(folder, name, mark[:8])
