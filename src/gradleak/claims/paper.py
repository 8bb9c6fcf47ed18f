"""A paper's own tables as evidence on its sentences."""

import pandas as pd

from gradleak.claims.forms import Column, Runs
from gradleak.claims.model import Claim, Claims
from gradleak.claims.printed import Printed, column_key, texts

# Printed numbers correspond to runs: each image has one.
PLACE = {"model": "", "seed": "0", "batch": "0", "index": "", "answer": "0"}


def printed_runs(claims: Claims) -> pd.DataFrame:
    """Printed values of the paper: a row per cell with its selection, `metric`, `value` and `text`.

    Cells about a batch as a whole (such as its best image) are left out. ``index`` is the image of
    a cell; means over images have none.
    """
    rows = []
    for claim in claims.claims:
        query, cell = claim.query, claim.cell
        if cell is None or not isinstance(query, Runs) or not claim.is_printed:
            continue
        if query.of != "batches":
            text = f"{cell.row}, {cell.column}: {claim.shown}"
            where = {key: " or ".join(wanted) for key, wanted in texts(query.where).items()}
            number = {"metric": query.metric, "value": claim.paper_value, "text": text, "ok": True}
            rows.append({**PLACE, "index": where.get("name", ""), **where, **number})
    frame = pd.DataFrame(rows, columns=None if rows else [*PLACE, "metric", "value", "text", "ok"])
    return frame.astype({"value": float, "ok": bool})


def printed(claims: Claims) -> Printed:
    """Return all printed numbers of a paper as evidence."""
    numbers = [claim for claim in claims.claims if claim.is_printed]
    columns: dict[str, Claim] = {}
    for claim in numbers:
        if isinstance(claim.query, Column):
            columns.setdefault(column_key(claim.query), claim)
    return Printed(scores=printed_runs(claims), numbers=tuple(numbers), columns=dict(columns))
