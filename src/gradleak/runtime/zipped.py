"""Zip files that are the same for the same contents, on any day and system."""

import zipfile
from collections.abc import Mapping

from gradleak.runtime.artifacts import FilePath, atomic

# The time of all members.
TIME = (1980, 1, 1, 0, 0, 0)


def write_zip(path: FilePath, members: Mapping[str, bytes]) -> None:
    """Write `members` by name to a zip file, in the order of their names."""
    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, TIME)
            entry.create_system = 3  # Unix, on any system
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, members[name], compresslevel=9)
