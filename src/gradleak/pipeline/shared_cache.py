"""Snakemake's cache between checkouts: its folder, and the hash of its entries.

Snakemake hashes a job's script and parameters, those of all jobs before it, and files that no job
makes, but not the package, the libraries, or contents of folders; these are passed as parameters
(`provenance.code_hash`, `provenance.software`, `listing`).
"""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from gradleak.errors import ConfigError

VARIABLE = "SNAKEMAKE_OUTPUT_CACHE"
# Rules that use it, by their `cache:`.
RULES = (
    "embedded_dataset",
    "unpack_dataset",
    "import_imagenet",
    "lpips_network",
    "train",
    "train_federated",
    "generator",
    "attack",
    "security",
    "rank_analysis",
    "inconspicuous",
)


def check(location: str | None) -> None:
    """Refuse a cache (value of `VARIABLE`) that is not set, not absolute or not writable."""
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
            f"{VARIABLE} is {location}, which is not a folder that you may write to; make it, "
            "change its permissions, or leave out --cache."
        )


def check_names(rules: Sequence[str]) -> None:
    """Raise `ConfigError` for --cache without names of `rules` when jobs are submitted."""
    if not rules:  # Snakemake would not pass the option on.
        raise ConfigError(
            "--cache without names does nothing for jobs that are submitted; name the rules, e.g. "
            f"--cache {' '.join(RULES)} -- TARGET."
        )


def listing(folder: str | os.PathLike[str] | None) -> str | None:
    """Hash (16 hex digits) of names, sizes and times of all files below `folder`, None if missing.

    It stands in for their contents, which would take long to read at each start of Snakemake. A
    file that cannot be read counts by name: the job that needs it reports it.
    """
    if not folder or not Path(folder).is_dir():
        return None
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        try:
            status = path.stat()
        except OSError:
            digest.update(f"{name}\0unreadable\0".encode())
            continue
        if stat.S_ISREG(status.st_mode):
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]
