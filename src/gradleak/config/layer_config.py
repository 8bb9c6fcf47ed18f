"""Layers as written in config.yaml, and layers of other networks that a chain does not support."""

from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, ValidationError

from gradleak.models.activations import Activation
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.settings import fields
from gradleak.settings.validation_messages import sentence

# Part of a key, without underscores: its meaning, and the alternative.
FOREIGN = {
    "pool": ("a pooling layer", "add pool: max or pool: average to the convolution before it"),
    "norm": ("a normalisation", "add norm: batch to the convolution before it"),
    "drop": ("dropout", "add dropout: p to the fully connected layer before it"),
    **dict.fromkeys(
        ("branch", "residual", "shortcut", "concat", "inception", "parallel"),
        ("a branch", "use skip on a convolution, which adds the input of a layer before it"),
    ),
}
NEEDED = (
    "which the chain of layers does not know, since closed forms and the rank analysis need "
    "convolutions, fully connected layers and activations"
)

Slope = Annotated[float, Field(gt=0, lt=1)]


class ConvConfig(fields.Section):
    """A convolution and its activation."""

    conv: fields.Count
    kernel: Annotated[fields.Sides, Field(strict=False)]
    stride: Annotated[fields.Sides, Field(strict=False)] = (1, 1)
    padding: Annotated[fields.Margins, Field(strict=False)] = (0, 0)
    bias: bool = False
    activation: fields.ActivationName = "identity"
    slope: Slope = 0.01
    skip: fields.Whole = 0
    gain: PositiveFloat = 1.0
    pool: Literal["none", "max", "max3", "average", "global"] = "none"
    padding_mode: Literal["zeros", "replicate"] = "zeros"
    norm: Literal["none", "batch"] = "none"
    projection: bool = False


class LinearConfig(fields.Section):
    """A fully connected layer and its activation."""

    fc: fields.AmountOrName
    inputs: fields.Count | None = None
    bias: bool = True
    activation: fields.ActivationName = "identity"
    slope: Slope = 0.01
    gain: PositiveFloat = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


def parse(layers: list[Any], context: Any) -> list[Any]:
    """Check the layers of a network, nested lists flattened; ValueError names layer and remedy."""
    flat = chain.from_iterable(one if isinstance(one, list) else [one] for one in layers)
    return [_layer(number, layer, context) for number, layer in enumerate(flat, start=1)]


def _layer(number: int, raw: Any, context: Any) -> Any:
    if not isinstance(raw, dict):
        return raw  # refused by the field's own type
    kind = _kind(number, raw)
    try:
        return kind.model_validate(raw, context=context)
    except ValidationError as error:
        raise ValueError(f"layer {number}: {sentence(error, kind)}") from error


def spec(layer: ConvConfig | LinearConfig) -> ConvSpec | LinearSpec:
    """Convert a layer to the package's own description."""
    own = {key: getattr(layer, key) for key in type(layer).model_fields}
    own["activation"] = Activation(own["activation"], own.pop("slope"))
    if isinstance(layer, ConvConfig):
        return ConvSpec(filters=own.pop("conv"), **own)
    return LinearSpec(outputs=own.pop("fc"), **own)


def _kind(number: int, raw: dict[str, Any]) -> type[ConvConfig] | type[LinearConfig]:
    """Kind of a layer, after refusing keys of unsupported layers."""
    if "conv" in raw and "fc" in raw:
        raise ValueError(f"layer {number} is both a conv and an fc; make two layers of it")
    known = {*ConvConfig.model_fields, *LinearConfig.model_fields}
    for key in raw:
        plain = "" if key in known else str(key).lower().replace("_", "").replace("-", "")
        for what, instead in (meant for part, meant in FOREIGN.items() if part in plain):
            lies = "has" if "conv" in raw or "fc" in raw else "is"
            raise ValueError(f"layer {number} {lies} {what} ('{key}'), {NEEDED}; {instead}")
    if "conv" not in raw and "fc" not in raw:
        raise ValueError(f"layer {number} is neither a conv nor an fc; add one of the keys")
    kind, other, name = (
        (ConvConfig, LinearConfig, "fully connected layers")
        if "conv" in raw
        else (LinearConfig, ConvConfig, "convolutions")
    )
    for key in raw:
        if key not in kind.model_fields and key in other.model_fields:
            raise ValueError(f"layer {number}: key '{key}' belongs to {name}; take it out here")
    return kind
