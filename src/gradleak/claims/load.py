"""Load claims files, with grids and loops expanded to one claim each, and explanations."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from gradleak.claims.model import DEFINITION, Case, Claim, Claims, Needs, Nothing
from gradleak.claims.outcome import DIFFERS, EXCEEDS, NOT_TOLD_APART, REFUTED
from gradleak.claims.statement import Answers, Closed, Tolerance, Where, describe
from gradleak.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
EXPLAINED = (DIFFERS, EXCEEDS, NOT_TOLD_APART, REFUTED)
REMEDIES = {"extra_forbidden": "remove the key or correct its name", "missing": "add the key"}
# A printed number, optionally with a value after ±.
PRINTED = re.compile(r"([+-]?\d+(?:\.(\d+))?(?:e([+-]?\d+))?)(?: ± (\d+(?:\.\d+)?(?:e[+-]?\d+)?))?")


class GridColumn(Closed):
    """A column of a table: its metric, tolerance and part of the query."""

    id: str
    column: str
    metric: str
    tolerance: str
    decimals: int | None = None
    query: dict[str, Any]
    like: str | None = None  # ours alone, beside the values of that column
    repeats: str | None = None  # the same runs' number as that column's, in another unit
    nothing_as: str = ""  # the column whose limit decides, in rows that have it
    kind: str | None = None  # default: the grid's
    needs: Needs | None = None  # default: the grid's, or nothing for a definition

    @model_validator(mode="after")
    def _of_sizes(self) -> Self:
        if self.kind == DEFINITION and self.needs is not None:
            raise ValueError("a column of kind definition needs nothing; leave needs out")
        return self


class GridRow(Closed):
    """A row of a table: its selection, and the paper's values in the order of the columns.

    A value is a number, or text such as ``1.9e-4 ± 7.0e-5``, which also determines its rounding.
    """

    id: str
    row: str
    where: Where = Field(default_factory=dict)  # overrides a column's
    values: list[float | str] | None = None
    like: str | None = None  # ours alone, beside the values of that row
    columns: list[str] | None = None  # default: all
    answers: Answers | None = None  # added to the queries
    tolerance: str | None = None  # replaces the columns' own, as `needs` does
    needs: Needs | None = None
    nothing: list[Nothing] | None = None  # replaces the grid's
    nothing_as: str = ""  # a column by which the others find nothing too
    elsewhere: str | None = None  # reason why none of its cells is judged

    def of(self, columns: list[GridColumn]) -> list[GridColumn]:
        """Filter the columns that the row has."""
        return [c for c in columns if self.columns is None or c.id in self.columns]


class Grid(Closed):
    """A table of the paper: every cell becomes a claim ``grid.row.column``."""

    id: str
    table: str
    locator: str
    kind: str
    statement: str
    needs: Needs = Needs()
    nothing: list[Nothing] = Field(default_factory=list)
    # Cells row.column of kind definition; * matches any characters.
    definitions: list[str] = Field(default_factory=list)
    columns: list[GridColumn] = Field(min_length=1)
    exceptions: dict[str, list[str]] = Field(default_factory=dict)
    rows: list[GridRow] = Field(min_length=1)


class ClaimsFile(Closed):
    """A claims file as written."""

    paper: str
    tolerances: dict[str, Tolerance]
    lists: dict[str, list[Any]] = Field(default_factory=dict)
    grids: list[Grid] = Field(default_factory=list)
    claims: list[dict[str, Any]] = Field(default_factory=list)


def parsed(path: Path, kind: type[Model], content: Any, claim: str | None = None) -> Model:
    """Validate the content of a file, or of one of its claims, against its model.

    Raises `ConfigError` for the first invalid key or value, with file, key and remedy.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        found, message = first["input"], first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise ConfigError(f"{path}: {message}.") from error
        keys = ".".join(map(str, first["loc"]))
        remedy = REMEDIES.get(first["type"], "correct the value")
        shown = "" if isinstance(found, dict | list) else f" (found {found!r})"
        where = "" if claim is None else f" claim '{claim}',"
        words = f"{path}:{where} key '{keys}': {message}{shown}; {remedy}."
        raise ConfigError(words) from error


