"""Reading a claims file: YAML, with grids and loops written out to one claim each."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from gradleak.claims.model import Claim, Claims, Needs, Tolerance
from gradleak.claims.queries import Answers, Closed, Where
from gradleak.errors import ConfigError

# A number as a paper prints it, with what it prints after ±.
PRINTED = re.compile(r"([+-]?\d+(?:\.(\d+))?(?:e([+-]?\d+))?)(?: ± (\d+(?:\.\d+)?(?:e[+-]?\d+)?))?")


class GridColumn(Closed):
    """A column of a table: its metric, tolerance and the part of the query it sets.

    With `like` it is ours alone, beside the values of that column. `kind` and `needs` are the
    grid's unless they are given.
    """

    id: str
    column: str
    metric: str
    tolerance: str
    decimals: int | None = None
    query: dict[str, Any]
    like: str | None = None
    kind: str | None = None
    needs: Needs | None = None


class GridRow(Closed):
    """A row of a table: its selection, and the paper's values in the order of the columns.

    A value is a number, or text such as ``1.9e-4 ± 7.0e-5``, which also says how it is rounded.
    With `like` the row is ours alone, beside the values of that row. `columns` names the columns
    that the row has, all by default, and `answers` goes into their queries. What `where` says
    counts before what a column's says. `tolerance` and `needs` stand for the columns' own.
    `elsewhere` is the reason why none of its cells is judged; such a row needs no `where`.
    """

    id: str
    row: str
    where: Where = Field(default_factory=dict)
    values: list[float | str] | None = None
    like: str | None = None
    columns: list[str] | None = None
    answers: Answers | None = None
    tolerance: str | None = None
    needs: Needs | None = None
    elsewhere: str | None = None


class Grid(Closed):
    """A table of the paper: every cell becomes a claim ``grid.row.column``."""

    id: str
    table: str
    locator: str
    kind: str
    statement: str
    needs: Needs = Needs()
    columns: list[GridColumn] = Field(min_length=1)
    exceptions: dict[str, list[str]] = Field(default_factory=dict)
    rows: list[GridRow] = Field(min_length=1)


class ClaimsFile(Closed):
    """A claims file as it is written."""

    paper: str
    tolerances: dict[str, Tolerance]
    lists: dict[str, list[Any]] = Field(default_factory=dict)
    grids: list[Grid] = Field(default_factory=list)
    claims: list[dict[str, Any]] = Field(default_factory=list)


def sentence(path: Path, error: ValidationError, claim: str | None = None) -> ConfigError:
    """Put the first error of a file's schema into one sentence: file, key, value, remedy."""
    first = error.errors()[0]
    found = first["input"]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return ConfigError(f"{path}: {message}.")
    keys = ".".join(str(part) for part in first["loc"])
    remedy = {
        "extra_forbidden": "remove the key or correct its name",
        "missing": "add the key",
    }.get(first["type"], "correct the value")
    shown = "" if isinstance(found, dict | list) else f" (found {found!r})"
    where = "" if claim is None else f" claim '{claim}',"
    return ConfigError(f"{path}:{where} key '{keys}': {message}{shown}; {remedy}.")


def _fill(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return value.format_map(names)
    if isinstance(value, list):
        return [_fill(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _fill(item, names) for key, item in value.items()}
    return value


def _loop(path: Path, entry: dict[str, Any], lists: dict[str, list[Any]]) -> Iterator[dict]:
    """Write out ``foreach``: one claim for each combination, names in braces filled in."""
    raw = {key: value for key, value in entry.items() if key != "foreach"}
    claim = entry.get("id", "(without id)")
    foreach = entry.get("foreach")
    if foreach is None:
        yield raw
        return
    if not isinstance(foreach, dict):
        raise ConfigError(
            f"{path}: claim '{claim}', key 'foreach': {foreach!r} is no mapping; write name: list."
        )
    choices = []
    for name, values in foreach.items():
        values = lists.get(values) if isinstance(values, str) else values
        if not isinstance(values, list):
            raise ConfigError(
                f"{path}: claim '{claim}', key 'foreach.{name}': {foreach[name]!r} is neither a "
                f"list nor one of {', '.join(lists) or '(no lists)'}; use one of these."
            )
        choices.append(values)
    for combination in itertools.product(*choices):
        try:
            yield _fill(raw, dict(zip(foreach, combination, strict=True)))
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}: claim '{claim}', a name in braces is not one of "
                f"{', '.join(foreach)} ({error}); correct it or add it to foreach."
            ) from error


