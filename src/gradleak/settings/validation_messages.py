"""Turn pydantic's errors into one sentence."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from gradleak.errors import ConfigError

# Ids become parts of paths and wildcards, so other characters are refused.
ID_PATTERN = r"^[a-z][a-z0-9_]*$"
SENTENCE = "sentence"  # type of an error whose message is complete
# Sections whose entries are a union, by `method` or `kind`, and keys that are one.
UNIONS = ("attacks", "defences", "servers", "generators")
UNION_KEYS = ("architecture", "network", "samples")
LIKENESS = 0.65  # least similarity, from 0 to 1, of a suggestion: 'dgl' for 'dlg' has 0.67
MOST_CHOICES = 10  # most ids listed in a message; the nearest one is always named


def closest(word: str, choices: Iterable[str]) -> str:
    """Choice most similar to `word`; empty if none is similar."""
    return next(iter(difflib.get_close_matches(word, choices, 1, LIKENESS)), "")


def nearest(word: str, choices: Iterable[str]) -> str:
    """Suggest another choice that `word` may have been meant for; empty without one."""
    close = closest(word, [choice for choice in choices if choice != word])
    return f" (did you mean '{close}'?)" if close else ""


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """Turn pydantic's first error into one sentence."""
    first, *rest = error.errors()
    path = _user_path(first["loc"])
    # Members of a union, and of a list, each report an error for the same key.
    others = {_key(entry["loc"]) for entry in rest} - {_key(first["loc"])}
    value, kind = first.get("input"), first["type"]
    shown = repr(value) if not isinstance(value, dict | list) else ""
    number = f"{len(others)} more keys are" if len(others) > 1 else "1 more key is"
    more = f" ({number} wrong)" if others else ""
    if kind == "extra_forbidden":
        last, known = str(first["loc"][-1]), _all_keys(model)
        if last in known:
            return f"key '{path}' does not belong here; remove it{more}."
        return f"unknown key '{path}'{nearest(last, known)}; correct or remove it{more}."
    if kind in ("missing", "union_tag_not_found"):
        missing = path if kind == "missing" else f"{path}.{_tag(first)}"
        return f"key '{missing}' is missing; add it{more}."
    if kind == "union_tag_invalid":
        method = str(first["ctx"]["tag"])
        choices = [word.strip("' ") for word in first["ctx"]["expected_tags"].split(",")]
        return (
            f"{path}.{_tag(first)}: '{method}' is not known{nearest(method, choices)}; "
            f"choose one of {', '.join(choices)}{more}."
        )
    if kind == "string_pattern_mismatch" and first["ctx"]["pattern"] == ID_PATTERN:
        rule = "use lower-case letters, digits and _, a letter first"
        return f"{path.removesuffix(f'.{value}')}: {shown} is not an id; {rule}{more}."
    if kind == SENTENCE:
        return f"{path}: {first['msg']}{more}."
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    at = f"{path}: " if path else ""
    got = f"{shown} is not allowed: " if shown else ""
    return f"{at}{got}{message.rstrip('.')}{more}."


def _tag(complaint: Any) -> str:
    """Key that distinguishes the members of a union."""
    return str(complaint["ctx"]["discriminator"]).strip("'")


def _user_path(location: tuple[int | str, ...]) -> str:
    """Path of an error without the union members that pydantic adds to it."""
    parts = [str(part) for part in location]
    if len(parts) > 2 and parts[0] in UNIONS:
        del parts[2]
    if len(parts) > 3 and parts[2] in UNION_KEYS:
        del parts[3]
    added = ("constrained-", "function-", "amount-", "[key]")
    return ".".join(part for part in parts if not part.startswith(added))


def _key(location: tuple[int | str, ...]) -> str:
    """Key that an error is about, without the position in its list."""
    return re.sub(r"(\.\d+)+$", "", _user_path(location))


def _all_keys(model: type[BaseModel]) -> set[str]:
    """Every key of the sections that share `model`'s base."""
    kinds = [base for base in model.__mro__ if BaseModel in base.__bases__]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {key for kind in kinds for key in getattr(kind, "model_fields", ())}


def undefined(value: str, known: Iterable[str]) -> str:
    """Message on an id that is not among the `known`, with the nearest one and others."""
    choices = list(known)
    if not choices:
        return f"'{value}' is not defined; give a value in its place"
    more = ", …" if len(choices) > MOST_CHOICES else ""
    return (
        f"'{value}' is not defined{nearest(value, choices)}; "
        f"define it or choose one of {', '.join(choices[:MOST_CHOICES])}{more}"
    )


def check_known(key: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ConfigError` at `key` for the first unknown of `values`, suggesting the nearest."""
    choices = list(known)
    for value in (value for value in values if value not in choices):
        raise ConfigError(f"{key}: {undefined(value, choices)}.")
