"""Files that a recorded claim rests on, and commands that judge it again and make them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradleak.claims import recorded
from gradleak.claims.evidence import Evidence
from gradleak.claims.forms.base import PAPER
from gradleak.claims.model import Claim
from gradleak.claims.outcome import NotJudged, joined
from gradleak.claims.statement import LAYERED, Side
from gradleak.runtime.artifacts import read_csv

Row = dict[str, Any]  # of a claims file


@dataclass(frozen=True)
class File:
    """File of the repository, and of an archive the `start` of paths in it."""

    path: str
    start: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.start}" if self.start else self.path

    @property
    def part(self) -> str:
        """Part of a record that it is in; empty if it is in none."""
        return self.path.partition(f"/{recorded.PARTS}/")[2].partition("/")[0]

    @property
    def of(self) -> str:
        """Experiment or training of its part, which has a name of its own with some attacks."""
        return self.start.rstrip("/").rpartition("/")[2] or self.part


@dataclass(frozen=True)
class Parts:
    """Parts of the papers' records."""

    tables: tuple[Path, ...] = ()  # those that claims read
    # Paths of the files that a part holds, by paper and part.
    held: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def read(results: Path) -> "Parts":
        """Read the parts of the records in a folder; `ArtifactError` if one is damaged."""
        found = sorted(results.glob(f"*/{recorded.PARTS}/*/*.csv"))
        held = {
            (path.parts[-4], path.parts[-2]): tuple(read_csv(path, ["artifact"])["artifact"])
            for path in found
            if path.name == recorded.ARTIFACTS
        }
        return Parts(tuple(path for path in found if path.name not in recorded.NO_TABLES), held)

    def with_tables(self, paper: str, queries: object) -> Iterator[tuple[str, str]]:
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


def without_run(row: Row) -> str:
    """Say what a claim that needs no run rests on; empty if it rests on runs."""
    read = list(filter(None, str(row["evidence"]).split(", ")))
    if not read:
        return "no run here decides it"
    if not all(name == PAPER or "." in name for name in read):
        return ""
    what = "the paper's numbers" if PAPER in read else "formulas"
    return f"it rests on {what} alone, without a run"


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


def files_of(row: Row, claims: Sequence[Claim], parts: Parts, *, larger: bool) -> Iterator[File]:
    """Files that a verdict rests on; those of parts if it is of a `larger` scale than the rest."""
    paper, case = str(row["paper"]), f"{row['images']}-{row['scale']}"
    folder = f"docs/results/{paper}"
    queries = [claim.query.model_dump(mode="json", exclude_none=True) for claim in claims]
    tables, results, attacks = ({*_values(queries, key)} for key in ("table", "result", "attack"))
    yield File(f"papers/{paper}/claims.yaml")
    yield File(str(row["file"]))
    for name in filter(None, str(row["evidence"]).split(", ")):
        if "." in name:
            yield File(f"src/{name.replace('.', '/')}.py")
        elif name in LAYERED and not larger:
            yield File(f"{folder}/{recorded.EVIDENCE}", f"results/{name}/{case}/")
        elif name in LAYERED:
            starts = [f"results/{name}/{case}/{result}/" for result in sorted(results)]
            yield from _in_parts(parts, paper, starts, attacks)
        elif name in tables and larger:
            for part, table in parts.with_tables(paper, queries):
                if table == name:
                    yield File(f"{folder}/{recorded.PARTS}/{part}/{name}.csv")
        elif name in tables:
            yield File(f"{folder}/{name}.csv")
        elif name != PAPER and larger:
            yield from _in_parts(parts, paper, [f"results/scores/{case}/{name}/"], attacks)
        elif name != PAPER:
            yield File(f"{folder}/{recorded.EVIDENCE}", f"results/scores/{case}/{name}/")


def _in_parts(
    parts: Parts, paper: str, starts: Sequence[str], attacks: Collection[str]
) -> Iterator[File]:
    """Archives of a record's parts that hold files whose paths begin so.

    Where an experiment's attacks are in several parts, those that have some of `attacks`.
    """
    for start in starts:
        found = parts.holding(paper, start)
        wanted = [part for part, stems in found.items() if not stems.isdisjoint(attacks)]
        for part in wanted or found:
            folder = f"docs/results/{paper}/{recorded.PARTS}/{part}"
            yield File(f"{folder}/{recorded.EVIDENCE}", start)


def commands_for(
    row: Row, claim: Claim | None, files: Sequence[File], parts: Parts
) -> Iterator[tuple[str, str]]:
    """Commands that judge a claim again and that make it from scratch, and what they do."""
    alone = without_run(row)
    yield (
        "python -m gradleak.claims.recorded",
        joined("judges the record again, in a minute", alone),
    )
    if alone:
        return
    target, what = f"results/record/{row['paper']}", "everything that the paper's claims rest on"
    if claim is not None and claim.cell is not None:
        target, what = f"results/tables/{claim.cell.table}.csv", "the table with its verdicts"
    settings = f"images={row['images']} scale={row['scale']}"
    rested = [file for file in files if file.part]
    if rested:
        made = sorted({file.of for file in rested})
        target = " ".join(f"results/parts/{of}" for of in made)
        what = f"the part{'s' * (len(made) > 1)} of the record"
        settings += _cut(parts, str(row["paper"]), rested)
    yield f"snakemake --config {settings} -- {target}", f"makes {what}"


def _cut(parts: Parts, paper: str, files: Sequence[File]) -> str:
    """Setting that leaves experiments the attacks of these parts, where other parts have more."""
    cuts = []
    for of, start in sorted({(file.of, file.start) for file in files if file.start}):
        named = {file.part for file in files if file.start == start}
        held = parts.holding(paper, start)
        if named < held.keys():
            attacks = sorted({attack for part in named for attack in held[part]})
            cuts.append(f"{of}: {{attacks: [{', '.join(attacks)}]}}")
    return f" 'experiments={{{', '.join(cuts)}}}'" if cuts else ""
