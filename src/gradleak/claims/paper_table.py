"""A paper's table beside our numbers."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gradleak.claims import Evidence, load, table


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table ``name`` of `words` by the paper's ``claims`` and the available evidence."""
    given = {kind: files.get(kind, []) for kind in ("scores", "security", "rank", "tables")}
    found = table(load(files["claims"]), Evidence.read(**given), words["name"], **case)
    return found[found["paper"].notna()]
