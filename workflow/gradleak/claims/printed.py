"""The numbers that a paper prints, as evidence: a run each, with its text beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd

from gradleak.claims.evidence import Evidence
from gradleak.claims.statement import Answers, Side, Statement, Where, items
from gradleak.errors import ConfigError

# Column of the standard error beside estimates; what a paper prints has none.
ERROR = "error"
# What our experiments are called says nothing of a paper's runs.
IGNORED = ("result",)


def texts(where: Where) -> dict[str, list[str]]:
    """A selection as text, without what a paper's numbers do not tell."""
    return {key: items(wanted) for key, wanted in where.items() if key not in IGNORED}


def column_key(side: Side) -> str:
    """Text that is the same for sides of the same numbers."""
    return f"{side.table};{side.column};{side.total};{sorted(texts(side.where).items())}"


@dataclass(frozen=True, eq=False)
class Printed(Evidence):
    """A paper's printed numbers; `scores` has the selection of each run and its ``text``."""

    numbers: tuple[Statement, ...] = ()  # every number of the paper's
    # Those of columns of tables, by `column_key`.
    columns: dict[str, Statement] = field(default_factory=dict)

    def runs(self, where: Where, metric: str, answers: Answers = "own") -> pd.DataFrame:
        """Cells of a selection; none if a selected value is not in the paper's tables."""
        found = self.scores[self.scores["metric"] == metric]
        for key, wanted in texts(where).items():
            if key not in found or not set(wanted) <= set(found[key]):
                return found.iloc[:0]
            found = found[found[key].isin(wanted)]
        return found.reset_index(drop=True)

    def column(self, side: Side) -> np.ndarray:
        """The one number of a column that `prints`; its error is 0."""
        return np.array([0.0 if side.column == ERROR else self.of(side).value])

    def prints(self, side: Side) -> bool:
        """Whether the paper has a number of that side."""
        return column_key(side) in self.columns

    def of(self, side: Side) -> Statement:
        """The paper's number of a side that it `prints`."""
        return self.columns[column_key(side)]

    def named(self, patterns: Sequence[str], claim: Statement) -> list[Statement]:
        """Numbers by the ids of their claims; * stands for any part of one.

        Raises
        ------
        ConfigError
            If a pattern names none.
        """
        found: list[Statement] = []
        for pattern in patterns:
            some = [one for one in self.numbers if fnmatchcase(one.id, pattern)]
            if not some:
                raise ConfigError(
                    f"claim '{claim.id}': no claim with a number of the paper's is called "
                    f"'{pattern}'; correct the id."
                )
            found += some
        return found
