"""Free disk space once figures, tables and claims of a run are made."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gradleak.errors import ArtifactError, ConfigError

ROOT = Path("results")
KEPT = (".csv",)  # accuracies and curves of training runs: small, and tables are made from them


class Freed(NamedTuple):
    """Files removed from one folder."""

    folder: Path
    files: int  # number of files and links removed
    size: int  # bytes freed; a link into the shared cache frees none


def check_alone(targets: Iterable[str]) -> None:
    """Raise `ConfigError` if the target `clean` is requested along with others."""
    asked = list(targets)
    if "clean" in asked and len(asked) > 1:
        raise ConfigError(
            "clean removes what other targets are being made of; ask for it alone: snakemake clean."
        )


def remove(folders: Iterable[str | os.PathLike[str]]) -> list[Freed]:
    """Remove files of `folders` below `results/`, except those that end in `KEPT`.

    Links are removed, never their targets; empty folders too. Raises `ArtifactError` if a folder
    lies outside `results/` or behind a link, or a file cannot be removed.
    """
    chosen = [Path(folder) for folder in folders]
    for folder in chosen:
        _refuse_elsewhere(folder)
    return [_remove(folder) for folder in chosen]


def _refuse_elsewhere(folder: Path) -> None:
    if folder.is_absolute() or ".." in folder.parts or folder.parts[:1] != ROOT.parts:
        raise ArtifactError(
            f"{folder} does not lie in {ROOT}/, so nothing was removed; remove by hand what you "
            "can spare of it."
        )
    for path in (folder, *folder.parents):
        if path.is_symlink():
            raise ArtifactError(
                f"{path} is a link to {path.resolve()}, so nothing was removed; remove by hand "
                "what you can spare of it."
            )


def _remove(folder: Path) -> Freed:
    files = size = 0
    try:
        for place, folders, names in os.walk(folder, topdown=False, onerror=_raise):
            for name in names + [name for name in folders if (Path(place) / name).is_symlink()]:
                path = Path(place) / name
                if path.suffix in KEPT:
                    continue
                status = path.lstat()
                path.unlink()
                files += 1
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
            if not any(Path(place).iterdir()):
                Path(place).rmdir()
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) and Path(error.filename) == folder):
            raise ArtifactError(
                f"Cannot remove {error.filename}: {error.strerror}; change its permissions and ask "
                "for clean again."
            ) from error
    return Freed(folder, files, size)


def _raise(error: OSError) -> None:
    raise error


def words(freed: Iterable[Freed]) -> str:
    """One line for each folder that files were removed from, and the total."""
    rows = [entry for entry in freed if entry.files]
    lines = [f"{_size(row.size):>10}  {row.files:>6} files  {row.folder}" for row in rows]
    total = _size(sum(row.size for row in rows))
    lines.append(f"{total:>10}  {sum(row.files for row in rows):>6} files  freed in all")
    return "\n".join(lines)


def _size(count: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1e3:.1f} kB"
