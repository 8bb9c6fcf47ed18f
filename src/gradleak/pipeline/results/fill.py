"""Fill in `{name}` of a loop and `${attacks[dlg].iterations}` of config in results.yaml."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradleak.config.schema import Config
from gradleak.data.catalogue import resolve

NAME = re.compile(r"(?<!\$)\{(\w+)\}")
LOOKUP = re.compile(r"\$\{([^{}]+)\}")

Names = Mapping[str, Any]


class _Entries:
    """Entries of a section of config by id."""

    def __init__(self, config: Config, section: str) -> None:
        self._config, self._section = config, section

    def __getitem__(self, name: str) -> Any:
        if self._section == "models":
            return self._config.chain(name)
        return getattr(self._config, self._section)[name]


class _StandIns:
    """Description of the stand-in for a data set in this run; empty for the data set itself."""

    def __init__(self, images: str) -> None:
        self._images = images

    def __getitem__(self, dataset: str) -> str:
        shown = resolve(dataset, self._images)
        return "" if shown == dataset else f"(here {shown})"


def lookups(config: Config) -> dict[str, Any]:
    """Namespace of `${...}`."""
    sections = ("attacks", "models", "targets", "trainings")
    found: dict[str, Any] = {section: _Entries(config, section) for section in sections}
    return {**found, "stand_in": _StandIns(config.images)}


def fill(value: Any, names: Names, known: Mapping[str, Any]) -> Any:
    """Replace names in braces in all strings of a value.

    Parameters
    ----------
    value
        String, or list or mapping of strings; anything else is returned unchanged.
    names
        Values of `{name}`; a string that consists of one name takes the value's type.
    known
        Values of `${...}`, as returned by `lookups`.

    Raises
    ------
    LookupError
        With the first string that has an unknown name.
    """
    if isinstance(value, Mapping):
        return {key: fill(part, names, known) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, names, known) for part in value]
    if not isinstance(value, str):
        return value
    try:
        whole = NAME.fullmatch(value)
        if whole:
            return names[whole[1]]
        text = NAME.sub(lambda match: str(names[match[1]]), value)
        if "${" not in text:
            return text
        # The value may be empty.
        return LOOKUP.sub(lambda match: f"{{{match[1]}}}".format_map(known), text).rstrip(" ")
    except (LookupError, AttributeError, ValueError) as error:
        raise LookupError(value) from error


def combinations(foreach: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield all combinations, the last list varying fastest; an item may bind several names."""
    for values in itertools.product(*foreach.values()):
        names: dict[str, Any] = {}
        for key, value in zip(foreach, values, strict=True):
            names |= value if isinstance(value, Mapping) else {key: value}
        yield names
