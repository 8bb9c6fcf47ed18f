"""What the sections of config.yaml are made of."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
)

ActivationName = Literal["identity", "tanh", "sigmoid", "leaky_relu", "relu"]
DatasetName = Literal["mnist", "cifar10", "cifar100", "imagenet"]
# What `data.mirrors` may name: data sets, and the networks of LPIPS.
MirrorName = Literal[DatasetName, "lpips"]
Precision = Literal["float32", "float64"]
WEB = r"^https?://[^\s{}]+$"
# Ids become parts of paths and wildcards, so nothing else may be in them.
ID_PATTERN = r"^[a-z][a-z0-9_]*$"
Identifier = Annotated[str, Field(pattern=ID_PATTERN)]
AmountOrName = PositiveInt | Identifier
InputSize = Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], Field(strict=False)]
# The same, where names of `scales` may stand for sides.
ScaledInputSize = Annotated[tuple[PositiveInt, AmountOrName, AmountOrName], Field(strict=False)]


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


def _once(values: list[str]) -> list[str]:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"'{value}' is listed twice; take one of them out")
    return values


def _plain_path(value: str) -> str:
    if any(letter in "{}" or ord(letter) < 32 for letter in value):
        raise ValueError("braces are wildcards to Snakemake; use a path without { } and line ends")
    return value


def _web_address(value: str) -> str:
    if not re.fullmatch(WEB, value):
        raise ValueError("downloads come from the web; give an address with http:// or https://")
    return value


# A file or folder of a person's own may lie anywhere.
OwnPath = Annotated[str, Field(min_length=1), AfterValidator(_plain_path)]
# Another address of downloads; their checksums stay the official ones.
WebAddress = Annotated[str, Field(json_schema_extra={"pattern": WEB}), AfterValidator(_web_address)]
Sides = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_pair)]
Margins = Annotated[tuple[NonNegativeInt, NonNegativeInt], BeforeValidator(_pair)]
# One or more ids, none of them twice.
Identifiers = Annotated[
    list[Identifier],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_once),
]


class Section(BaseModel):
    """Base of all sections: closed, strict (no "3" for 3) and unchangeable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
