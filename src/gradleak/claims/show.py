"""Show one recorded claim: ``gradleak claim ID``.

Its sentence or cell in the paper, its query and tolerance, the recorded verdict, the files that it
rests on, and the commands that judge and remake it in a checkout. ``gradleak claim --list`` names
all, and with the beginning of an id those of a paper, a table or a figure.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from gradleak.claims import recorded, tally
from gradleak.claims.evaluate import PART_OF
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import PAPER
from gradleak.claims.load import load
from gradleak.claims.model import Claim, Claims
from gradleak.claims.outcome import DIFFERS, NotJudged, joined
from gradleak.claims.statement import LAYERED, Rule, Side
from gradleak.errors import ConfigError
from gradleak.runtime.artifacts import read_csv
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

Row = dict[str, Any]  # of a claims file


@dataclass(frozen=True)
class Record:
    """The recorded verdicts, and the folders of the papers' claims."""

    rows: dict[str, Row]  # by id, with the name of its `file`
    claims: Path
    tables: tuple[Path, ...] = ()  # of parts, those that claims read
    # Paths of what a part holds, by paper and part.
    held: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

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
        tables = results.glob(f"*/{recorded.PARTS}/*/*.csv")
        known = (path for path in sorted(tables) if path.name not in recorded.NO_TABLES)
        listed = sorted(results.glob(f"*/{recorded.PARTS}/*/{recorded.ARTIFACTS}"))
        held = {
            (path.parts[-4], path.parts[-2]): tuple(read_csv(path, ["artifact"])["artifact"])
            for path in listed
        }
        return Record(rows, claims, tuple(known), held)

    def scale(self, paper: str) -> str:
        """Scale of the whole record of a paper, of which parts may be at a larger one."""
        found = {str(row["scale"]) for row in self.rows.values() if row["paper"] == paper}
        return min(found, key=SCALES.index)

    def parts(self, paper: str, queries: object) -> Iterator[tuple[str, str]]:
        """Parts of a paper's record, and their tables, with what queries select."""
        for path in self.tables:
            of, _, part, _ = path.parts[-4:]
            if of == paper and any(_selected(path, side) for side in _sides(queries)):
                yield part, path.stem

    def holding(self, paper: str, start: str) -> dict[str, set[str]]:
        """Parts of a paper's record with files whose paths begin so, and those files' stems.

        The stem of a file of scores is its attack.
        """
        found = {
            part: {Path(path).stem for path in paths if path.startswith(start)}
            for (of, part), paths in self.held.items()
            if of == paper
        }
        return {part: stems for part, stems in found.items() if stems}

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
    files: dict[str, list[str]] = {}
    for one in parts or [row]:
        wanted = [known for known in own if not parts or known.id == one["id"]]
        files.setdefault(str(one["scale"]), []).extend(_files(one, wanted, record))
    yield "\nfiles"
    every = [path for found in files.values() for path in found]
    yield from (f"  {path}" for path in dict.fromkeys([every[0], str(row["file"]), *every]))
    yield "\nin a checkout"
    ran = {str(one["scale"]) for one in parts if not _without_run(one)} or {str(row["scale"])}
    commands: dict[tuple[str, str], None] = {}
    for scale in sorted(ran, key=SCALES.index):
        there = {**row, "scale": scale}
        commands |= dict.fromkeys(_commands(there, claim, files[scale], record))
    yield from (f"  {command}  # {what}" for command, what in commands)


def _labelled(found: Mapping[str, object]) -> Iterator[str]:
    return (f"{label:{WIDTH}} {text}" for label, text in found.items() if text != "")


def _without_run(row: Row) -> str:
    """Say what a claim that needs no run rests on; empty if it rests on runs."""
    read = list(filter(None, str(row["evidence"]).split(", ")))
    if not read:
        return "no run here decides it"
    if not all(name == PAPER or "." in name for name in read):
        return ""
    what = "the paper's numbers" if PAPER in read else "formulas"
    return f"it rests on {what} alone, without a run"


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
    opposite = "of the opposite" if row["verdict"] == DIFFERS else ""
    adjusted = "holm adjusted for all tests" if len(ps) > 1 else ""
    runs = not _without_run(row)
    return {
        "paper": printed or number(row["paper_value"]),
        "ours": joined(number(row["ours"]), what if row["ours"] != "" else ""),
        "interval": f"{interval} ({span})" if there and span else interval if there else "",
        ("runs" if runs else "checked") if claim else "judged": " of ".join(dict.fromkeys(counts)),
        "window": _meaning(row["window"], "results that agree with the paper"),
        "closeness": _meaning(row["closeness"], "how near ours is to the paper's number"),
        "test": _meaning(", ".join(ps), joined(opposite, adjusted)),
    }


def _of(row: Row, parts: Sequence[Row]) -> str:
    """Images and scales of the runs that a claim, or a sentence's parts, were judged by."""
    rows = [one for one in parts or [row] if not _without_run(one)]
    scales = dict.fromkeys(str(one["scale"]) for one in rows)
    named = " and ".join(sorted(scales, key=SCALES.index))
    return f"{row['images']} images, {named} scale" if rows and not _without_run(row) else ""


def _meaning(found: object, meaning: str) -> str:
    return f"{found} ({meaning})" if found and meaning else str(found)


