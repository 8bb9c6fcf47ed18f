"""Read and write the pipeline's files.

Writers write to a temporary file in the same folder and rename it, so readers never see half a
file, however the writer ends (signal, full disk, loss of power). Tensors are stored as safetensors
with all metadata in one JSON string: the format's header does not keep the order of several keys,
and equal inputs must give equal bytes.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gradleak.errors import ArtifactError, ConfigError
from gradleak.runtime.csv_text import as_text, as_written, checked, with_check
from gradleak.runtime.malloc import is_shortage

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import BaseModel

METADATA_KEY = "gradleak"
# Checksums among the metadata: of each array, and of the metadata themselves.
ARRAY_SUMS, OWN_SUM = "crc32_arrays", "crc32"
# Types of weights, gradients and reconstructions.
FLOATS = ("float32", "float64")
# Maximum length of a quoted foreign error.
MOST_WORDS = 200


# Errors of a full, read-only or forbidden disk; the message then mentions space and folders.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block succeeds.

    The content is synced to disk before the rename, so after a loss of power the file is whole or
    absent. The folder is made if need be; leftovers of a killed writer of `path` are removed first.

    Raises
    ------
    ArtifactError
        If the folder or the file cannot be written (no permission, disk full). The temporary
        file is removed and an earlier `path` stays as it was.
    """
    target = Path(path)
    temporary: Path | None = None
    handle: int | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target)
        handle, temporary = _claimed(target)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(
            f"Cannot write {target}: {reason}; free space or choose a folder you may write to."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _claimed(target: Path) -> tuple[int, Path]:
    """Make a temporary file for `target`, locked while the handle is open."""
    while True:
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix
        )
        # Before it was locked, another writer may have removed the file as abandoned.
        if not _lock(handle) or Path(name).exists():
            return handle, Path(name)
        os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file, unless a living process holds it or the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_abandoned(target: Path) -> list[Path]:
    """Remove temporary files of killed writers of `target` (their locks are free); return them."""
    pattern = re.compile(rf"\.{re.escape(target.stem)}\.[a-z0-9_]{{8}}{re.escape(target.suffix)}")
    removed = []
    for path in sorted(target.parent.iterdir()):
        if not pattern.fullmatch(path.name):
            continue
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            if _lock(handle):
                path.unlink(missing_ok=True)
                removed.append(path)
        finally:
            os.close(handle)
    return removed


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
) -> None:
    """Write named arrays and JSON-serialisable metadata, with CRC-32, as a safetensors file."""
    arrays = {key: np.ascontiguousarray(tensors[key]) for key in sorted(tensors)}
    sums = {key: _array_sum(array) for key, array in arrays.items()}
    # As it will be read: JSON has only text keys, and sorts them as such.
    content = json.loads(json.dumps({**metadata, ARRAY_SUMS: sums}))
    content[OWN_SUM] = _own_sum(content)
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    with atomic(path) as temporary:
        save_file(arrays, temporary, metadata={METADATA_KEY: text})


def _array_sum(array: np.ndarray) -> int:
    kind = f"{array.dtype.str}{array.shape}".encode()
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(kind))


