"""Download one file over HTTP: resume after interruptions, verify before use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.data.arrays import checksum
from gradleak.errors import DataError, require_extra
from gradleak.runtime.progress import progress

if TYPE_CHECKING:
    import requests

CHUNK = 1 << 16
TIMEOUT = (10.0, 60.0)
ATTEMPTS = 3
CHECKSUMS = {"md5": "MD5", "sha256": "SHA-256"}


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and its checksum."""

    name: str
    urls: tuple[str, ...]  # addresses that serve it
    digest: str  # checksum, or the first hexadecimal digits of it
    algorithm: str = "md5"  # ``md5`` or ``sha256``
    instead: str = ""  # alternative if no address can be reached

    def mismatch(self, path: Path) -> str:
        """Describe how the checksum of `path` differs, if it does; `DataError` if unreadable."""
        whole = checksum(path, self.algorithm)
        found = whole[: len(self.digest)]
        if found == self.digest:
            return ""
        verb = "is" if found == whole else "begins with"
        return f"its {CHECKSUMS[self.algorithm]} {verb} {found} where {self.digest} is expected"


class _Cut(Exception):
    """The transfer did not reach the end of the file; the part received is kept."""


def part_path(target: Path) -> Path:
    """Path of a file during its download."""
    return target.with_name(f"{target.name}.part")


def fetch(remote: RemoteFile, folder: Path, attempts: int = ATTEMPTS) -> Path:
    """Download a file into `folder`, unless it is there already.

    A partial ``{name}.part`` of an earlier call is completed by an HTTP range request; if the
    server ignores ranges, the transfer starts anew. A broken transfer is resumed `attempts` times
    at each address. Raises `DataError` if the existing or the downloaded file has another checksum
    (the latter is deleted), if no address can be reached, or if the folder cannot be written.
    """
    target = folder / remote.name
    if target.is_file():
        check(target, remote)
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _fetch_part(remote, target, attempts)
        part_path(target).replace(target)
    except OSError as error:
        raise DataError(
            f"Cannot write {target}: {error.strerror or error}; free space or set data: root: "
            "to a folder that you may write to (--config 'data={root: FOLDER}')."
        ) from error
    return target


def check(
    path: Path, remote: RemoteFile, remedy: str = "delete it and ask Snakemake for it again"
) -> None:
    """Raise `DataError`, ending with `remedy`, if a file is missing or has another checksum."""
    if not path.is_file():
        kind = CHECKSUMS[remote.algorithm]
        raise DataError(
            f"{path} is missing where a file with {kind} {remote.digest} is expected; {remedy}."
        )
    if wrong := remote.mismatch(path):
        raise DataError(f"{path} was truncated or altered: {wrong}; {remedy}.")


def _fetch_part(remote: RemoteFile, target: Path, attempts: int) -> None:
    """Complete the part file; one that does not fit is downloaded anew."""
    require_extra("pipeline", "requests")
    import requests

    part = part_path(target)
    reasons: list[str] = []
    for url in remote.urls:
        for _ in range(attempts):
            try:
                resumed = _transfer(url, part)
            except _Cut as cut:
                reasons.append(f"{url}: {cut}")
                continue
            except requests.RequestException as error:
                reasons.append(f"{url}: {_reason(error)}")
                break
            if not (wrong := remote.mismatch(part)):
                return
            part.unlink()
            if not resumed:
                raise DataError(
                    f"{url} sent a truncated or altered {remote.name}: {wrong}; it was deleted, so "
                    f"try again, or set data.mirrors to another address."
                )
            reasons.append(
                f"{url}: the part that an earlier run left did not fit, so it was deleted"
            )
    remedies = ["run again to resume", f"put the file into {target.parent} by hand"]
    *most, last = [*remedies, remote.instead] if remote.instead else remedies
    raise DataError(
        f"Cannot download {remote.name} ({'; '.join(dict.fromkeys(reasons))}); {', '.join(most)}, "
        f"or {last}."
    )


def _transfer(url: str, part: Path) -> bool:
    """Append the missing bytes to `part`; return whether anything was there before.

    A part as long as the file or longer is left as it is: its checksum decides.
    """
    import requests

    start = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as reply:
        if start and reply.status_code == requests.codes.requested_range_not_satisfiable:
            return True
        reply.raise_for_status()
        return _receive(reply, part, start)


def _receive(reply: requests.Response, part: Path, start: int) -> bool:
    from urllib3.exceptions import HTTPError

    resumed = _continues_at(reply, start)
    received = start if resumed else 0
    length = reply.headers.get("Content-Length")
    total = received + int(length) if length else None
    bar = progress(total, "bytes", received)
    bar.note = lambda: part.name.removesuffix(".part")
    # urllib3's own length check would discard the last bytes received.
    reply.raw.enforce_content_length = False
    with part.open("ab" if resumed else "wb") as file, bar:
        try:
            # Bytes as they arrive: with whole chunks a stall would discard part of the last one.
            while chunk := reply.raw.read1(CHUNK):
                file.write(chunk)
                received += len(chunk)
                bar.update(len(chunk))
        except HTTPError as error:
            late = any(isinstance(cause, TimeoutError) for cause in _causes(error))
            verb = f"sent nothing for {TIMEOUT[1]:g} s" if late else "broke off"
            raise _Cut(f"{verb} after {received} bytes of {total or 'unknown'}") from error
    if total is not None and received < total:
        raise _Cut(f"broke off after {received} bytes of {total}")
    return resumed


def _continues_at(reply: requests.Response, start: int) -> bool:
    if reply.status_code != 206:
        return False
    match = re.match(r"bytes (\d+)-", reply.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != start:
        raise _Cut("the server sent another range than the one asked for")
    return True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the innermost last: requests nests its errors three deep."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _reason(error: requests.RequestException) -> str:
    import requests

    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        late = TIMEOUT[0] if isinstance(error, requests.ConnectTimeout) else TIMEOUT[1]
        return f"no answer within {late:g} s"
    *_, cause = _causes(error)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