def _asked(claims: Claims, claim: Claim) -> Iterator[str]:
    """Query and tolerance, as in the claims file."""
    query = claim.query.model_dump(mode="json", exclude_defaults=True)
    rule = claims.tolerances[claim.tolerance]
    tolerance = rule.model_dump(mode="json", exclude_defaults=True)
    agrees = f"tolerance {claim.tolerance} (it agrees if {RULES[rule.rule]})"
    asked = "query (which results, and how they are evaluated)"
    for label, content in ((asked, query), (agrees, tolerance)):
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=92)
        yield f"\n{label}"
        yield from (f"  {line}" for line in text.splitlines())


def _nodes(content: object) -> Iterator[Mapping[str, Any]]:
    """Mappings anywhere in a query."""
    if isinstance(content, Mapping):
        yield content
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from _nodes(part)


def _values(content: object, key: str) -> Iterator[str]:
    """Values of a key anywhere in a query, such as the tables that it names."""
    for found in (node[key] for node in _nodes(content) if key in node):
        yield from map(str, found if isinstance(found, list) else [found])


def _sides(content: object) -> Iterator[Side]:
    """Columns of tables anywhere in a query."""
    fields = ("table", "column", "where")
    for node in _nodes(content):
        if node.keys() >= set(fields):
            yield Side.model_validate({key: node[key] for key in fields})


def _selected(path: Path, side: Side) -> bool:
    """Return True if a table has what a query selects."""
    if path.stem != side.table:
        return False
    with suppress(NotJudged):
        return bool(Evidence.read(tables=[path]).column(side).size)
    return False


def _files(row: Row, claims: Sequence[Claim], record: Record) -> Iterator[str]:
    """Files of the repository that a verdict rests on."""
    folder, case = f"docs/results/{row['paper']}", f"{row['images']}-{row['scale']}"
    larger = row["scale"] != record.scale(str(row["paper"]))
    queries = [claim.query.model_dump(mode="json", exclude_none=True) for claim in claims]
    tables, results, attacks = ({*_values(queries, key)} for key in ("table", "result", "attack"))
    yield f"papers/{row['paper']}/claims.yaml"
    yield str(row["file"])
    for name in filter(None, str(row["evidence"]).split(", ")):
        if "." in name:
            yield f"src/{name.replace('.', '/')}.py"
        elif name in LAYERED and not larger:
            yield f"{folder}/{recorded.EVIDENCE}: results/{name}/{case}/"
        elif name in LAYERED:
            starts = [f"results/{name}/{case}/{result}/" for result in sorted(results)]
            yield from _in_parts(record, str(row["paper"]), starts, attacks)
        elif name in tables and larger:
            for part, table in record.parts(str(row["paper"]), queries):
                if table == name:
                    yield f"{folder}/{recorded.PARTS}/{part}/{name}.csv"
        elif name in tables:
            yield f"{folder}/{name}.csv"
        elif name != PAPER and larger:
            start = f"results/scores/{case}/{name}/"
            yield from _in_parts(record, str(row["paper"]), [start], attacks)
        elif name != PAPER:
            yield f"{folder}/{recorded.EVIDENCE}: results/scores/{case}/{name}/"


def _in_parts(
    record: Record, paper: str, starts: Sequence[str], attacks: Collection[str]
) -> Iterator[str]:
    """Files of a record's parts, with the beginnings of paths in them.

    Where an experiment's attacks are in several parts, those that have some of `attacks`.
    """
    for start in starts:
        found = record.holding(paper, start)
        wanted = [part for part, stems in found.items() if not stems.isdisjoint(attacks)]
        for part in wanted or found:
            yield f"docs/results/{paper}/{recorded.PARTS}/{part}/{recorded.EVIDENCE}: {start}"


def _split(file: str) -> tuple[str, str, str]:
    """Part, beginning of paths in it, and experiment or training of a file of `_files`.

    A part with some attacks of an experiment has a name of its own.
    """
    place, _, start = file.partition(": ")
    part = Path(place).parent.name
    return part, start, start.rstrip("/").rpartition("/")[2] or part


def _remade(record: Record, paper: str, files: Sequence[str]) -> tuple[str, str]:
    """Settings and targets that make the parts which `files` are of; empty if they are of none."""
    named: dict[str, set[str]] = {}
    starts: dict[str, str] = {}
    for file in files:
        if f"/{recorded.PARTS}/" in file:
            part, start, of = _split(file)
            named.setdefault(of, set()).add(part)
            starts[of] = start
    cuts = []
    for of, start in starts.items():
        held = record.holding(paper, start) if start else {}
        if len(named[of]) < len(held):
            attacks = sorted({attack for part in named[of] for attack in held[part]})
            cuts.append(f"{of}: {{attacks: [{', '.join(attacks)}]}}")
    settings = f" 'experiments={{{', '.join(sorted(cuts))}}}'" if cuts else ""
    return settings, " ".join(f"results/parts/{of}" for of in sorted(named))


def _commands(
    row: Row, claim: Claim | None, files: Sequence[str], record: Record
) -> Iterator[tuple[str, str]]:
    """Commands that judge a claim again and that make it from scratch, and what they do."""
    alone = _without_run(row)
    yield (
        "python -m gradleak.claims.recorded",
        joined("judges the record again, in a minute", alone),
    )
    if alone:
        return
    target, what = f"results/record/{row['paper']}", "everything that the paper's claims rest on"
    if claim is not None and claim.cell is not None:
        target, what = f"results/tables/{claim.cell.table}.csv", "the table with its verdicts"
    cut, parts = _remade(record, str(row["paper"]), files)
    if parts:
        target, what = parts, f"the part{'s' * (' ' in parts)} of the record"
    settings = f"images={row['images']} scale={row['scale']}{cut}"
    yield f"snakemake --config {settings} -- {target}", f"makes {what}"


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
