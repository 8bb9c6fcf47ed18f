"""Concatenate tables of several files."""

import pandas as pd

from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table from the rows of files ``parts``."""
    return pd.concat([read_csv(path) for path in files["parts"]], ignore_index=True)
