"""Content of the report: papers with their figures, tables and claims."""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from gradleak.claims import COLUMNS, Claims, Explanations
from gradleak.claims.forms.base import EXTREMES
from gradleak.claims.metrics import label
from gradleak.claims.model import Claim
from gradleak.claims.outcome import DIFFERS, EXCEEDS, REFUTED, VERDICTS
from gradleak.errors import ArtifactError
from gradleak.reporting import page_text
from gradleak.reporting.captions import Caption, Captions
from gradleak.reporting.pictures import Embedded
from gradleak.runtime import tidy
from gradleak.runtime.artifacts import again, read_csv

LONG, SHOWN = 300, 100  # tables without verdicts are cut above this number of rows, to this many
# Intervals in tables whose rows answer no claim.
OF_TABLES = {
    "copa_images": "95 %: one further run",
    "copa_index": "95 %",
    "fedkl_accuracy": "95 %",
    "fedkl_adaptive": "95 %: the mean",
    "fedkl_propositions": EXTREMES,
    "rgap_fig4": "95 %",
    "rgap_resnet101": "95 %",
}
# A hyphen used as minus sign, of a number or an exponent.
HYPHEN = re.compile(r"(?<!\w)-(?=[\d.])|(?<=\de)-(?=\d)")


@dataclass(frozen=True)
class Ours:
    """Our number, its interval and the interval's meaning (`Form.interval`), and counts of runs."""

    ours: float | None
    low: float | None
    high: float | None
    n: int | None
    n_ok: int | None
    span: str


@dataclass(frozen=True)
class Judged(Ours):
    """A claim as in claims.csv, with the explanation if it failed."""

    id: str
    locator: str
    statement: str
    what: str  # describes our number
    paper: str
    verdict: str
    reason: str
    why: str  # explanation for this run
    elsewhere: str  # one written for another run
    evidence: tuple[str, ...]  # for either

    @property
    def learnt(self) -> str:
        """Run that explains a failed claim: this "run", "another" only, or "nowhere"."""
        if self.verdict != DIFFERS:
            return ""
        return "run" if self.why else "another" if self.elsewhere else "nowhere"


@dataclass(frozen=True)
class Row(Ours):
    """A row of one of our tables, with the claim that it answers, if any."""

    row: str
    column: str
    metric: str
    label: str
    paper: str
    verdict: str
    note: str
    claim: Judged | None


@dataclass(frozen=True)
class Table:
    """A table of results: tidy `rows`, or any other in `header` and `cells`."""

    name: str
    path: Path
    caption: Caption
    total: int  # rows of the file, of which the page may show only the first
    rows: tuple[Row, ...] = ()
    header: tuple[str, ...] = ()
    numeric: tuple[bool, ...] = ()  # marks number columns
    cells: tuple[tuple[object, ...], ...] = ()

    @property
    def verdicts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        return counted(row.verdict for row in self.rows)

    @property
    def shown(self) -> int:
        """Number of rows on the page."""
        return len(self.rows) + len(self.cells)

    @property
    def has(self) -> dict[str, bool]:
        """Flags of optional columns that are not empty."""
        return {
            "metric": any(row.metric for row in self.rows),
            "paper": any(row.paper for row in self.rows),
            "interval": any(row.low is not None for row in self.rows),
            "verdict": any(row.verdict for row in self.rows),
            "note": any(row.note or row.claim for row in self.rows),
        }


@dataclass(frozen=True)
class Figure:
    """A figure with its picture."""

    name: str
    pdf: Path
    caption: Caption
    picture: Embedded


@dataclass(frozen=True)
class Paper:
    """A paper with its results and claims."""

    id: str
    caption: Caption
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]
    claims: tuple[Judged, ...]
    sentences: tuple[Judged, ...]  # claims without a table cell

    @property
    def verdicts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        return counted(claim.verdict for claim in self.claims)

    @property
    def sentences_verdicts(self) -> dict[str, int]:
        """Number of claims without a table cell, by verdict."""
        return counted(claim.verdict for claim in self.sentences)

    @property
    def learnt(self) -> Counter[str]:
        """Number of failed claims by `Judged.learnt`."""
        return Counter(claim.learnt for claim in self.claims if claim.learnt)


def counted(verdicts: Iterable[str]) -> dict[str, int]:
    """Count verdicts, in their fixed order; absent ones are left out."""
    found = Counter(verdicts)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def read_claims(path: Path) -> pd.DataFrame:
    """Read claims.csv; `ArtifactError` if it is unreadable, lacks columns or has other verdicts."""
    frame = read_csv(path)
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise ArtifactError(f"{path} has no column '{missing[0]}'; {again(path)}.")
    unknown = sorted(set(frame["verdict"].dropna()) - set(VERDICTS))
    if unknown or frame["verdict"].isna().any() or frame.empty:
        found = repr(unknown[0]) if unknown else "nothing"
        raise ArtifactError(f"{path}: {found} is no verdict; {again(path)}.")
    return frame


