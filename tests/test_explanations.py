"""Explanations rest on what is there: each place of evidence is followed to its end."""

import re

import pandas as pd
import pytest

from claims_synthetic import ROOT
from gradleak.claims import load, load_explanations
from gradleak.claims.load import Row
from gradleak.claims.statement import items

PAPERS = [path.parent.name for path in sorted(ROOT.glob("papers/*/explanations.yaml"))]


def entries(paper):
    folder = ROOT / "papers" / paper
    why = load_explanations(folder / "explanations.yaml", load(folder / "claims.yaml"))
    return list({id(entry): entry for entry in why.by_id.values()}.values())


def heading(line):
    """The anchor that a page gives a heading."""
    return re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")


def follow(place):
    """What is wrong with a page, a heading on one, or a test; empty if it is there."""
    file, _, test = place.partition("::")
    path, _, anchor = file.partition("#")
    if not (ROOT / path).is_file():
        return f"{path} is not there"
    text = (ROOT / path).read_text(encoding="utf-8")
    if test:
        return "" if f"def {test}(" in text else f"{path} has no test {test}"
    anchors = {heading(line) for line in text.splitlines() if line.startswith("#")}
    return "" if not anchor or anchor in anchors else f"{path} has no heading {anchor}"


def look_up(row):
    """What is wrong with a row of a recorded table; empty if it shows what is said."""
    if not (ROOT / row.file).is_file():
        return f"{row.file} is not there"
    frame = pd.read_csv(ROOT / row.file, dtype=str, keep_default_na=False)
    for key, wanted in row.where.items():
        frame = frame[frame[key].isin(items(wanted))]
    if len(frame) != 1:
        return f"{row}: {len(frame)} rows"
    found = frame.iloc[0]
    wrong = [key for key, value in row.shows.items() if not same(found[key], value)]
    return "".join(f"{row}: {key} is {found[key]}" for key in wrong)


def same(found, value):
    """True if a cell is a text or a number, in as many digits as that is given with."""
    text = value if isinstance(value, str) else repr(value)
    try:
        number, mantissa = float(text), text.lower().partition("e")[0]
    except ValueError:
        return found == text
    digits = len(mantissa.lstrip("-").replace(".", "").lstrip("0")) or 1
    return found != "" and float(f"{float(found):.{digits - 1}e}") == number


@pytest.mark.parametrize("paper", PAPERS)
def test_evidence_is_there_and_shows_what_is_said(paper):
    wrong = []
    for entry in entries(paper):
        for place in entry.evidence:
            wrong += filter(None, [look_up(place) if isinstance(place, Row) else follow(place)])
    assert wrong == []


ROW = {"file": "docs/results/copa/copa_table1.csv", "where": {"row": "CNN3 Variant 1"}}


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("docs/none.md", "is not there"),
        ("docs/claims.md#none", "no heading none"),
        ("docs/claims.md#verdicts", ""),
        ("tests/test_claims.py::none", "no test none"),
        ("tests/test_claims.py::test_tables", ""),
    ],
)
def test_places_that_are_not_there_are_noticed(place, words):
    assert words in follow(place) and bool(words) == bool(follow(place))


@pytest.mark.parametrize(
    ("where", "shows", "words"),
    [
        ({}, {"ours": 1}, "8 rows"),
        ({"metric": "c"}, {"ours": -2270}, "ours is -2266.5"),
        ({"metric": "c"}, {"ours": -2266.5}, ""),
        ({"metric": "c"}, {"verdict": "differs"}, "verdict is "),
    ],
)
def test_rows_that_show_something_else_are_noticed(where, shows, words):
    row = Row.model_validate({**ROW, "where": {**ROW["where"], **where}, "shows": shows})
    assert words in look_up(row) and bool(words) == bool(look_up(row))


def test_numbers_are_compared_in_the_digits_that_are_given():
    assert same("0.013456", 0.0135) and same("0.013456", 0.01) and not same("0.013456", 0.0134)
    assert same("0.00395", "0.0040") and not same("0.00395", "0.00400") and same("a b", "a b")
    assert same("-2266.5", -2266.5) and same("1.2e-13", 1e-13) and not same("", 1.0)
