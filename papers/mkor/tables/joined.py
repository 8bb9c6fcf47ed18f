"""Concatenate tables of several files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gradleak.runtime.artifacts import read_csv


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table from the rows of files ``parts``."""
    return pd.concat([read_csv(path) for path in files["parts"]], ignore_index=True)
