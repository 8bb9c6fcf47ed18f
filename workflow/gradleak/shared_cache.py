"""Snakemake's cache between checkouts: its folder, and what an entry in it is known by.

Snakemake finds an entry by a hash of a job's script and parameters, of those of all jobs before it,
and of files that no job makes. It does not see the package that scripts import, the libraries, or
what lies in a folder; these come as parameters (`provenance.code_hash`, `provenance.software`,
`listing`).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gradleak.errors import ConfigError, DataError

VARIABLE = "SNAKEMAKE_OUTPUT_CACHE"


def check(location: str | None) -> None:
    """Refuse a cache that Snakemake could not use, before a job has run for nothing.

    Parameters
    ----------
    location
        Value of the environment variable `VARIABLE`.

    Raises
    ------
    ConfigError
        If it is not set, not absolute (links to it would lead nowhere), or no writable folder.
    """
    if not location:
        raise ConfigError(
            f"--cache needs the environment variable {VARIABLE}, which is not set; set it to the "
            "folder of the cache, or leave out --cache."
        )
    if not Path(location).is_absolute():
        raise ConfigError(
            f"{VARIABLE} is {location}, a relative path, to which links from results/ would not "
            "lead; set it to an absolute path."
        )
    if not (Path(location).is_dir() and os.access(location, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"{VARIABLE} is {location}, which is no folder that you may write to; make it, change "
            "its permissions, or leave out --cache."
        )


def listing(folder: str | os.PathLike[str] | None) -> str | None:
    """Hash (16 hex digits) of names, sizes and times of all files below `folder`.

    It stands for their contents, which would take long to read each time Snakemake starts. None
    where `folder` is none, which has contents of its own or is not there.

    Raises
    ------
    DataError
        If the folder cannot be read.
    """
    if not folder or not Path(folder).is_dir():
        return None
    digest = hashlib.sha256()
    try:
        for path in sorted(Path(folder).rglob("*")):
            status = path.stat()
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    except OSError as error:
        raise DataError(
            f"{error.filename or folder} cannot be read ({error.strerror}); change its permissions "
            "or remove it."
        ) from error
    return digest.hexdigest()[:16]
