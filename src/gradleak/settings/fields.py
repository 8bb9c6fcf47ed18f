"""Base classes and types of the sections of config.yaml."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gradleak.data.catalogue import info
from gradleak.settings.validation_messages import ID_PATTERN, SENTENCE, undefined

ActivationName = Literal["identity", "tanh", "sigmoid", "leaky_relu", "relu"]
LossName = Literal["cross_entropy", "raw_logits", "logistic", "exponential", "hinge"]
DatasetName = Literal["mnist", "cifar10", "cifar100", "imagenet"]
SplitName = Literal["train", "test", "val"]
# Keys of `data.mirrors`: data sets, and the networks of LPIPS.
MirrorName = Literal[DatasetName, "lpips"]
Precision = Literal["float32", "float64"]
WEB = r"^https?://[^\s{}]+$"
LONGEST_ID = 100  # file names have at most 255 bytes, and an id is a part of one
MOST = 10**7  # largest number of a config, far beyond what any machine here could do
Count = Annotated[int, Field(gt=0, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Offset = Annotated[float, Field(ge=-1000.0, le=1000.0)]  # of inputs, whose pixels are in [0, 1]
Fraction = Annotated[float, Field(ge=0, le=1)]
Std = Annotated[float, Field(ge=1e-4, le=1e4)]  # divisor of inputs


def _no_period(value: str) -> str:
    if re.search(r"(.+?)\1{19}$", value):
        raise ValueError("an end that repeats 20 times is an endless path to Snakemake; cut it")
    return value


Identifier = Annotated[
    str, Field(pattern=ID_PATTERN, max_length=LONGEST_ID), AfterValidator(_no_period)
]
Value = TypeVar("Value")
# A field that only Python code may set, not config.yaml.
Hidden = Annotated[Value, Field(exclude=True), SkipJsonSchema()]


class Section(BaseModel):
    """Base of all sections: closed, strict (no "3" for 3) and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# From least to most: minutes, hours, a weekend without a GPU, the papers' own amounts.
