"""MNIST, CIFAR-10 and CIFAR-100 from their official files.

torchvision's classes name the files, their addresses and checksums, and read them; this module adds
a download that resumes, and errors that name the remedy.
"""

import gzip
import pickle
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.data import arrays, catalogue
from gradleak.data.arrays import Dataset
from gradleak.data.download import RemoteFile, check, fetch
from gradleak.data.pickles import vet
from gradleak.errors import ConfigError, DataError
from gradleak.runtime.artifacts import FilePath, atomic

CLASSES = {"mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}
INSTEAD = (
    "put the arrays into the folder of data: root: (--config 'data={root: FOLDER}' sets another)"
)
UNREADABLE = (
    RuntimeError, ValueError, KeyError, EOFError, tarfile.TarError, gzip.BadGzipFile,
    pickle.UnpicklingError, zlib.error,
)  # fmt: skip


def torchvision_class(dataset: str) -> Any:
    """Return torchvision's class for an official data set; `ConfigError` for any other."""
    if dataset not in CLASSES:
        raise ConfigError(
            f"Data set '{dataset}' has no official download; choose one of {', '.join(CLASSES)}."
        )
    from torchvision import datasets

    return getattr(datasets, CLASSES[dataset])


def remote_files(dataset: str, mirror: str | None = None) -> list[RemoteFile]:
    """Return the official files of ``mnist``, ``cifar10`` or ``cifar100``, with MD5 checksums.

    `mirror`, the address of a folder with the same files, replaces the official addresses.
    """
    source = torchvision_class(dataset)
    if hasattr(source, "resources"):
        bases, named = source.mirrors, source.resources
    else:
        bases = [source.url.removesuffix(source.filename)]
        named = [(source.filename, source.tgz_md5)]
    if mirror:
        bases = [mirror.rstrip("/") + "/"]
    return [
        RemoteFile(name, tuple(base + name for base in bases), md5, instead=INSTEAD)
        for name, md5 in named
    ]


def download(marker: FilePath, dataset: str, mirror: str | None = None) -> None:
    """Download the official files of a data set into the folder of `marker`, then write `marker`.

    The marker lists the files with their checksums, in the format of ``md5sum``. Files in the
    folder are checked and kept, so an interrupted download resumes. Raises `DataError` if a file
    cannot be downloaded or is not the official one.
    """
    remotes = remote_files(dataset, mirror)
    for remote in remotes:
        fetch(remote, Path(marker).parent)
    with atomic(marker) as temporary:
        lines = [f"{remote.digest}  {remote.name}\n" for remote in remotes]
        temporary.write_text("".join(lines), encoding="utf-8")


def unpack(path: FilePath, folder: FilePath, dataset: str, split: str) -> None:
    """Convert the official files in `folder` to one file of arrays.

    Raises `DataError` if an official file is missing, truncated or altered, or not what torchvision
    expects, and `ArtifactError` if the arrays cannot be written; an earlier file stays as it was.
    """
    catalogue.check_split(dataset, split)
    remotes = remote_files(dataset)
    files = [Path(folder) / remote.name for remote in remotes]
    for file, remote in zip(files, remotes, strict=True):
        check(file, remote, f"delete the folder {folder} and ask Snakemake for it again")
    data = read(files, dataset, split)
    arrays.save(path, data, {remote.name: remote.digest for remote in remotes})


def read(files: list[Path], dataset: str, split: str) -> Dataset:
    """Read a split by torchvision from the official `files`, unpacked in a temporary folder."""
    source = torchvision_class(dataset)
    names = ", ".join(str(file) for file in files)
    with tempfile.TemporaryDirectory(prefix="gradleak-") as scratch:
        try:
            if hasattr(source, "resources"):
                _unpack_gzip(files, Path(scratch) / source.__name__ / "raw")
            else:
                _unpack_tar(files[0], Path(scratch), source)
            loaded = source(scratch, train=split == "train", download=False)
        except UNREADABLE as error:
            raise DataError(
                f"{names} cannot be read as {dataset} ({error}); delete the folder "
                f"{files[0].parent} and ask Snakemake for it again."
            ) from error
        except OSError as error:
            raise DataError(
                f"Cannot unpack {names} into {scratch}: {error.strerror or error}; free space "
                f"there, or set TMPDIR to another folder."
            ) from error
        images, labels = np.asarray(loaded.data), np.asarray(loaded.targets, dtype=np.int64)
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    classes = [name.split(" - ")[0] for name in loaded.classes]
    return Dataset(np.ascontiguousarray(images), labels, classes, dataset, split, "official")


def _unpack_gzip(files: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))


def _unpack_tar(archive: Path, folder: Path, source: Any) -> None:
    """Extract only the members that torchvision reads, each vetted, as it unpickles anything."""
    names = [name for name, _ in (*source.train_list, *source.test_list)]
    (folder / source.base_folder).mkdir()
    with tarfile.open(archive) as tar:
        for name in (*names, source.meta["filename"]):
            member = f"{source.base_folder}/{name}"
            content = tar.extractfile(member)
            if content is None:
                raise ValueError(f"{member} is no file")
            batch = content.read()
            vet(batch, member)
            (folder / member).write_bytes(batch)
