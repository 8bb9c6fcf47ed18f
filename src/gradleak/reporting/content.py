"""Content of the report: papers with their figures, tables and claims, as the template reads it."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from gradleak.claims import COLUMNS, KINDS, WHOSE, Claims, Explanations, tally
from gradleak.claims.evaluate import PART_OF
from gradleak.claims.forms.base import EXTREMES
from gradleak.claims.load import EXPLAINED, Explanation
from gradleak.claims.metrics import label
from gradleak.claims.model import Claim
from gradleak.claims.outcome import DIFFERS, VERDICTS
from gradleak.errors import ArtifactError
from gradleak.reporting import page_text
from gradleak.reporting.captions import Captions
from gradleak.reporting.pictures import Embedded
from gradleak.runtime import tidy
from gradleak.runtime.artifacts import again, read_csv

LONG, SHOWN = 300, 100  # tables without verdicts are cut above this number of rows, to this many
# Intervals in tables whose rows answer no claim.
OF_TABLES = {
    "copa_images": "95 %: one further run",
    "copa_index": "95 %",
    "copa_layer_index": "95 %",
    "fedkl_accuracy": "95 %",
    "fedkl_adaptive": "95 %: the mean",
    "fedkl_propositions": EXTREMES,
    "fedkl_random_keys": "95 %",
    "rgap_choices": "95 %",
    "rgap_fig4": "95 %",
    "rgap_resnet101": "95 %",
    "rgap_second": "95 %",
    "rgap_settings": "95 %: the mean",
}
# A hyphen used as minus sign, of a number or an exponent.
HYPHEN = re.compile(r"(?<!\w)-(?=[\d.])|(?<=\de)-(?=\d)")

Part = dict[str, Any]  # of the page: names that the template knows, and what it shows for each


def counted(parts: Iterable[Part]) -> dict[str, int]:
    """Count claims or rows by verdict, in their fixed order; absent ones are left out."""
    found = Counter(part["verdict"] for part in parts)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def read_claims(paths: Iterable[Path]) -> pd.DataFrame:
    """Read claims of the papers and of ours, and parts of sentences, in one table.

    Raises `ArtifactError` if a file is unreadable, lacks columns or has other verdicts.
    """
    return pd.concat([_read_claims(path) for path in paths], ignore_index=True)


def _read_claims(path: Path) -> pd.DataFrame:
    frame = tally.read(path, COLUMNS)
    unknown = sorted(set(frame["verdict"].dropna()) - set(VERDICTS))
    if unknown or frame["verdict"].isna().any():
        found = repr(unknown[0]) if unknown else "nothing"
        raise ArtifactError(f"{path}: {found} is no verdict; {again(path)}.")
    return frame


def judged(frame: pd.DataFrame, claims: Claims, explanations: Explanations | None) -> list[Part]:
    """Return claims of one paper, in the order of their files, with what our numbers are.

    ``why`` explains a failed claim for this run, ``elsewhere`` for another one by ``evidence``, and
    ``learnt`` says which explains a claim that differs: this "run", "another" only, or "nowhere".
    """
    by_id = {claim.id: claim for claim in claims.claims}
    rows = frame[frame["paper"] == claims.paper].to_dict("records")
    entries = _explained(rows, explanations)
    found = []
    for row in rows:
        claim, why = by_id.get(str(row["id"])), _text(row["explanation"])
        more = entries.get(str(row["id"]), [])
        elsewhere = "" if why else " ".join(dict.fromkeys(entry.text for entry in more))
        learnt = "run" if why else "another" if elsewhere else "nowhere"
        texts = ("whose", PART_OF, "locator", "kind", "statement", "window", "closeness")
        part = _shown(row, "id", *texts, "verdict", "reason", "evidence") | {
            "read": _text(row["evidence"]),
            "what": claim.query.ours(claims.tolerances[claim.tolerance]) if claim else "",
            "paper": _stated((claim.printed if claim else "") or row["paper_value"]),
            "span": _span(claims, claim),
            "why": why,
            "elsewhere": elsewhere,
            "evidence": [*dict.fromkeys(str(place) for one in more for place in one.evidence)],
            "learnt": learnt if row["verdict"] == DIFFERS else "",
        }
        found.append(part)
    return found


def _explained(
    rows: Sequence[Mapping[Hashable, object]], explanations: Explanations | None
) -> dict[str, list[Explanation]]:
    """Explanations of failed claims by id; those of a sentence are its failed parts'."""
    failed = {str(row["id"]) for row in rows if row["verdict"] in EXPLAINED}
    found: dict[str, list[Explanation]] = {}
    for row in rows:
        name, whole = str(row["id"]), _text(row[PART_OF])
        entry = explanations.by_id.get(name) if explanations and name in failed else None
        if entry is not None:
            found.setdefault(name, []).append(entry)
            if whole in failed:
                found.setdefault(whole, []).append(entry)
    return found