def judged(frame: pd.DataFrame, claims: Claims, why: Explanations | None) -> list[Judged]:
    """Return claims of one paper, in the order of claims.csv."""
    by_id = {claim.id: claim for claim in claims.claims}
    found = []
    for row in frame[frame["paper"] == claims.paper].to_dict("records"):
        claim, own = by_id.get(str(row["id"])), _text(row["explanation"])
        failed = row["verdict"] in (DIFFERS, EXCEEDS, REFUTED)
        more = why.by_id.get(str(row["id"])) if why and failed else None
        judge = Judged(
            **_texts(row, "id", "locator", "statement", "verdict", "reason"),
            **_ours(row),
            what=claim.query.ours(claims.tolerances[claim.tolerance]) if claim else "",
            paper=_stated((claim.printed if claim else "") or row["paper_value"]),
            span=_span(claims, claim),
            why=own,
            elsewhere=more.text if more and not own else "",
            evidence=tuple(more.evidence) if more else (),
        )
        found.append(judge)
    return found


def _span(claims: Claims, claim: Claim | None, otherwise: str = "") -> str:
    return claim.query.interval(claims.tolerances[claim.tolerance]) if claim else otherwise


def table(path: Path, caption: Caption, claims: Claims, found: Mapping[str, Judged]) -> Table:
    """Read one of our tables, its rows beside the claims that they answer."""
    frame = read_csv(path)
    if not set(tidy.TABLES) <= set(frame):
        return _plain(path, caption, frame)
    # Several rows with one name match claims in order: the paper's numbers have a verdict.
    places: dict[tuple[str, str, str, bool], list[Claim]] = {}
    for claim in claims.claims:
        if claim.cell and claim.cell.table == path.stem:
            at = (claim.cell.row, claim.cell.column, claim.cell.metric, claim.is_number)
            places.setdefault(at, []).append(claim)
    kept = frame if frame["verdict"].notna().any() or len(frame) <= LONG else frame.head(SHOWN)
    rows = []
    for row in kept.to_dict("records"):
        name = (_text(row["row"]), _text(row["column"]), _text(row["metric"]))
        waiting = places.get((*name, _text(row["verdict"]) != ""))
        asked = waiting.pop(0) if waiting else None
        judge = found.get(asked.id) if asked else None
        made = Row(
            label=label(name[2]),
            paper=judge.paper if judge else _stated(row["paper"]),
            claim=judge,
            span=_span(claims, asked, OF_TABLES.get(path.stem, "")),
            **_texts(row, "row", "column", "metric", "verdict", "note"),
            **_ours(row),
        )
        rows.append(made)
    return Table(path.stem, path, caption, len(frame), rows=tuple(rows))


def _plain(path: Path, caption: Caption, frame: pd.DataFrame) -> Table:
    kept = frame.head(SHOWN) if len(frame) > LONG else frame
    return Table(
        path.stem,
        path,
        caption,
        len(frame),
        header=tuple(map(str, frame)),
        numeric=tuple(is_numeric_dtype(kind) and not is_bool_dtype(kind) for kind in frame.dtypes),
        cells=tuple(tuple(map(_cell, row)) for row in kept.itertuples(index=False)),
    )


def paper(
    claims: Claims,
    found: Sequence[Judged],
    figures: Mapping[Path, Embedded],
    tables: Sequence[Path],
    captions: Captions,
) -> Paper:
    """Return the content for one paper, figures and tables in the given order."""
    by_id = {claim.id: claim for claim in found}
    made = tuple(table(path, captions.of("tables", path.stem), claims, by_id) for path in tables)
    placed = {row.claim.id for part in made for row in part.rows if row.claim}
    return Paper(
        id=claims.paper,
        caption=captions.of("papers", claims.paper),
        figures=tuple(
            Figure(path.stem, path.with_suffix(".pdf"), captions.of("figures", path.stem), picture)
            for path, picture in figures.items()
        ),
        tables=made,
        claims=tuple(found),
        sentences=tuple(claim for claim in found if claim.id not in placed),
    )


def _ours(row: Mapping[Hashable, object]) -> dict[str, Any]:
    floats = {name: _float(row[name]) for name in ("ours", "low", "high")}
    counts = {name: _float(row[name]) for name in ("n", "n_ok")}
    return floats | {name: None if n is None else int(n) for name, n in counts.items()}


def _texts(row: Mapping[Hashable, object], *keys: str) -> dict[str, Any]:
    return {key: _text(row[key]) for key in keys}


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
