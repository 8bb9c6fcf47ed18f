"""Backward passes for Soteria and for a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gradleak.client.defences import soteria
from gradleak.models.files import read


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table: a row for each network in files ``models``."""
    chains = [chain for path in files["models"] for chain in read(path).chains]
    return pd.DataFrame([soteria.cost(chain) for chain in chains])
