"""Claims: a paper's numbers and sentences as data, with verdicts from our results."""

from gradleak.claims.evaluate import COLUMNS, evaluate
from gradleak.claims.evidence import Evidence
from gradleak.claims.explanations import Explanations, load_all, load_explanations
from gradleak.claims.load import load
from gradleak.claims.model import Claims
from gradleak.claims.table import table

__all__ = [
    "COLUMNS",
    "Claims",
    "Evidence",
    "Explanations",
    "evaluate",
    "load",
    "load_all",
    "load_explanations",
    "table",
]
