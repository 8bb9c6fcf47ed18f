"""Show one recorded claim: ``gradleak claim ID``.

Its sentence or cell in the paper, its query and tolerance, the recorded verdict, the files that it
rests on, and the commands that judge and remake it in a checkout. ``gradleak claim --list`` names
all, and with the beginning of an id those of a paper, a table or a figure.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path

import yaml

from gradleak.claims import tally
from gradleak.claims.evaluate import PART_OF
from gradleak.claims.load import load
from gradleak.claims.model import Claim, Claims
from gradleak.claims.origins import File, Parts, Row, commands_for, files_of, without_run
from gradleak.claims.outcome import DIFFERS, joined
from gradleak.claims.statement import Rule
from gradleak.errors import ConfigError
from gradleak.runtime.provenance import ROOT, TREE
from gradleak.settings.fields import SCALES

EXAMPLE = "copa.table2.fig1.v1.truck.copa.mse"
NEAR = 5  # names that are offered for an unknown one
WIDTH = 10  # letters of a label
# When the paper and ours agree, by the rule of a tolerance.
RULES: dict[Rule, str] = {
    "prediction": "the paper's value lies where one further run of ours would",
    "mean": "the paper's value lies in the interval of our mean",
    "absolute": "the two are at most `amount` apart",
    "at_most": "ours is at most `amount`",
    "at_least": "ours is at least `amount`",
    "alpha": "a test has p < `alpha`",
    "equivalence": "the interval of the difference lies within ± `amount`",
}


@dataclass(frozen=True)
class Record:
    """The recorded verdicts, and the folders of the papers' claims."""

    rows: dict[str, Row]  # by id, with the name of its `file`
    claims: Path
    parts: Parts

    @staticmethod
    def read() -> "Record":
        """Read the record of the source tree, or the one in an installed package."""
        packed = ROOT / "record"
        claims, results = (
            (packed, packed) if packed.is_dir() else (TREE / "papers", TREE / "docs/results")
        )
        rows: dict[str, Row] = {}
        for path in sorted(results.glob("*/claims*.csv")):
            frame = tally.read(path, ("id", "verdict", PART_OF)).astype(object)
            for row in frame.where(frame.notna(), "").to_dict("records"):
                own = {str(key): value for key, value in row.items()}
                own["file"] = f"docs/results/{own['paper']}/{path.name}"
                rows[str(own["id"])] = own
        if not rows:
            raise ConfigError(f"{results} holds no recorded claims; install gradleak again.")
        return Record(rows, claims, Parts.read(results))

    def scale(self, paper: str) -> str:
        """Scale of the whole record of a paper, of which parts may be at a larger one."""
        found = {str(row["scale"]) for row in self.rows.values() if row["paper"] == paper}
        return min(found, key=SCALES.index)

    def files(self, row: Row, claims: Sequence[Claim]) -> Iterator[File]:
        """Files of the repository that a verdict rests on."""
        larger = row["scale"] != self.scale(str(row["paper"]))
        return files_of(row, claims, self.parts, larger=larger)

    def of(self, name: str) -> tuple[Claims, list[Claim], list[Row]]:
        """All claims of its paper, the claim of this id or those in parts of it, and the parts."""
        claims = load(self.claims / str(self.rows[name]["paper"]) / "claims.yaml")
        parts = [row for row in self.rows.values() if row[PART_OF] == name]
        ids = {name, *(row["id"] for row in parts)}
        return claims, [claim for claim in claims.claims if claim.id in ids], parts

    def unknown(self, name: str) -> str:
        """Say that there is no such claim, and which are near."""
        every = f"gradleak claim --list lists all {len(self.rows):,}"
        if not name:
            return f"Name a claim, such as {EXAMPLE}; {every}."
        # A misspelt table or figure is near the beginning of an id, not the whole of it.
        begun = {known: name for name in reversed(self.rows) for known in _beginnings(name)}
        within = [known for known in self.rows if name.lower() in known]
        near = [begun[known] for known in get_close_matches(name.lower(), begun, NEAR)]
        found = list(dict.fromkeys([*within, *near]))[:NEAR]
        said = f"near it are {', '.join(found)}; " if found else ""
        return f"There is no recorded claim '{name}'; {said}{every}."


def _beginnings(name: str) -> Iterator[str]:
    return accumulate(name.split("."), "{}.{}".format)


def number(value: object) -> str:
    """Format a number of the record with four digits; whole numbers and halves in full."""
    if value == "":
        return ""
    known = float(str(value))
    return f"{known:.12g}" if (2.0 * known).is_integer() and abs(known) < 1e7 else f"{known:.4g}"


def lines(record: Record, name: str) -> Iterator[str]:
    """Describe a claim, line by line; raise `ConfigError` for an unknown one."""
    if name not in record.rows:
        raise ConfigError(record.unknown(name))
    row = record.rows[name]
    claims, own, parts = record.of(name)
    claim = own[0] if len(own) == 1 and own[0].id == name else None
    yield f"{name}: {row['verdict']}"
    yield f"\n  {row['statement']}\n"
    yield from _labelled(
        {
            "where": f"{row['paper']}, {row['locator']}" + (" (ours)" * (row["whose"] == "ours")),
            "cell": _cell(claim),
            "part of": row[PART_OF],
            **_numbers(row, claims, claim),
            "of": _of(row, parts),
            "reason": row["reason"],
            "why": row["explanation"],
        }
    )
    if claim is not None:
        yield from _asked(claims, claim)
    if parts:
        yield "\nparts"
        yield from (f"  {p['id']}: {p['verdict']}\n    {p['statement']}" for p in parts)
    yield from _made_from(row, claim, own, parts, record)


