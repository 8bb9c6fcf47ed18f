"""Explanations of failed claims, one or a group each, as data."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field

from gradleak.claims.load import load, parsed, read_yaml
from gradleak.claims.model import Case, Claims
from gradleak.claims.outcome import DIFFERS, EXCEEDS, REFUTED
from gradleak.claims.statement import Closed
from gradleak.errors import ConfigError

EXPLAINED = (DIFFERS, EXCEEDS, REFUTED)


class Explanation(Closed):
    """Explanation of why some claims fail."""

    of: Literal["any"] | None = None  # of every run, without numbers of one
    claims: list[str] = Field(min_length=1)  # ids, in which * matches any characters
    text: str = Field(min_length=1)
    evidence: list[str] = Field(min_length=1)  # pages and tables of the repository


class ExplanationsFile(Closed):
    """A file of explanations as written, for the run `of`."""

    paper: str
    of: Case
    explanations: list[Explanation]


@dataclass(frozen=True)
class Explanations:
    """Explanations of a paper's claims by claim id, and the run they were written for."""

    of: Case
    by_id: dict[str, Explanation]

    def text(self, claim: str, verdict: str, images: str, scale: str) -> str:
        """Explanation of a failed claim, if written for this run or any; else empty."""
        found = self.by_id.get(claim)
        if found is None or verdict not in EXPLAINED:
            return ""
        same = (self.of.images, self.of.scale) == (images, scale)
        return found.text if same or found.of == "any" else ""


def load_explanations(path: str | Path, claims: Claims) -> Explanations:
    """Load explanations of `claims` from a file such as ``papers/copa/explanations.yaml``.

    Raises `ConfigError` if the file is invalid or about another paper, a pattern matches no claim,
    or a claim is explained twice.
    """
    source = Path(path)
    file = parsed(source, ExplanationsFile, read_yaml(source))
    if file.paper != claims.paper:
        raise ConfigError(
            f"{source}: key 'paper': '{file.paper}' is not '{claims.paper}', whose claims these "
            f"are; correct it."
        )
    ids = [claim.id for claim in claims.claims]
    by_id: dict[str, Explanation] = {}
    for entry in file.explanations:
        for pattern in entry.claims:
            some = [name for name in ids if fnmatchcase(name, pattern)]
            if not some:
                raise ConfigError(
                    f"{source}: key 'explanations': '{pattern}' is no claim's id and matches none; "
                    f"correct or remove it."
                )
            if twice := [name for name in some if by_id.setdefault(name, entry) is not entry]:
                raise ConfigError(
                    f"{source}: key 'explanations': claim '{twice[0]}' is explained twice; narrow "
                    f"one of the patterns."
                )
    return Explanations(file.of, by_id)


def load_all(
    claims: Iterable[str | Path], explanations: Iterable[str | Path]
) -> list[tuple[Claims, Explanations | None]]:
    """Load the claims of several papers, each with the explanations file beside it."""
    beside = {Path(path).parent: path for path in explanations}
    read = [(load(path), beside.get(Path(path).parent)) for path in claims]
    return [(found, load_explanations(path, found) if path else None) for found, path in read]
