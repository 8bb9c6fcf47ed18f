"""ImageNet from a user's folder or archive, since it cannot be downloaded freely.

Images lie in one subfolder for each class, or a ``manifest.csv`` has the columns ``path`` and
``label`` (and optionally ``class_name``). Archives are read in place, so no member's name can lead
outside.
"""

import csv
import io
import logging
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from gradleak.data import arrays, catalogue
from gradleak.data.arrays import Dataset, checksum
from gradleak.errors import DataError
from gradleak.runtime.artifacts import FilePath

MANIFEST = "manifest.csv"
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm"}
MOST = 5000
KEY = "data.imagenet"
UNREADABLE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
    RuntimeError,
)  # fmt: skip
logger = logging.getLogger("gradleak")
Samples = list[tuple[str, int]]  # path and class of each image


class Files(NamedTuple):
    """Names of the files in a folder or an archive, and a function that reads one."""

    source: Path
    names: list[str]
    read: Callable[[str], bytes]


def write(path: FilePath, source: FilePath | None, dataset: str, split: str) -> None:
    """Save a user's images as arrays; `DataError` if `source` is unset or unusable."""
    catalogue.check_split(dataset, split)
    if not source:
        raise DataError(
            f"{KEY} is not set; set it to a folder or archive of images in class folders, or put "
            f"{Path(path).name} into the folder of data: root: by hand (--config 'data={{root: "
            "FOLDER}' sets another)."
        )
    root = Path(source)
    data = read(root, dataset, split)
    arrays.save(path, data, {root.name: checksum(root) if root.is_file() else "folder"})


def read(source: Path, dataset: str, split: str) -> Dataset:
    """Read a user's images, each resized to the data set's side and cropped at the centre.

    `source` is a folder, or an archive that tarfile or zipfile reads. The order is the manifest's;
    from class folders (labelled in sorted order) the first image of every class, then the second,
    ... At most `MOST` are taken, so that they fit into memory (they take 1 GB). Raises `DataError`
    if the source is missing or damaged, holds no images, or one of them cannot be read.
    """
    info = catalogue.info(dataset)
    with _open(source) as files:
        manifests = [name for name in files.names if PurePosixPath(name).name == MANIFEST]
        samples, classes = _listed(files, manifests[0]) if manifests else _by_folder(files)
        logger.info("%s: %d of %d images", source, min(MOST, len(samples)), len(samples))
        samples = samples[:MOST]
        images = np.empty((len(samples), *info.shape), np.uint8)
        # Compressed archives can only be read forwards: keep the order of the archive.
        place = {name: k for k, name in enumerate(files.names)}
        for k in sorted(range(len(samples)), key=lambda k: place[samples[k][0]]):
            images[k] = _image(files, samples[k][0], (info.width, info.height))
    labels = np.array([label for _, label in samples], dtype=np.int64)
    return Dataset(images, labels, classes, dataset, split, origin="own folder")


@contextmanager
def _open(source: Path) -> Iterator[Files]:
    if not source.exists():
        raise DataError(
            f"{KEY}: {source} does not exist; set it to a folder or archive of your images."
        )
    try:
        if source.is_dir():
            found = sorted(path for path in source.rglob("*") if path.is_file())
            names = [path.relative_to(source).as_posix() for path in found]
            yield Files(source, names, lambda name: (source / name).read_bytes())
        elif zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as zipped:
                entries = {_plain(e.filename): e for e in zipped.infolist() if not e.is_dir()}
                yield Files(source, list(entries), lambda name: zipped.read(entries[name]))
        else:
            with tarfile.open(source) as tar:
                members = {_plain(member.name): member for member in tar if member.isfile()}
                _check_end(tar)
                yield Files(source, list(members), lambda name: _member(tar, members[name]))
    except UNREADABLE as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{KEY}: {source} cannot be read ({reason}); replace it by a folder of images or a "
            f"complete .tar or .zip archive."
        ) from error


def _plain(name: str) -> str:
    """Return a member's name without a leading ``./``."""
    return str(PurePosixPath(name))


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    return content.read() if content is not None else b""


def _check_end(tar: tarfile.TarFile) -> None:
    """Refuse a tar file that stops before its end mark; tarfile itself accepts it."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("unexpected end of data")


def _is_image(name: str) -> bool:
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _by_folder(files: Files) -> tuple[Samples, list[str]]:
    """One sample for each image in a class folder: the first of every class, then the second."""
    groups: dict[str, list[str]] = {}
    for name in sorted(filter(_is_image, files.names)):
        groups.setdefault(PurePosixPath(name).parent.name, []).append(name)
    if not groups:
        raise DataError(
            f"{KEY}: {files.source} holds no images ({', '.join(sorted(SUFFIXES))}); set it to a "
            f"folder or archive with one subfolder of images for each class."
        )
    if "" in groups:
        raise DataError(
            f"{KEY}: {files.source} has images outside of class folders (such as "
            f"{groups[''][0]}); sort them into one subfolder for each class or add a {MANIFEST} "
            f"with the columns path and label."
        )
    classes = sorted(groups)
    labelled = ([(path, label) for path in groups[name]] for label, name in enumerate(classes))
    return [sample for turn in zip_longest(*labelled) for sample in turn if sample], classes


def _listed(files: Files, manifest: str) -> tuple[Samples, list[str]]:
    """List the samples of a manifest, in its order, and the names of their classes."""
    base = PurePosixPath(manifest).parent
    present = set(files.names)
    samples: Samples = []
    names: dict[int, str] = {}
    text = files.read(manifest).decode("utf-8-sig", errors="replace")
    for line, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        path, label = row.get("path"), row.get("label") or ""
        if not path or not label.isdecimal():
            raise DataError(
                f"{files.source}/{manifest}, line {line}: path '{path}' and label '{label}' are "
                f"not a file and a whole number; give the columns path and label."
            )
        member = str(base / path)
        if member not in present:
            raise DataError(
                f"{files.source}/{manifest}, line {line}: {path} is not in {files.source}; add "
                f"the file or remove the line."
            )
        samples.append((member, int(label)))
        names[int(label)] = row.get("class_name") or label
    if not samples:
        raise DataError(f"{files.source}/{manifest} lists no images; add a line for each of them.")
    return samples, [names.get(label, str(label)) for label in range(max(names) + 1)]


def _image(files: Files, name: str, size: tuple[int, int]) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(files.read(name))) as opened:
            fitted = ImageOps.fit(opened.convert("RGB"), size, Image.Resampling.BICUBIC)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{files.source}/{name} cannot be read as an image ({error}); replace or remove it."
        ) from error
    return np.asarray(fitted).transpose(2, 0, 1)
