"""Claims: a paper's numbers and sentences as data, with verdicts from our results."""

from gradleak.claims.evaluate import COLUMNS, evaluate
from gradleak.claims.evidence import Evidence
from gradleak.claims.explanations import Explanations, load_all, load_explanations
from gradleak.claims.load import load
from gradleak.claims.model import Claim, Claims
from gradleak.claims.statistics import interval_of_mean, prediction_interval
from gradleak.claims.table import table

__all__ = [
    "COLUMNS",
    "Claim",
    "Claims",
    "Evidence",
    "Explanations",
    "evaluate",
    "interval_of_mean",
    "load",
    "load_all",
    "load_explanations",
    "prediction_interval",
    "table",
]