def _span(claims: Claims, claim: Claim | None, otherwise: str = "") -> str:
    """Meaning of an interval (`Form.interval`)."""
    return claim.query.interval(claims.tolerances[claim.tolerance]) if claim else otherwise


def table(path: Path, claims: Claims, found: Mapping[str, Part]) -> Part:
    """Read one of our tables: tidy ``rows`` beside claims that they answer, or other ``cells``."""
    frame = read_csv(path)
    short = frame.head(SHOWN) if len(frame) > LONG else frame
    part: Part = {"name": path.stem, "path": path, "total": len(frame), "header": (), "rows": ()}
    if set(tidy.TABLES) <= set(frame):
        kept = frame if frame["verdict"].notna().any() else short
        part["rows"] = rows = _rows(kept, path.stem, claims, found)
        # Optional columns that are not empty.
        part["has"] = {key: any(row[key] for row in rows) for key in ("metric", "paper", "verdict")}
        part["has"]["interval"] = any(row["low"] is not None for row in rows)
        part["has"]["note"] = any(row["note"] or row["claim"] for row in rows)
    else:
        kept, kinds = short, frame.dtypes
        part["header"] = list(map(str, frame))
        part["numeric"] = [is_numeric_dtype(kind) and not is_bool_dtype(kind) for kind in kinds]
        part["cells"] = [list(map(_cell, row)) for row in kept.itertuples(index=False)]
    return part | {"shown": len(kept), "verdicts": counted(part["rows"])}


def _rows(frame: pd.DataFrame, name: str, claims: Claims, found: Mapping[str, Part]) -> list[Part]:
    # Several rows with one name match claims in order: the paper's numbers have a verdict.
    places: dict[tuple[str, str, str, bool], list[Claim]] = {}
    for claim in claims.claims:
        if claim.cell and claim.cell.table == name:
            at = (claim.cell.row, claim.cell.column, claim.cell.metric, claim.is_judged)
            places.setdefault(at, []).append(claim)
    rows = []
    for row in frame.to_dict("records"):
        part = _shown(row, "row", "column", "metric", "verdict", "note")
        waiting = places.get((part["row"], part["column"], part["metric"], part["verdict"] != ""))
        asked = waiting.pop(0) if waiting else None
        answered = found.get(asked.id) if asked else None
        part["paper"] = answered["paper"] if answered else _stated(row["paper"])
        part |= {"claim": answered, "label": label(part["metric"])}
        rows.append(part | {"span": _span(claims, asked, OF_TABLES.get(name, ""))})
    return rows


def paper(
    claims: Claims,
    found: Sequence[Part],
    figures: Mapping[Path, Embedded],
    tables: Sequence[Path],
    captions: Captions,
) -> Part:
    """Return the content for one paper, figures and tables in the given order."""
    by_id = {claim["id"]: claim for claim in found}
    made = [table(path, claims, by_id) for path in tables]
    placed = {row["claim"]["id"] for part in made for row in part["rows"] if row["claim"]}
    sentences = [claim for claim in found if claim["id"] not in placed]
    own, ours = (_of_kind(found, whose) for whose in WHOSE)
    return {
        "id": claims.paper,
        "caption": captions.of("papers", claims.paper),
        "figures": [
            {"name": path.stem, "pdf": path.with_suffix(".pdf"), "picture": picture}
            | {"caption": captions.of("figures", path.stem)}
            for path, picture in figures.items()
        ],
        "tables": [part | {"caption": captions.of("tables", part["name"])} for part in made],
        "claims": own,  # the paper's
        "ours": ours,
        "verdicts": counted(own),
        "learnt": Counter(claim["learnt"] for claim in own),
        # Claims without a table cell, by kind.
        "sentences": {kind: _of_kind(sentences, kind) for kind in KINDS},
    }


def _of_kind(found: Sequence[Part], kind: str) -> list[Part]:
    if kind == "parts":
        return [claim for claim in found if claim[PART_OF]]
    return [claim for claim in found if claim["whose"] == kind and not claim[PART_OF]]


def _shown(row: Mapping[Hashable, object], *texts: str) -> Part:
    """Texts of a row, and our number with its interval and counts of runs; None if missing."""
    numbers = {key: _float(row[key]) for key in ("ours", "low", "high", "n", "n_ok")}
    counts = {key: None if (n := numbers[key]) is None else int(n) for key in ("n", "n_ok")}
    return {key: _text(row[key]) for key in texts} | numbers | counts


def _text(value: object) -> str:
    return "" if pd.isna(value) else str(value)  # type: ignore[call-overload]


def _float(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload, arg-type]


def _stated(value: object) -> str:
    """Paper's value with its own number of digits."""
    number = None if isinstance(value, str) else _float(value)
    text = value if isinstance(value, str) else "" if number is None else f"{number:.10g}"
    return HYPHEN.sub(page_text.MINUS, text)


def _cell(value: object) -> object:
    """Cell of a table that is not tidy: number, text or None."""
    if isinstance(value, bool | str):
        return str(value)
    number = _float(value)
    return int(number) if number is not None and number.is_integer() else number