def _fill(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return value.format_map(names)
    if isinstance(value, list):
        return [_fill(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, names) for key, item in value.items()}
    return value


def _loop(path: Path, entry: dict[str, Any], lists: dict[str, list[Any]]) -> Iterator[dict]:
    """Expand ``foreach``: one claim for each combination, with names in braces filled in."""
    raw = {key: value for key, value in entry.items() if key != "foreach"}
    where = f"{path}: claim '{entry.get('id', '(without id)')}'"
    foreach = {} if entry.get("foreach") is None else entry["foreach"]
    if not isinstance(foreach, dict):
        raise ConfigError(f"{where}, key 'foreach': {foreach!r} is no mapping; write name: list.")
    choices: list[Any] = []
    for name, values in foreach.items():
        choices.append(lists.get(values) if isinstance(values, str) else values)
        if not isinstance(choices[-1], list):
            raise ConfigError(
                f"{where}, key 'foreach.{name}': {values!r} is neither a list nor one of "
                f"{', '.join(lists) or '(no lists)'}; use one of these."
            )
    for combination in itertools.product(*choices):
        try:
            names = dict(zip(foreach, combination, strict=True))
            yield _fill(raw, names) if foreach else raw
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{where}, a name in braces is not one of {', '.join(foreach)} ({error}); "
                f"correct it or add it to foreach."
            ) from error


def _cells(path: Path, grid: Grid) -> Iterator[dict[str, Any]]:
    where = f"{path}: grid '{grid.id}'"
    unused = set(grid.definitions)
    tolerances = {cell: name for name, cells in grid.exceptions.items() for cell in cells}
    values = _values(where, grid)
    for row in grid.rows:
        for column in row.of(grid.columns):
            name = f"{row.id}.{column.id}"
            beside = (row.like or row.id, column.like or column.id)
            number = _number(f"{where}, cell '{name}'", values.get(beside), column.decimals)
            cell = {"row": row.row, "column": column.column, "metric": column.metric}
            query = {**column.query, "where": {**column.query.get("where", {}), **row.where}}
            query |= {} if row.answers is None else {"answers": row.answers}
            if row.elsewhere is not None:
                query = {"form": "elsewhere", "reason": row.elsewhere}
            said = grid.statement.format(value=number.pop("text"), **cell)
            ours = row.like is not None or column.like is not None
            definitions = [one for one in grid.definitions if fnmatchcase(name, one)]
            unused.difference_update(definitions)
            kind = DEFINITION if definitions else column.kind or grid.kind
            asked = row.needs or column.needs or grid.needs
            nothing = [*(grid.nothing if row.nothing is None else row.nothing)]
            yield {
                "id": f"{grid.id}.{name}",
                "locator": grid.locator,
                **number,
                "kind": kind,
                "statement": f"Ours beside the paper's number: {said}" if ours else said,
                "query": query,
                "tolerance": tolerances.pop(name, row.tolerance or column.tolerance),
                # What follows from sizes is so in any run; a claim of its own may say otherwise.
                "needs": (Needs() if kind == DEFINITION else asked).model_dump(),
                "whose": "ours" if ours else "paper",
                "repeats": column.repeats or "",
                "nothing": [one.model_dump() for one in nothing if one.metric == column.metric],
                "nothing_as": _beside(grid, row, column),
                "cell": {"grid": grid.id, "table": grid.table, **cell},
            }
    if unused:
        raise ConfigError(
            f"{where}, key 'definitions': '{min(unused)}' matches no cell; write row.column."
        )
    if tolerances:
        raise ConfigError(
            f"{where}, key 'exceptions': '{next(iter(tolerances))}' is no cell; write row.column."
        )


def _beside(grid: Grid, row: GridRow, column: GridColumn) -> str:
    """Id of the cell whose limit decides; a column's own choice only in rows that have it."""
    has = {one.id for one in row.of(grid.columns)} & {column.nothing_as}
    name = row.nothing_as or "".join(has)
    return f"{grid.id}.{row.id}.{name}" if name not in ("", column.id) else ""


def _values(where: str, grid: Grid) -> dict[tuple[str, str], float | str]:
    """Paper's values by row and column, without rows and columns of ours."""
    out: dict[tuple[str, str], float | str] = {}
    theirs = [column for column in grid.columns if column.like is None]
    for row in grid.rows:
        columns = row.of(theirs)
        if row.values is None:
            continue
        if len(row.values) != len(columns):
            raise ConfigError(
                f"{where}, row '{row.id}': {len(row.values)} values for {len(columns)} columns; "
                f"give one value for each."
            )
        out |= {(row.id, c.id): value for c, value in zip(columns, row.values, strict=True)}
    unknown = {row.like for row in grid.rows if row.like} - {row for row, _ in out}
    named = {column.id for column in theirs}
    unknown |= {c.like for c in grid.columns if c.like} - named
    if unknown:
        raise ConfigError(
            f"{where}, key 'like': '{min(unknown)}' is no row or column with values of the "
            f"paper's; correct it."
        )
    if unknown := {c.repeats for c in grid.columns if c.repeats} - named:
        raise ConfigError(
            f"{where}, key 'repeats': '{min(unknown)}' is no column of the paper's; correct it."
        )
    return out


