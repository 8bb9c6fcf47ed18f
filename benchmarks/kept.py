"""Rows of a long comparison in a CSV file that grows by a line for each, to go on from there."""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.errors import ArtifactError

Row = dict[str, Any]


class Kept:
    """Rows in a file, by the values of their keys.

    Parameters
    ----------
    path
        Of the file; it is made if missing. A line that a killed run left unfinished is cut off.
    fields
        Columns. Fields that a row lacks are empty, and NaN for numbers.
    keys
        Columns by which rows are found.
    numbers
        Columns that are numbers; the others are text.
    """

    def __init__(
        self, path: Path, fields: Sequence[str], keys: Sequence[str], numbers: Collection[str]
    ) -> None:
        self.path, self.fields, self.keys = path, tuple(fields), tuple(keys)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(f"{','.join(fields)}\n", encoding="utf-8")
        self.rows = read(path, fields, numbers)
        with path.open("rb+") as file:
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        self._known = {self.key(row) for row in self.rows}

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Values of a row's keys."""
        return tuple(row[key] for key in self.keys)

    def has(self, row: Mapping[str, Any]) -> bool:
        """True if there is a row of the same keys."""
        return self.key(row) in self._known

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        full = {name: row.get(name, float("nan")) for name in self.fields}
        self.rows.append(full)
        self._known.add(self.key(full))
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.fields, lineterminator="\n")
            writer.writerow({k: "" if v != v else v for k, v in full.items()})


def read(path: Path, fields: Sequence[str], numbers: Collection[str]) -> list[Row]:
    """Rows of a file, as far as it is written."""
    text = path.read_text(encoding="utf-8")
    lines = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    if lines.fieldnames is None or tuple(lines.fieldnames) != tuple(fields):
        raise ArtifactError(f"{path} has other columns; delete it, or rename it to keep it.")
    return [
        {k: float(v or "nan") if k in numbers else v for k, v in line.items()} for line in lines
    ]
