"""Attacks, defences and servers, each found by the line that declares its method.

Looking them up by name makes a job depend on the file of its own method alone, so that editing one
leaves the results of the others valid.
"""

import importlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args

from pydantic import Field

from gradleak.settings.fields import Section

DECLARED = re.compile(r'^    method: Literal\["(\w+)"\]', re.MULTILINE)
ROOT = Path(__file__).resolve().parents[1]
# Folders of the package by the names they have here.
FOLDERS = {"attacks": "attacks", "defences": "client/defences", "servers": "servers"}


@cache
def modules(folder: str) -> dict[str, str]:
    """Return the module of each method declared in a folder of the package, importing none."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / FOLDERS[folder]).rglob("*.py")):
        name = ".".join((ROOT.name, *path.relative_to(ROOT).with_suffix("").parts))
        for method in DECLARED.findall(path.read_text(encoding="utf-8")):
            if method in found:
                raise ValueError(f"{found[method]} and {name} both declare the method {method}.")
            found[method] = name
    return dict(sorted(found.items()))


@cache
def class_of(folder: str, method: str) -> type[Section]:
    """Return the class that declares a method."""
    module = importlib.import_module(modules(folder)[method])
    (found,) = (
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Section)
        and "method" in kind.model_fields
        and get_args(kind.model_fields["method"].annotation) == (method,)
    )
    return found


def build(folder: str, settings: Mapping[str, Any]) -> Any:
    """Return an attack, defence or server from its entry of config.yaml."""
    return class_of(folder, settings["method"]).model_validate(settings)


def entries(folder: str) -> Any:
    """Return the type of an entry of config.yaml: the union of all classes of a folder."""
    kinds = tuple(class_of(folder, method) for method in modules(folder))
    return Annotated[Union[kinds], Field(discriminator="method")]  # noqa: UP007