Scale = Literal["smoke", "laptop", "night", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


class AtEachScale(Section, Generic[Value]):
    """A value at each scale; without one for ``night``, that of ``laptop`` holds there."""

    smoke: Value
    laptop: Value
    night: Value | None = None
    paper: Value

    def at(self, scale: str) -> Value:
        """The value at a scale."""
        found: Value = _at(self.model_dump(), scale)
        return found


class ByScale(AtEachScale[Count]):
    """An amount at each scale."""


class FractionByScale(AtEachScale[Fraction]):
    """A fraction at each scale."""


def _at(amounts: Mapping[str, Any], scale: str) -> Any:
    found = amounts.get(scale)
    return amounts.get("laptop") if found is None and scale == "night" else found


def at_scale(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Validation context: scale and amounts; invalid ones, which fields report, are replaced."""
    scale = raw.get("scale")
    scale = scale if scale in SCALES else "laptop"
    named, amounts = raw.get("scales"), {}
    for name, value in named.items() if isinstance(named, Mapping) else ():
        number = _at(value, scale) if isinstance(value, Mapping) else value
        amounts[name] = number if type(number) is int and 0 < number <= MOST else 1
    return {"scale": scale, "scales": amounts}


def _chosen(value: Any, info: ValidationInfo) -> Any:
    """Of a value at each scale, the one at the scale of the config file."""
    if not isinstance(value, AtEachScale):
        return value
    if not info.context or info.context["scale"] is None:
        raise ValueError("only config files have scales; give a number")
    return value.at(info.context["scale"])


def _form(value: Any) -> str:
    """Form of an amount: a number, one for each scale, or a name in `scales`."""
    if isinstance(value, dict | ByScale):
        return "amount-by-scale"
    return "amount-name" if isinstance(value, str) and value[:1].isalpha() else "amount-number"


Written = Annotated[
    Annotated[Count, Tag("amount-number")]
    | Annotated[ByScale, Tag("amount-by-scale")]
    | Annotated[Identifier, Tag("amount-name")],
    Discriminator(_form),
]


@dataclass(frozen=True)
class _AtScale:
    """Marker of an amount in any form; validation gives a plain number."""

    most: int = MOST

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = handler.generate_schema(Written)
        return core_schema.with_info_after_validator_function(self._number, written)

    def _number(self, value: int | str | ByScale, info: ValidationInfo) -> int:
        amounts = (info.context or {"scales": {}})["scales"]
        if isinstance(value, str) and value not in amounts:
            raise _complaint(undefined(value, amounts))
        number = amounts[value] if isinstance(value, str) else _chosen(value, info)
        if number > self.most:
            named = f"{value} = " if isinstance(value, str) else ""
            most = f"more than the {self.most} that a run can keep"
            raise _complaint(f"{named}{number} is {most}; lower it")
        return int(number)


def _fraction_form(value: Any) -> str:
    """Form of a fraction: a number, or one for each scale."""
    return "amount-by-scale" if isinstance(value, dict | FractionByScale) else "amount-number"


WrittenFraction = Annotated[
    Annotated[Fraction, Tag("amount-number")] | Annotated[FractionByScale, Tag("amount-by-scale")],
    Discriminator(_fraction_form),
    AfterValidator(_chosen),
]


def _complaint(words: str) -> PydanticCustomError:
    """Error about a value that does not repeat the value."""
    return PydanticCustomError(SENTENCE, "{words}", {"words": words})


# An amount: a number, one for each scale, or the name of one in `scales`.
AmountOrName = Annotated[int, _AtScale()]
Draws = Annotated[int, _AtScale(10_000)]  # the same for what has its own array: seeds, networks
# A fraction: a number, or one for each scale.
ScaledFraction = Annotated[
    float, GetPydanticSchema(lambda _, handler: handler.generate_schema(WrittenFraction))
]
InputSize = Annotated[tuple[Count, Count, Count], Field(strict=False)]
ScaledInputSize = Annotated[tuple[Count, AmountOrName, AmountOrName], Field(strict=False)]


def _pair(value: Any, validated: ValidatorFunctionWrapHandler) -> Any:
    """Two numbers, or one that stands for both and that errors then refer to."""
    if not isinstance(value, int):
        return validated(value)
    try:
        return validated((value, value))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


def known_split(section: Any) -> Any:
    """Raise ValueError, naming the valid splits, for a `split` that the `dataset` does not have."""
    if section.split not in (splits := info(section.dataset).splits):
        known = " and ".join(splits)
        raise ValueError(f"split: {section.dataset} has {known}, not {section.split}")
    return section


def sized(section: Any) -> Any:
    """Raise ValueError for a `resize` without `size`."""
    if section.resize != "repeat" and section.size is None:
        raise ValueError(f"resize: {section.resize} goes with size; give it or take resize out")
    return section


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


# A user's own file or folder, anywhere.
OwnPath = Annotated[str, Field(min_length=1), AfterValidator(_plain_path)]
# Another address of downloads; checksums remain the official ones.
WebAddress = Annotated[str, Field(json_schema_extra={"pattern": WEB}), AfterValidator(_web_address)]
Sides = Annotated[
    tuple[Count, Count], WrapValidator(_pair, json_schema_input_type=Count | tuple[Count, Count])
]
Margins = Annotated[
    tuple[Whole, Whole], WrapValidator(_pair, json_schema_input_type=Whole | tuple[Whole, Whole])
]
# One or more different ids.
_SET = Field(min_length=1, json_schema_extra={"uniqueItems": True})
Identifiers = Annotated[list[Identifier], _SET, AfterValidator(_once)]
# Different positions of images in a split.
Indices = Annotated[list[Whole], _SET, AfterValidator(_once)]


def _described(schema: dict[str, Any]) -> None:
    """Keep only the first sentence of the docstring, and require the method."""
    schema["description"] = schema["description"].partition("\n\n")[0].replace("\n", " ")
    schema["required"] = ["method", *schema.get("required", ())]


class Method(Section):
    """An attack, a defence or a server with its settings: found by its `method`, see `registry`."""

    model_config = ConfigDict(json_schema_extra=_described)

    method: str
