"""Reading and writing the pipeline's files.

Writers write to a temporary file in the same folder and rename it, so that a reader never
meets half a file, whatever ends the writer: a signal, a full disk, a loss of power. Tensors are
stored as safetensors with all metadata in one JSON string: the format's header does not keep the
order of several keys, and equal inputs must give equal bytes.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from gradleak.errors import ArtifactError

if TYPE_CHECKING:
    import pandas as pd

METADATA_KEY = "gradleak"


# What a full, read-only or forbidden disk says; the sentence then tells of space and folders.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` when the block succeeds.

    The content reaches the disk before the name does, so that after a loss of power the file is
    whole or absent. What a killed writer of the same file left is removed first.

    Parameters
    ----------
    path
        The file to make. Its folder is made if need be.

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
    """Make a temporary file for `target`, locked for as long as the handle is open."""
    while True:
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.stem}.", suffix=target.suffix
        )
        # Another writer may have taken the file for an abandoned one before it was locked.
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
    """Remove the temporary files of writers of `target` that were killed.

    A living writer holds a lock on its file. The lock of a dead one is free.

    Returns
    -------
    list of Path
        What was removed.
    """
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
    """Write named arrays and their metadata (anything JSON can hold) as one safetensors file."""
    arrays = {key: np.ascontiguousarray(tensors[key]) for key in sorted(tensors)}
    text = json.dumps(metadata, sort_keys=True, ensure_ascii=False)
    with atomic(path) as temporary:
        save_file(arrays, temporary, metadata={METADATA_KEY: text})


def read_tensors(
    path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read all arrays and the metadata that `write_tensors` stored.

    Raises
    ------
    ArtifactError
        If the file is missing, truncated or not made by `write_tensors`.
    """
    source = Path(path)
    if not source.is_file():
        raise ArtifactError(f"{source} is missing; ask Snakemake for it, so that it is made.")
    try:
        with safe_open(source, framework="numpy") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            text = (file.metadata() or {}).get(METADATA_KEY)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{source} is damaged ({error}); {again(source)}.") from error
    if text is None:
        raise ArtifactError(
            f"{source} has no metadata under '{METADATA_KEY}'; it was not made by this pipeline."
        )
    return tensors, json.loads(text)


def again(path: str | os.PathLike[str]) -> str:
    """What to do about a damaged file, in words; of the shared cache, its copy goes too."""
    if not Path(path).is_symlink():
        return "delete it and ask Snakemake for it again"
    entry = Path(path).resolve()
    return f"delete it and {entry}, which it is a link to, and ask Snakemake for it again"


def write_csv(path: str | os.PathLike[str], frame: pd.DataFrame) -> None:
    """Write a table as CSV with 10 significant digits, empty where there is no value."""
    with atomic(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n")


def write_rows(
    path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write records as CSV in the format of `write_csv`, without the time to import pandas."""
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(row[key]) for key in columns} for row in rows)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.10g}"
    return value


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a small record as indented JSON."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
