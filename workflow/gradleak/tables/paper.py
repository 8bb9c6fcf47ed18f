"""A paper's table with our numbers beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from gradleak.claims import Evidence, load, table


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Table from files.

    Parameters
    ----------
    files
        ``claims``, the paper's claims file, and what they are judged by: ``scores``, ``security``,
        ``rank`` and ``tables``, as far as there are such.
    words
        ``name`` of the table in the claims file.
    case
        Image source and scale.
    """
    given = {kind: files.get(kind, []) for kind in ("scores", "security", "rank", "tables")}
    found = table(load(files["claims"]), Evidence.read(**given), words["name"], **case)
    return found[found["paper"].notna()]
