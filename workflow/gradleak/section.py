"""What the sections of config.yaml are made of."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import SkipJsonSchema

from gradleak.data.catalogue import info

ActivationName = Literal["identity", "tanh", "sigmoid", "leaky_relu", "relu"]
DatasetName = Literal["mnist", "cifar10", "cifar100", "imagenet"]
# What `data.mirrors` may name: data sets, and the networks of LPIPS.
MirrorName = Literal[DatasetName, "lpips"]
Precision = Literal["float32", "float64"]
WEB = r"^https?://[^\s{}]+$"
# Ids become parts of paths and wildcards, so nothing else may be in them.
ID_PATTERN = r"^[a-z][a-z0-9_]*$"
# Names of files end at 255 bytes, and an id is a part of one.
LONGEST_ID = 100
# Largest number of a config, far beyond what any machine here could do; and seed, of 32 bits.
MOST, MOST_SEED = 10**7, 2**32 - 1
# Of what inputs are shifted and divided by: pixels are in [0, 1] before.
MOST_OFFSET, LEAST_STD = 1000.0, 1e-4
Count = Annotated[int, Field(gt=0, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Offset = Annotated[float, Field(ge=-MOST_OFFSET, le=MOST_OFFSET)]
Std = Annotated[float, Field(ge=LEAST_STD, le=1 / LEAST_STD)]


def _no_period(value: str) -> str:
    if re.search(r"(.+?)\1{19}$", value):
        raise ValueError("an end that repeats 20 times is an endless path to Snakemake; cut it")
    return value


Identifier = Annotated[
    str, Field(pattern=ID_PATTERN, max_length=LONGEST_ID), AfterValidator(_no_period)
]
AmountOrName = Count | Identifier
if TYPE_CHECKING:
    Amount = int
else:
    # A number by the time that anything computes with it; in config.yaml maybe a name of `scales`.
    Amount = AmountOrName
Value = TypeVar("Value")
# A field that Python code may set and config.yaml may not.
Hidden = Annotated[Value, Field(exclude=True), SkipJsonSchema()]
InputSize = Annotated[tuple[Count, Count, Count], Field(strict=False)]
# The same, where names of `scales` may stand for sides.
ScaledInputSize = Annotated[tuple[Count, AmountOrName, AmountOrName], Field(strict=False)]


def _pair(value: Any, validated: ValidatorFunctionWrapHandler) -> Any:
    """Two numbers, or one that stands for both, which is then what a complaint is about."""
    if not isinstance(value, int):
        return validated(value)
    try:
        return validated((value, value))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


def known_split(dataset: str, split: str) -> None:
    """Refuse a split that a data set does not have.

    Raises
    ------
    ValueError
        Naming those that it has.
    """
    splits = info(dataset).splits
    if split not in splits:
        raise ValueError(f"split: {dataset} has {' and '.join(splits)}, not {split}")


def _once(values: list[Any]) -> list[Any]:
    value, times = Counter(values).most_common(1)[0] if values else (None, 0)
    if times > 1:
        raise ValueError(f"{value!r} is listed twice; take one of them out")
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
Sides = Annotated[tuple[Count, Count], WrapValidator(_pair)]
Margins = Annotated[tuple[Whole, Whole], WrapValidator(_pair)]
# One or more ids, none of them twice.
Identifiers = Annotated[
    list[Identifier],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_once),
]
# Positions of images in a split, each of which counts once.
Indices = Annotated[
    list[Whole],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_once),
]


class Section(BaseModel):
    """Base of all sections: closed, strict (no "3" for 3) and unchangeable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _described(schema: dict[str, Any]) -> None:
    """Keep the first sentence of the docstring alone, and ask for the method."""
    schema["description"] = schema["description"].partition("\n\n")[0].replace("\n", " ")
    schema["required"] = ["method", *schema.get("required", ())]


class Method(Section):
    """An attack, a defence or a server with its settings: found by its `method`, see `registry`."""

    model_config = ConfigDict(json_schema_extra=_described)

    method: str