def _own_sum(metadata: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


def read_tensors(
    path: str | os.PathLike[str], schema: type[BaseModel] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read all arrays and the metadata that `write_tensors` stored, checked against `schema`.

    Raises `ArtifactError` if the file is missing, truncated or altered, not made by
    `write_tensors`, or its metadata belong to another kind of file.
    """
    with opened(path) as file:
        found, sums = _metadata(file, schema)
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if sums is not None:
            if sums.keys() != tensors.keys():
                odd = sorted(sums.keys() ^ tensors.keys())[0]
                raise ValueError(f"array '{odd}' is {'missing' if odd in sums else 'foreign'}")
            for key, array in tensors.items():
                if _array_sum(array) != sums[key]:
                    raise ValueError(f"array '{key}' differs from what was written")
    return tensors, found


def read_metadata(
    path: str | os.PathLike[str], schema: type[BaseModel] | None = None
) -> dict[str, Any]:
    """Read only the metadata, for files too large to read whole; otherwise as `read_tensors`."""
    with opened(path) as file:
        return _metadata(file, schema)[0]


def _metadata(
    file: Any, schema: type[BaseModel] | None
) -> tuple[dict[str, Any], dict[str, int] | None]:
    """Metadata of an open file and checksums of its arrays (None in files without checksums)."""
    text = (file.metadata() or {}).get(METADATA_KEY)
    if text is None:
        raise ValueError(f"no metadata under '{METADATA_KEY}', so it was not made by this pipeline")
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("its metadata are no record")
    own = found.pop(OWN_SUM, None)
    if own is not None and own != _own_sum(found):
        raise ValueError("its metadata differ from what was written")
    sums = found.pop(ARRAY_SUMS, None)
    if schema is not None:
        schema.model_validate(found)
    return found, sums


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yield an open safetensors file; errors in reading it become `ArtifactError`."""
    with whole(path), safe_open(path, framework="numpy") as file:
        yield file


# Errors of code that reads unexpected contents.
MISFITS = (
    ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError, RuntimeError,
    OSError, SafetensorError, ConfigError,
)  # fmt: skip


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error within into an `ArtifactError` that names the file and the remedy."""
    if Path(path).is_dir():
        raise ArtifactError(
            f"{path} is a folder where a file should be; delete it and ask Snakemake for it again."
        )
    if not Path(path).exists():
        raise ArtifactError(f"{path} is missing; ask Snakemake for it, so that it is made.")
    try:
        yield
    except MISFITS as error:
        if is_shortage(error) or (isinstance(error, OSError) and error.errno in DISK):
            raise
        raise ArtifactError(f"{path} is damaged ({_reason(error)}); {again(path)}.") from error


def _reason(error: Exception) -> str:
    """Cause of an error, in one line."""
    if isinstance(error, json.JSONDecodeError):
        return f"its metadata are no JSON: {error}"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    told = getattr(error, "errors", None)
    if callable(told):  # pydantic's, without the time to import it
        first = told(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else first["msg"]
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]}..."


def check_array(
    tensors: Mapping[str, np.ndarray],
    name: str,
    kinds: Sequence[str],
    shape: Sequence[int | None],
) -> np.ndarray:
    """Return one array of a file after checking its dtype (one of `kinds`) and shape.

    None in `shape` stands for any size from 1 on. Raises ValueError if the array is missing or
    does not match.
    """
    if name not in tensors:
        raise ValueError(f"array '{name}' is missing")
    array = tensors[name]
    if array.dtype.name not in kinds:
        raise ValueError(
            f"array '{name}' is of type {array.dtype} where {' or '.join(kinds)} is expected"
        )
    fits = len(array.shape) == len(shape) and all(
        found >= 1 if wanted is None else found == wanted
        for found, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits:
        expected = ", ".join("n" if wanted is None else str(wanted) for wanted in shape)
        raise ValueError(f"array '{name}' is of shape {array.shape} where ({expected}) is expected")
    return array


def again(path: str | os.PathLike[str]) -> str:
    """Remedy for a damaged file, in words; in the shared cache its copy has to be removed too."""
    if not Path(path).is_symlink():
        return "delete it and ask Snakemake for it again"
    entry = Path(path).resolve()
    return f"delete it and {entry}, which it is a link to, and ask Snakemake for it again"


def write_csv(path: str | os.PathLike[str], frame: pd.DataFrame, *, check: bool = False) -> None:
    """Write a table as CSV with 10 significant digits; missing values are empty.

    Text that a spreadsheet would take for a formula gets a quote before it. With `check`, one more
    column lets `read_csv` detect a damaged table.
    """
    text = _mapped(frame, as_text).to_csv(index=False, float_format="%.10g", lineterminator="\n")
    with atomic(path) as temporary:
        temporary.write_bytes((with_check(text) if check else text).encode())


def _mapped(frame: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """Apply `change` to a table's text; unchanged columns keep their dtype."""
    import pandas as pd

    out = frame
    for name, cells in frame.items():
        if cells.dtype.kind == "O":
            old = cells.tolist()
            new = [change(cell) for cell in old]
            if any(one is not cell for one, cell in zip(new, old, strict=True)):
                out = out.copy(deep=False)
                out[name] = pd.Series(new, index=frame.index, dtype=object)
    return out


def write_rows(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    check: bool = False,
) -> None:
    """Write records as CSV in the format of `write_csv`, without the time to import pandas."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(row[key]) for key in columns} for row in rows)
    text = out.getvalue()
    with atomic(path) as temporary:
        temporary.write_bytes((with_check(text) if check else text).encode())


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.10g}"
    return as_text(value)


def read_csv(
    path: str | os.PathLike[str], columns: Sequence[str] = (), **options: Any
) -> pd.DataFrame:
    """Read a table that a job wrote, without the column `csv_text.CHECK`.

    `columns` must be present; `options` are passed to `pandas.read_csv`. Raises `ArtifactError` if
    the file is missing, empty, truncated or altered, or lacks a column.
    """
    import pandas as pd

    with whole(path):
        # Not `read_text`, which translates line ends.
        text = checked(Path(path).read_bytes().decode("utf-8"))
        frame = pd.read_csv(io.StringIO(text), **options)
        for column in columns:
            if column not in frame:
                raise ValueError(f"it has no column '{column}'")
    return _mapped(frame, as_written)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a small record as indented JSON."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
