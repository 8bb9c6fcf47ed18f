"""Text of CSV files: a check column that detects damage, and cells that stay text.

The last column of a table that other jobs read is `CHECK`: in each cell the number of rows and the
CRC-32 of all other columns, so truncation and changes are detected even without a sidecar, as in
the shared cache. A table without rows has them in its header.
"""

import csv
import io
import re
import zlib
from collections.abc import Sequence
from typing import Any

CHECK = "check"
# Beginnings of cells that spreadsheets take for a formula (OWASP, CSV injection).
FORMULA = ("=", "+", "-", "@", "\t")
_LINES = re.compile(r"[\r\n]+")
_QUOTED = re.compile(r"'[=+\-@\t]")
_MARK = re.compile(r"\d+:[0-9a-f]{8}")


def as_text(cell: Any) -> Any:
    """Quote a cell that looks like a formula, unless it is a number; line breaks become spaces."""
    if not isinstance(cell, str):
        return cell
    if _LINES.search(cell):
        cell = _LINES.sub(" ", cell)
    return f"'{cell}" if cell.startswith(FORMULA) and not _is_number(cell) else cell


def as_written(cell: Any) -> Any:
    """Undo `as_text`: the cell without that quote."""
    return cell[1:] if isinstance(cell, str) and _QUOTED.match(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def with_check(text: str) -> str:
    """Add the column `CHECK` to a table; each row ends with a line feed and contains no other."""
    lines = text.removesuffix("\n").split("\n")
    return "".join(f"{line},{mark}\n" for line, mark in zip(lines, _marks(lines), strict=True))


def checked(text: str) -> str:
    """Remove the column `CHECK` of a table, if present, after verifying it.

    Raises ValueError if the table is empty, has no rows although it was written with some, is cut,
    has a row of another length than the header, or differs from what was written.
    """
    if not text.strip():
        raise ValueError("it is empty")
    if not text.endswith("\n"):
        raise ValueError("it ends within a row")
    lines = text.removesuffix("\n").split("\n")
    # Look at the rows as well: the change may be in the header.
    last = [line.rpartition(",")[2].rstrip("\r") for line in lines[:2]]
    marked = last[0] == CHECK or _MARK.fullmatch(last[-1])
    if marked:
        lines = _compared(lines)
        text = "".join(f"{line}\n" for line in lines)
    head, *rows = csv.reader(io.StringIO(text))
    if not rows and not marked:
        raise ValueError("it has no rows")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(head):
            raise ValueError(f"line {number} has {len(row)} cells where {len(head)} are expected")
    return text


def _compared(lines: Sequence[str]) -> list[str]:
    """Lines without their marks, which must be right."""
    rows, marks = zip(*(line.rpartition(",")[::2] for line in lines), strict=True)
    found = len(rows) - 1
    if list(marks) != _marks(rows):
        if marks == (CHECK,):
            raise ValueError("it has no rows")
        count = marks[-1].partition(":")[0]
        if count.isdigit() and int(count) != found:
            raise ValueError(f"it has {found} rows where {count} were written")
        raise ValueError("a cell differs from what was written")
    return list(rows)


def _marks(lines: Sequence[str]) -> list[str]:
    """Cells of the column `CHECK`: its name, and a mark that is the same in all rows."""
    count = len(lines) - 1
    mark = f"{count}:{zlib.crc32(chr(10).join(lines).encode()):08x}"
    return [CHECK, *[mark] * count] if count else [mark]
