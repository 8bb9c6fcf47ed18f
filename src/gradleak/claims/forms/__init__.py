"""Forms of a query: one class each, with its fields, rules, judge and words."""

from typing import Annotated

from pydantic import Field

from gradleak.claims.forms.arithmetic import Arithmetic, PrintedPsnr, Range
from gradleak.claims.forms.base import Elsewhere, Form
from gradleak.claims.forms.best import Best
from gradleak.claims.forms.columns import (
    Column,
    Columns,
    Correlation,
    Proportion,
    Sometimes,
    Trend,
)  # fmt: skip
from gradleak.claims.forms.estimates import Estimates
from gradleak.claims.forms.limits import Limit, Share
from gradleak.claims.forms.loss import Loss
from gradleak.claims.forms.paired import Close, Compare, Effect
from gradleak.claims.forms.ratio import Ratio
from gradleak.claims.forms.runs import Runs

__all__ = ["Column", "Form", "Query", "Runs"]

OfRuns = Runs | Compare | Best | Close | Effect | Ratio | Limit | Share | Trend
OfTables = Column | Columns | Estimates | Proportion | Sometimes | Correlation
OfPaper = Arithmetic | PrintedPsnr | Range | Loss | Elsewhere
Query = Annotated[OfRuns | OfTables | OfPaper, Field(discriminator="form")]