def _made_from(
    row: Row, claim: Claim | None, own: Sequence[Claim], parts: Sequence[Row], record: Record
) -> Iterator[str]:
    """Files and commands; parts of a sentence may have been judged at different scales."""
    files: dict[str, list[File]] = {}
    for one in parts or [row]:
        wanted = [known for known in own if not parts or known.id == one["id"]]
        files.setdefault(str(one["scale"]), []).extend(record.files(one, wanted))
    yield "\nfiles"
    every = [file for found in files.values() for file in found]
    yield from (f"  {file}" for file in dict.fromkeys([every[0], File(str(row["file"])), *every]))
    yield "\nin a checkout"
    ran = {str(one["scale"]) for one in parts if not without_run(one)} or {str(row["scale"])}
    commands: dict[tuple[str, str], None] = {}
    for scale in sorted(ran, key=SCALES.index):
        there = {**row, "scale": scale}
        commands |= dict.fromkeys(commands_for(there, claim, files[scale], record.parts))
    yield from (f"  {command}  # {what}" for command, what in commands)


def _labelled(found: Mapping[str, object]) -> Iterator[str]:
    return (f"{label:{WIDTH}} {text}" for label, text in found.items() if text != "")


def _cell(claim: Claim | None) -> str:
    if claim is None or claim.cell is None:
        return ""
    cell = claim.cell
    return f"{cell.row} | {cell.column} | {cell.metric} of results/tables/{cell.table}.csv"


def _numbers(row: Row, claims: Claims, claim: Claim | None) -> dict[str, str]:
    """Paper's value and ours, with what they are."""
    tolerance = claims.tolerances[claim.tolerance] if claim else None
    what = claim.query.ours(tolerance) if claim and tolerance else ""
    span = claim.query.interval(tolerance) if claim and tolerance else ""
    printed = claim.printed if claim else ""
    interval = " to ".join(number(row[key]) or "open" for key in ("low", "high"))
    there = row["low"] != "" or row["high"] != ""
    counts = [str(int(row[key])) for key in ("n_ok", "n") if row[key] != ""]
    ps = [f"{key} {number(row[key])}" for key in ("p", "holm") if row[key] != ""]
    side = "against the sentence" if row["verdict"] == DIFFERS else ""
    adjusted = "holm adjusted for all tests" if len(ps) > 1 else ""
    runs = not without_run(row)
    return {
        "paper": printed or number(row["paper_value"]),
        "ours": joined(number(row["ours"]), what if row["ours"] != "" else ""),
        "interval": f"{interval} ({span})" if there and span else interval if there else "",
        ("runs" if runs else "checked") if claim else "judged": " of ".join(dict.fromkeys(counts)),
        "window": _meaning(row["window"], "results that agree with the paper"),
        "closeness": _meaning(row["closeness"], "how near ours is to the paper's number"),
        "test": _meaning(", ".join(ps), joined(side, adjusted)),
    }


def _of(row: Row, parts: Sequence[Row]) -> str:
    """Images and scales of the runs that a claim, or a sentence's parts, were judged by."""
    rows = [one for one in parts or [row] if not without_run(one)]
    scales = dict.fromkeys(str(one["scale"]) for one in rows)
    named = " and ".join(sorted(scales, key=SCALES.index))
    return f"{row['images']} images, {named} scale" if rows and not without_run(row) else ""


def _meaning(found: object, meaning: str) -> str:
    return f"{found} ({meaning})" if found and meaning else str(found)


def _asked(claims: Claims, claim: Claim) -> Iterator[str]:
    """Query and tolerance, as in the claims file."""
    query = claim.query.model_dump(mode="json", exclude_defaults=True)
    rule = claims.tolerances[claim.tolerance]
    tolerance = rule.model_dump(mode="json", exclude_defaults=True)
    agrees = f"tolerance {claim.tolerance} (it agrees if {claim.query.agrees or RULES[rule.rule]})"
    asked = "query (which results, and how they are evaluated)"
    for label, content in ((asked, query), (agrees, tolerance)):
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=92)
        yield f"\n{label}"
        yield from (f"  {line}" for line in text.splitlines())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser."""
    parser.add_argument("id", nargs="?", default="", help=f"claim, such as {EXAMPLE}")
    parser.add_argument("--list", action="store_true", help="ids that begin so, with verdicts")


def run(arguments: argparse.Namespace) -> int:
    """Print a claim, or the ids and verdicts of those that begin alike."""
    record = Record.read()
    if arguments.list:
        rows = [row for name, row in record.rows.items() if name.startswith(arguments.id)]
        if not rows:
            raise ConfigError(record.unknown(arguments.id))
        print("\n".join(f"{row['id']}: {row['verdict']}" for row in rows))
    else:
        print("\n".join(lines(record, arguments.id)))
    return 0
