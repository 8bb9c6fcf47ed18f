"""Passes back that Soteria takes, and that a gradient takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gradleak.defences import soteria
from gradleak.models.files import read


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Table from files: a row for each network of ``models``."""
    chains = [chain for path in files["models"] for chain in read(path).chains]
    return pd.DataFrame([soteria.cost(chain) for chain in chains])
