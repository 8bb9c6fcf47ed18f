"""Read and write the pipeline's files.

Writers write to a temporary file and rename it, so readers never see half a file. Tensors are
safetensors with all metadata in one JSON string: the format's header does not keep the order of
several keys, and equal inputs must give equal bytes.
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
from contextlib import contextmanager, suppress
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

FilePath = str | os.PathLike[str]
Arrays = Mapping[str, np.ndarray]
Record = Mapping[str, Any]
METADATA_KEY = "gradleak"
# Checksums among the metadata: of each array, and of the metadata themselves.
ARRAY_SUMS, OWN_SUM = "crc32_arrays", "crc32"
FLOATS = ("float32", "float64")  # of weights, gradients and reconstructions
MOST_WORDS = 200  # characters of a quoted foreign error
# Errors of a full, read-only or forbidden disk; the message then mentions space and folders.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}


def no_folder(place: Path) -> str:
    """Reason why nothing can be written into a folder, which need not exist; empty if it can.

    It is tried, as permissions say nothing about file systems such as /proc.
    """
    absent = [path for path in (place, *place.parents) if not os.path.lexists(path)]
    made: list[Path] = []
    try:
        for path in reversed(absent):
            path.mkdir()
            made.append(path)
        with tempfile.TemporaryFile(dir=place):
            return ""
    except FileExistsError:
        return ""  # Another run is making it.
    except OSError as error:
        if not absent and not place.is_dir():
            return "is not a folder"
        how = "cannot be made a folder" if absent else "cannot be written to"
        return f"{how} ({error.strerror})"
    finally:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir()


@contextmanager
def atomic(path: FilePath) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path`, synced, when the block succeeds.

    The folder is made; leftovers of a killed writer go first. Raises `ArtifactError` if something
    cannot be written: the temporary file is removed and an earlier `path` stays.
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
        raise unusable("write", target, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def unusable(verb: str, target: FilePath, error: Exception) -> ArtifactError:
    """Error that says what cannot be done with a file, and why."""
    reason = getattr(error, "strerror", None) or str(error)
    remedy = "free space or choose a folder you may write to"
    return ArtifactError(f"Cannot {verb} {target}: {reason}; {remedy}.")


def _claimed(target: Path) -> tuple[int, Path]:
    """Make a temporary file for `target`, locked while the handle is open."""
    while True:
        handle, name = tempfile.mkstemp(target.suffix, f".{target.stem}.", target.parent)
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
    for path in sorted(path for path in target.parent.iterdir() if pattern.fullmatch(path.name)):
        with suppress(OSError), path.open("r+b") as file:
            if _lock(file.fileno()):
                path.unlink(missing_ok=True)
                removed.append(path)
    return removed


def write_tensors(path: FilePath, tensors: Arrays, metadata: Record) -> None:
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


def _own_sum(metadata: Record) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


def read_tensors(
    path: FilePath, schema: type[BaseModel] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_tensors` stored; `ArtifactError` if damaged or not as `schema` says."""
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


def read_metadata(path: FilePath, schema: type[BaseModel] | None = None) -> dict[str, Any]:
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
    if own not in (None, _own_sum(found)):
        raise ValueError("its metadata differ from what was written")
    sums = found.pop(ARRAY_SUMS, None)
    if schema is not None:
        schema.model_validate(found)
    return found, sums


@contextmanager
def opened(path: FilePath) -> Iterator[Any]:
    """Yield an open safetensors file; errors in reading it become `ArtifactError`."""
    with whole(path), safe_open(path, framework="numpy") as file:
        yield file


# Errors of code that reads unexpected contents.
MISFITS = (
    ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError, RuntimeError,
    OSError, SafetensorError, ConfigError,
)  # fmt: skip


@contextmanager
def whole(path: FilePath) -> Iterator[None]:
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
    if callable(told := getattr(error, "errors", None)):  # pydantic's, not imported for time
        first = told(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else first["msg"]
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS]}..."


def check_array(
    tensors: Arrays, name: str, kinds: Sequence[str], shape: Sequence[int | None]
) -> np.ndarray:
    """Return an array after a check of dtype and shape, in which None is any size from 1 on."""
    if name not in tensors:
        raise ValueError(f"array '{name}' is missing")
    array, expected = tensors[name], ", ".join("n" if n is None else str(n) for n in shape)
    if array.dtype.name not in kinds:
        known = " or ".join(kinds)
        raise ValueError(f"array '{name}' is of type {array.dtype} where {known} is expected")
    if len(array.shape) != len(shape) or any(
        found < 1 if wanted is None else found != wanted
        for found, wanted in zip(array.shape, shape, strict=True)
    ):
        raise ValueError(f"array '{name}' is of shape {array.shape} where ({expected}) is expected")
    return array


def again(path: FilePath) -> str:
    """Remedy for a damaged file, in words; in the shared cache its copy has to be removed too."""
    if not Path(path).is_symlink():
        return "delete it and ask Snakemake for it again"
    entry = Path(path).resolve()
    return f"delete it and {entry}, which it is a link to, and ask Snakemake for it again"


def write_csv(path: FilePath, frame: pd.DataFrame, *, check: bool = False) -> None:
    """Write a table as CSV with 10 significant digits; missing values are empty.

    Text that a spreadsheet would take for a formula gets a quote before it. With `check`, one more
    column lets `read_csv` detect a damaged table.
    """
    text = _mapped(frame, as_text).to_csv(index=False, float_format="%.10g", lineterminator="\n")
    _write(path, with_check(text) if check else text)


def _write(path: FilePath, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(text.encode())


def _mapped(frame: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """Apply `change` to a table's text; unchanged columns keep their dtype."""
    import pandas as pd

    out = frame.copy(deep=False)
    for name, cells in frame.items():
        if cells.dtype.kind == "O":
            old = cells.tolist()
            new = [change(cell) for cell in old]
            if any(one is not cell for one, cell in zip(new, old, strict=True)):
                out[name] = pd.Series(new, index=frame.index, dtype=object)
    return out


def write_rows(
    path: FilePath, columns: Sequence[str], rows: Iterable[Record], *, check: bool = False
) -> None:
    """Write records as CSV in the format of `write_csv`, without the time to import pandas."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(row[key]) for key in columns} for row in rows)
    _write(path, with_check(out.getvalue()) if check else out.getvalue())


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.10g}"
    return as_text(value)


def read_csv(path: FilePath, columns: Sequence[str] = (), **options: Any) -> pd.DataFrame:
    """Read a table by `pandas.read_csv`; `ArtifactError` if it is damaged or lacks `columns`."""
    import pandas as pd

    with whole(path):
        # Not `read_text`, which translates line ends.
        text = checked(Path(path).read_bytes().decode("utf-8"))
        frame = pd.read_csv(io.StringIO(text), **options)
        if lacking := [column for column in columns if column not in frame]:
            raise ValueError(f"it has no column '{lacking[0]}'")
    return _mapped(frame, as_written)


def write_json(path: FilePath, content: Record) -> None:
    """Write a small record as indented JSON."""
    _write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
