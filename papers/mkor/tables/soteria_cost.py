"""Backward passes for Soteria and for a gradient."""

import pandas as pd

from gradleak.client.defences import soteria
from gradleak.models.files import read
from gradleak.runtime.tidy import Given


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each network in files ``models``."""
    return pd.DataFrame([soteria.cost(c) for path in files["models"] for c in read(path).chains])
