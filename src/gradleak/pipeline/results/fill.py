"""Fill in `{name}` of a loop and `${attacks[dlg].iterations}` of config in results.yaml."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradleak.config.schema import Config
from gradleak.data.catalogue import resolve

NAME = re.compile(r"(?<!\$)\{(\w+)\}")
LOOKUP = re.compile(r"\$\{([^{}]+)\}")

Names = Mapping[str, Any]


class _Lookup:
    """Values by name, made when looked up."""

    def __init__(self, of: Callable[[str], Any]) -> None:
        self._of = of

    def __getitem__(self, name: str) -> Any:
        return self._of(name)


def lookups(config: Config) -> dict[str, Any]:
    """Namespace of `${...}`; `stand_in` is empty for data sets that this run uses themselves."""

    def stand_in(dataset: str) -> str:
        shown = resolve(dataset, config.images)
        return "" if shown == dataset else f"(here {shown})"

    return {
        "attacks": config.attacks,
        "models": _Lookup(config.chain),
        "targets": config.targets,
        "trainings": config.trainings,
        "stand_in": _Lookup(stand_in),
    }


def fill(value: Any, names: Names, known: Mapping[str, Any]) -> Any:
    """Replace `{name}` and `${...}` in all strings of a value, by `names` and `known` (`lookups`).

    A string that is one name takes the value's type. Raises LookupError with the first bad string.
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