def _cells(path: Path, grid: Grid) -> Iterator[dict[str, Any]]:
    """Write out a grid, row by row."""
    tolerances = {cell: name for name, cells in grid.exceptions.items() for cell in cells}
    values = _values(path, grid)
    for row in grid.rows:
        for column in grid.columns:
            if row.columns is not None and column.id not in row.columns:
                continue
            name = f"{row.id}.{column.id}"
            beside = (row.like or row.id, column.like or column.id)
            number = _number(path, grid, name, values.get(beside), column.decimals)
            cell = {"row": row.row, "column": column.column, "metric": column.metric}
            query = _cell_query(row, column)
            statement = grid.statement.format(value=number.pop("text"), **cell)
            ours = row.like is not None or column.like is not None
            yield {
                "id": f"{grid.id}.{name}",
                "locator": grid.locator,
                "kind": column.kind or grid.kind,
                "statement": f"Ours beside the paper's number: {statement}" if ours else statement,
                **number,
                "query": query,
                "tolerance": tolerances.pop(name, row.tolerance or column.tolerance),
                "needs": (row.needs or column.needs or grid.needs).model_dump(),
                "reading": "ours" if ours else "paper",
                "cell": {"grid": grid.id, "table": grid.table, **cell},
            }
    if tolerances:
        raise ConfigError(
            f"{path}: grid '{grid.id}', key 'exceptions': '{next(iter(tolerances))}' is no cell; "
            f"write row.column."
        )


def _cell_query(row: GridRow, column: GridColumn) -> dict[str, Any]:
    """A cell's query: the column's, with the row's selection and answers."""
    if row.elsewhere is not None:
        return {"form": "elsewhere", "reason": row.elsewhere}
    query = {**column.query, "where": {**column.query.get("where", {}), **row.where}}
    return query if row.answers is None else {**query, "answers": row.answers}


def _values(path: Path, grid: Grid) -> dict[tuple[str, str], float | str]:
    """The paper's values by row and column, less those of our own."""
    out: dict[tuple[str, str], float | str] = {}
    theirs = [column.id for column in grid.columns if column.like is None]
    for row in grid.rows:
        columns = [name for name in theirs if row.columns is None or name in row.columns]
        if row.values is None:
            continue
        if len(row.values) != len(columns):
            raise ConfigError(
                f"{path}: grid '{grid.id}', row '{row.id}': {len(row.values)} values for "
                f"{len(columns)} columns; give one value for each."
            )
        out |= {(row.id, name): value for name, value in zip(columns, row.values, strict=True)}
    likes = [row.like for row in grid.rows if row.like]
    unknown = {name for name in likes if name not in [row for row, _ in out]}
    unknown |= {c.like for c in grid.columns if c.like and c.like not in theirs}
    if unknown:
        raise ConfigError(
            f"{path}: grid '{grid.id}', key 'like': '{min(unknown)}' is no row or column with "
            f"values of the paper's; correct it."
        )
    return out


def _number(
    path: Path, grid: Grid, name: str, value: float | str | None, decimals: int | None
) -> dict[str, Any]:
    """A value as a claim's keys, and as text for its statement."""
    if value is None:
        return {"paper_value": None, "decimals": decimals, "text": ""}
    if not isinstance(value, str):
        return {"paper_value": value, "decimals": decimals, "text": f"{value:.{decimals or 0}f}"}
    match = PRINTED.fullmatch(value)
    if match is None:
        raise ConfigError(
            f"{path}: grid '{grid.id}', cell '{name}': {value!r} is no number; write 1.9e-4 or "
            f"1.9e-4 ± 7.0e-5."
        )
    number, digits, power, spread = match.groups()
    return {
        "paper_value": float(number),
        "decimals": len(digits or "") - int(power or 0),
        "spread": float(spread or 0),
        "printed": value,
        "text": value,
    }


def _written_out(path: Path, file: ClaimsFile) -> list[dict[str, Any]]:
    """All claims of a file as raw entries."""
    raw = [cell for grid in file.grids for cell in _cells(path, grid)]
    return raw + [claim for entry in file.claims for claim in _loop(path, entry, file.lists)]


def read_yaml(source: Path) -> Any:
    """Content of a YAML file; a ConfigError says in one sentence why there is none."""
    try:
        return yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: {error}; give a readable file.") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source}: no valid YAML ({reason}); correct that line.") from error


def load(path: str | os.PathLike[str]) -> Claims:
    """Read a claims file and write out its grids and loops.

    Parameters
    ----------
    path
        A file such as ``workflow/claims/copa.yaml``.

    Returns
    -------
    Claims
        One claim for each number and each sentence, in the file's order, grids first.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no YAML, or a key or value is not allowed; the message
        names file, claim and key and says what to do.
    """
    source = Path(path)
    try:
        file = ClaimsFile.model_validate(read_yaml(source))
    except ValidationError as error:
        raise sentence(source, error) from error
    claims = []
    for entry in _written_out(source, file):
        try:
            claims.append(Claim.model_validate({"paper": file.paper, **entry}))
        except ValidationError as error:
            raise sentence(source, error, str(entry.get("id", "(without id)"))) from error
    try:
        return Claims(paper=file.paper, tolerances=file.tolerances, claims=claims)
    except ValidationError as error:
        raise sentence(source, error) from error