def _number(where: str, value: float | str | None, decimals: int | None) -> dict[str, Any]:
    """Keys of a claim for a value, and its text for the statement."""
    if not isinstance(value, str):
        text = "" if value is None else f"{value:.{decimals or 0}f}"
        return {"paper_value": value, "decimals": decimals, "text": text}
    match = PRINTED.fullmatch(value)
    if match is None:
        raise ConfigError(f"{where}: {value!r} is no number; write 1.9e-4 or 1.9e-4 ± 7.0e-5.")
    number, digits, power, spread = match.groups()
    found = {"paper_value": float(number), "decimals": len(digits or "") - int(power or 0)}
    return {**found, "spread": float(spread or 0), "printed": value, "text": value}


def read_yaml(source: Path) -> Any:
    """Return the content of a YAML file; raise `ConfigError` if it cannot be read."""
    try:
        return yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: {error}; give a readable file.") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source}: no valid YAML ({reason}); correct that line.") from error


def load(path: str | Path) -> Claims:
    """Load a claims file such as ``papers/copa/claims.yaml``, with grids and loops expanded.

    Returns one claim for each number and sentence, in the file's order, grids first. Raises
    `ConfigError` with file, claim, key and remedy.
    """
    source = Path(path)
    file = parsed(source, ClaimsFile, read_yaml(source))
    raw = [cell for grid in file.grids for cell in _cells(source, grid)]
    raw += [claim for entry in file.claims for claim in _loop(source, entry, file.lists)]
    head: dict[str, Any] = {"paper": file.paper}
    claims = [
        parsed(source, Claim, head | entry, str(entry.get("id", "(without id)"))) for entry in raw
    ]
    return parsed(source, Claims, {**head, "tolerances": file.tolerances, "claims": claims})


class Row(Closed):
    """A row of a recorded table that an explanation rests on, and what it has there."""

    file: str  # in docs/results
    where: Where  # columns that select one row
    shows: dict[str, float | str]  # columns with their values, rounded to the digits given

    def __str__(self) -> str:
        shown = ", ".join(f"{column} {value}" for column, value in self.shows.items())
        return f"{self.file}, {describe(self.where)}: {shown}"


class Explanation(Closed):
    """Explanation of why some claims fail, one or a group."""

    # Of every run, without numbers of one; or of a part of a record that is larger than the rest.
    of: Literal["any"] | Case | None = None
    claims: list[str] = Field(min_length=1)  # ids, in which * matches any characters
    text: str = Field(min_length=1)
    # Pages (page.md or page.md#heading), tests (file.py::name) and rows of recorded tables.
    evidence: list[str | Row] = Field(min_length=1)


class ExplanationsFile(Closed):
    """A file of explanations as written, for the run `of`."""

    paper: str
    of: Case
    explanations: list[Explanation]


@dataclass(frozen=True)
class Explanations:
    """Explanations of a paper's claims by claim id, and the run they were written for."""

    of: Case
    by_id: dict[str, Explanation]

    def text(self, claim: str, verdict: str, images: str, scale: str) -> str:
        """Explanation of a failed claim, if written for this run or any; else empty."""
        found = self.by_id.get(claim)
        if found is None or verdict not in EXPLAINED:
            return ""
        of = found.of or self.of
        same = of == "any" or (of.images, of.scale) == (images, scale)
        return found.text if same else ""


def load_explanations(path: str | Path, claims: Claims) -> Explanations:
    """Load explanations of `claims` from a file such as ``papers/copa/explanations.yaml``.

    Raises `ConfigError` if the file is invalid or about another paper, a pattern matches no claim,
    or a claim is explained twice.
    """
    source = Path(path)
    file = parsed(source, ExplanationsFile, read_yaml(source))
    if file.paper != claims.paper:
        raise ConfigError(
            f"{source}: key 'paper': '{file.paper}' is not '{claims.paper}', whose claims these "
            f"are; correct it."
        )
    ids = [claim.id for claim in claims.claims]
    by_id: dict[str, Explanation] = {}
    for entry in file.explanations:
        for pattern in entry.claims:
            some = [name for name in ids if fnmatchcase(name, pattern)]
            if not some:
                raise ConfigError(
                    f"{source}: key 'explanations': '{pattern}' is no claim's id and matches none; "
                    f"correct or remove it."
                )
            if twice := [name for name in some if by_id.setdefault(name, entry) is not entry]:
                raise ConfigError(
                    f"{source}: key 'explanations': claim '{twice[0]}' is explained twice; narrow "
                    f"one of the patterns."
                )
    return Explanations(file.of, by_id)


def load_all(
    claims: Iterable[str | Path], explanations: Iterable[str | Path]
) -> list[tuple[Claims, Explanations | None]]:
    """Load the claims of several papers, each with the explanations file beside it."""
    beside = {Path(path).parent: path for path in explanations}
    read = [(load(path), beside.get(Path(path).parent)) for path in claims]
    return [(found, load_explanations(path, found) if path else None) for found, path in read]
