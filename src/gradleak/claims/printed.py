"""Printed numbers of a paper as evidence: one run each, with its text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
import pandas as pd

from gradleak.claims.evidence import Evidence
from gradleak.claims.statement import Answers, Side, Statement, Where, items
from gradleak.errors import ConfigError

# Column of standard errors beside estimates; printed estimates have none.
ERROR = "error"
# Names of our experiments, and the split that we trained on, do not apply to a paper's runs.
IGNORED = ("result", "split")


def texts(where: Where) -> dict[str, list[str]]:
    """Convert a selection to text, without keys that printed numbers do not have."""
    return {key: items(wanted) for key, wanted in where.items() if key not in IGNORED}


def column_key(side: Side) -> str:
    """Return a text that is the same for sides of the same numbers."""
    return f"{side.table};{side.column};{side.total};{sorted(texts(side.where).items())}"


@dataclass(frozen=True, eq=False)
class Printed(Evidence):
    """Printed numbers of a paper; `scores` has the selection of each run and its ``text``."""

    numbers: tuple[Statement, ...] = ()  # all numbers of the paper
    # Numbers in columns of tables, by `column_key`.
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
        """Return the one number of a column that `prints`; its error is 0."""
        return np.array([0.0 if side.column == ERROR else self.of(side).value])

    def prints(self, side: Side) -> bool:
        """True if the paper has a number for that side."""
        return column_key(side) in self.columns

    def of(self, side: Side) -> Statement:
        """Return the paper's number for a side that it `prints`."""
        return self.columns[column_key(side)]

    def named(self, patterns: Sequence[str], claim: Statement) -> list[Statement]:
        """Numbers by the ids of their claims, in which * matches any part; one must match."""
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
