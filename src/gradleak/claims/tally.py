"""Counts of verdicts, and of tests that stand when all of them are taken together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gradleak.claims.outcome import DIFFERS, REPRODUCED, VERDICTS
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import again, read_csv
from gradleak.settings.fields import SCALES

WHOSE = ("paper", "ours")
# Of rows, each in a file of its own: claims of the paper and of ours, and parts of sentences.
KINDS = (*WHOSE, "parts")
ALPHA = 0.05


def read(path: str | Path, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read a claims file; without rows, as where nothing is of ours, it is an empty table.

    Raises `ArtifactError` if it cannot be read, or lacks one of the `columns`.
    """
    frame = pd.DataFrame()
    if Path(path).is_file():
        head = Path(path).read_text(encoding="utf-8")
        if head.count("\n") == 1 and head.endswith("\n"):
            frame = pd.DataFrame(columns=head.removesuffix("\n").split(","))
    frame = frame if len(frame.columns) > 1 else read_csv(path)
    if missing := [name for name in columns if name not in frame]:
        raise ArtifactError(f"{path} has no column '{missing[0]}'; {again(path)}.")
    return frame


def of_kind(frame: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Rows of one of `KINDS`."""
    part = frame["part_of"].fillna("") != ""
    return frame[part] if kind == "parts" else frame[~part & (frame["whose"] == kind)]


def scales(frame: pd.DataFrame) -> str:
    """Scales of the runs that claims were judged by, as words."""
    return " and ".join(scale for scale in SCALES if (frame["scale"] == scale).any())


def of_tests(frame: pd.DataFrame) -> dict[str, int]:
    """Count tests in rows of claims.csv: ``tests``, and how many ``hold`` or ``fail``.

    ``hold_holm`` and ``fail_holm`` are those left at a level of 0.05 for all tests of a paper
    together (Holm).
    """
    tested = frame[frame["p"].notna()]
    out = {"tests": len(tested)}
    for name, verdict in (("hold", REPRODUCED), ("fail", DIFFERS)):
        found = tested[tested["verdict"] == verdict]
        out |= {name: len(found), f"{name}_holm": int((found["holm"] < ALPHA).sum())}
    return out


def of_verdicts(frame: pd.DataFrame) -> dict[str, int]:
    """Count rows of claims.csv by verdict, all verdicts in their order."""
    return {verdict: int((frame["verdict"] == verdict).sum()) for verdict in VERDICTS}


def summary(frame: pd.DataFrame, sizes: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Two rows a paper, its own claims and ours: claims by verdict, tests, and `sizes` by paper."""
    rows = []
    for paper in dict.fromkeys(frame["paper"]):
        found = frame[frame["paper"] == paper]
        for whose in WHOSE:
            own = of_kind(found, whose)
            row = {"paper": paper, "whose": whose, "scale": scales(found)}
            row |= {"claims": len(own)}
            rows.append(row | of_verdicts(own) | of_tests(own) | dict(sizes[paper]))
    return pd.DataFrame(rows)
