"""Claims: a paper's numbers and sentences as data, with verdicts from our results."""

from gradleak.claims.evaluate import COLUMNS, evaluate
from gradleak.claims.evidence import Evidence
from gradleak.claims.load import Explanations, load, load_all, load_explanations
from gradleak.claims.model import Claims
from gradleak.claims.paper_table import table
from gradleak.claims.tally import KINDS, WHOSE

__all__ = [
    "COLUMNS",
    "KINDS",
    "WHOSE",
    "Claims",
    "Evidence",
    "Explanations",
    "evaluate",
    "load",
    "load_all",
    "load_explanations",
    "table",
]
