"""The closed schema of config.yaml: unknown keys, ids and impossible values are refused."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from gradleak.data.catalogue import info, resolve
from gradleak.errors import ConfigError
from gradleak.models.activations import INVERTIBLE, Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec

ActivationName = Literal["identity", "tanh", "sigmoid", "leaky_relu", "relu"]
DatasetName = Literal["mnist", "cifar10", "cifar100", "imagenet"]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


Sides = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_pair)]
Margins = Annotated[tuple[NonNegativeInt, NonNegativeInt], BeforeValidator(_pair)]


class Section(BaseModel):
    """Base of all sections: closed, strict (no "3" for 3) and unchangeable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(Section):
    """Where data sets lie."""

    root: Annotated[str, Field(min_length=1)] = "data"
    imagenet: str | None = None
    mirrors: dict[DatasetName, str] = {}


class Amount(Section):
    """One amount at each scale."""

    smoke: PositiveInt
    laptop: PositiveInt
    paper: PositiveInt


AmountOrName = PositiveInt | Identifier

# Attacks that walk the network backwards through inverse activations.
LAYER_WISE = ("rgap", "copa")


class Targets(Section):
    """Images under attack: either `indices` or the first `count` of a split."""

    dataset: DatasetName
    split: Literal["train", "test", "val"]
    indices: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None
    count: AmountOrName | None = None
    names: list[str] | None = None
    offset: float = 0.0

    @model_validator(mode="after")
    def _one_selection(self) -> Targets:
        if (self.indices is None) == (self.count is None):
            raise ValueError("give either indices or count")
        if self.names is not None and len(self.names) != len(self.indices or []):
            raise ValueError("names needs one entry for each of indices")
        return self


class ConvConfig(Section):
    """A convolution and its activation."""

    conv: PositiveInt
    kernel: Annotated[Sides, Field(strict=False)]
    stride: Annotated[Sides, Field(strict=False)] = (1, 1)
    padding: Annotated[Margins, Field(strict=False)] = (0, 0)
    bias: bool = False
    activation: ActivationName = "identity"
    slope: PositiveFloat = 0.01


class LinearConfig(Section):
    """A fully connected layer and its activation."""

    fc: PositiveInt
    inputs: PositiveInt | None = None
    bias: bool = True
    activation: ActivationName = "identity"
    slope: PositiveFloat = 0.01


InputSize = Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], Field(strict=False)]


class Model(Section):
    """A network as a chain of layers."""

    input: InputSize
    layers: Annotated[list[dict[str, Any]], Field(min_length=1)]

    @model_validator(mode="after")
    def _known_layers(self) -> Model:
        self.specs()
        return self

    def specs(self) -> tuple[ConvSpec | LinearSpec, ...]:
        """Layers as the package's own descriptions."""
        out: list[ConvSpec | LinearSpec] = []
        for number, raw in enumerate(self.layers, start=1):
            kind: type[Section] | None = (
                ConvConfig if "conv" in raw else LinearConfig if "fc" in raw else None
            )
            if kind is None:
                raise ValueError(f"layer {number} is neither a conv nor an fc; add one of the keys")
            try:
                layer = kind.model_validate(raw)
            except ValidationError as error:
                raise ValueError(f"layer {number}: {_sentence(error, kind)}") from error
            out.append(_spec(layer))
        return tuple(out)


def _spec(layer: Section) -> ConvSpec | LinearSpec:
    if isinstance(layer, ConvConfig):
        return ConvSpec(
            filters=layer.conv,
            kernel=layer.kernel,
            stride=layer.stride,
            padding=layer.padding,
            bias=layer.bias,
            activation=Activation(layer.activation, layer.slope),
        )
    assert isinstance(layer, LinearConfig)
    return LinearSpec(layer.fc, layer.bias, Activation(layer.activation, layer.slope), layer.inputs)


class Family(Section):
    """Networks drawn at random from lists of sizes."""

    input: InputSize
    networks: AmountOrName
    seed: NonNegativeInt
    convolutions: PositiveInt
    filters: Annotated[list[PositiveInt], Field(min_length=1)]
    kernels: Annotated[list[PositiveInt], Field(min_length=1)]
    strides: Annotated[list[PositiveInt], Field(min_length=1)]
    paddings: Annotated[list[NonNegativeInt], Field(min_length=1)]
    classes: PositiveInt
    activation: ActivationName


class NoDefence(Section):
    """The gradient is shared as it is."""

    method: Literal["none"]


class RGapConfig(Section):
    """R-GAP."""

    method: Literal["rgap"]


class CopaConfig(Section):
    """COPA."""

    method: Literal["copa"]
    start: Literal["random", "rgap"] = "random"
    first_spread: PositiveFloat = 0.5
    hidden_spread: PositiveFloat = 0.05
    pull_back: Literal["appendix_b", "algorithm_1"] = "appendix_b"
    optimiser: Literal["lbfgs", "levenberg_marquardt", "adam"] = "lbfgs"
    iterations: AmountOrName = 500


class TotalVariationConfig(Section):
    """Denoising of another attack's reconstruction."""

    method: Literal["total_variation"]
    of: Identifier
    weight: PositiveFloat


AttackConfig = Annotated[
    RGapConfig | CopaConfig | TotalVariationConfig, Field(discriminator="method")
]


class Experiment(Section):
    """Every listed model, defence and attack on one target set."""

    paper: Literal["copa", "rgap", "fedkl", "mkor"]
    targets: Identifier
    models: Annotated[list[Identifier], Field(min_length=1)]
    seeds: AmountOrName
    defences: Annotated[list[Identifier], Field(min_length=1)]
    attacks: Annotated[list[Identifier], Field(min_length=1)]
    precision: Literal["float32", "float64"] = "float32"
    label: Literal["granted", "recovered"] = "granted"


class Config(Section):
    """All of config.yaml."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]
    device: Literal["auto", "cpu", "cuda", "mps"]
    data: Data
    scales: dict[Identifier, Amount]
    targets: dict[Identifier, Targets]
    models: dict[Identifier, Model]
    families: dict[Identifier, Family]
    defences: dict[Identifier, NoDefence]
    attacks: dict[Identifier, AttackConfig]
    experiments: dict[Identifier, Experiment]

    def amount(self, value: int | str) -> int:
        """Resolve an amount: a number, or a name in `scales` at the current scale."""
        if isinstance(value, int):
            return value
        return int(getattr(self.scales[value], self.scale))

    def chain(self, model: str) -> Chain:
        """Chain of one entry of `models`."""
        entry = self.models[model]
        return Chain(model, entry.input, entry.specs())


def load(raw: dict[str, Any]) -> Config:
    """Check a parsed config.yaml.

    Raises
    ------
    ConfigError
        Naming the first bad key, its value and what to do; further ones are counted.
    """
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"config.yaml: {_sentence(error, Config)}") from error
    _check_ids(config)
    for name in config.models:
        _ = config.chain(name).layers
    for name, experiment in config.experiments.items():
        for model in experiment.models:
            _check_pair(config, name, model)
    return config


def schema() -> dict[str, Any]:
    """JSON Schema of config.yaml, for editors."""
    return Config.model_json_schema()


def _check_ids(config: Config) -> None:
    overlap = sorted(set(config.models) & set(config.families))
    if overlap:
        raise ConfigError(f"config.yaml: {overlap[0]} is both a model and a family; rename one.")
    networks = [*config.models, *config.families]
    for name, experiment in config.experiments.items():
        where = f"experiments.{name}"
        _known(f"{where}.targets", [experiment.targets], config.targets)
        _known(f"{where}.models", experiment.models, networks)
        _known(f"{where}.defences", experiment.defences, config.defences)
        _known(f"{where}.attacks", experiment.attacks, config.attacks)
        _amount_known(f"{where}.seeds", experiment.seeds, config)
    for name, entry in config.attacks.items():
        if isinstance(entry, CopaConfig):
            _amount_known(f"attacks.{name}.iterations", entry.iterations, config)
        if isinstance(entry, TotalVariationConfig):
            first = [a for a, e in config.attacks.items() if e.method != "total_variation"]
            _known(f"attacks.{name}.of", [entry.of], first)
    for name, targets in config.targets.items():
        _amount_known(f"targets.{name}.count", targets.count, config)
    for name, family in config.families.items():
        _amount_known(f"families.{name}.networks", family.networks, config)


def _check_pair(config: Config, name: str, model: str) -> None:
    """Refuse images that a model cannot be fed with, and attacks that cannot run on it."""
    experiment = config.experiments[name]
    entry = config.models.get(model) or config.families[model]
    dataset = resolve(config.targets[experiment.targets].dataset, config.images)
    if tuple(entry.input) != info(dataset).shape:
        raise ConfigError(
            f"config.yaml: experiments.{name}: {model} takes images of {list(entry.input)}, but "
            f"{dataset} has {list(info(dataset).shape)}; choose another target set or model."
        )
    activations = (
        [layer.activation.name for layer in config.chain(model).layers]
        if model in config.models
        else [config.families[model].activation]
    )
    lacking = [a for a in activations if a not in INVERTIBLE]
    walking = [a for a in experiment.attacks if config.attacks[a].method in LAYER_WISE]
    if lacking and walking:
        raise ConfigError(
            f"config.yaml: experiments.{name}: {model} has the activation '{lacking[0]}', which "
            f"has no inverse, so attack {walking[0]} cannot run on it; choose one of "
            f"{', '.join(INVERTIBLE)}, or take the attack or the model out."
        )


def _amount_known(key: str, value: int | str | None, config: Config) -> None:
    if isinstance(value, str):
        _known(key, [value], config.scales)


def _known(key: str, values: Iterable[str], known: Iterable[str]) -> None:
    choices = list(known)
    for value in values:
        if value not in choices:
            raise ConfigError(
                f"config.yaml: {key}: '{value}' is not defined{_nearest(value, choices)}; "
                f"define it or choose one of {', '.join(choices)}."
            )


def _nearest(word: str, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence from pydantic's first complaint."""
    first, *rest = error.errors()
    path = _user_path(first["loc"])
    # The members of a union complain one by one about the same key.
    others = {_user_path(entry["loc"]) for entry in rest} - {path}
    value = first.get("input")
    shown = repr(value) if not isinstance(value, dict | list) else ""
    more = f" ({len(others)} more keys are wrong)" if others else ""
    kind = first["type"]
    if kind == "extra_forbidden":
        last = str(first["loc"][-1])
        return (
            f"unknown key '{path}'{_nearest(last, _all_keys(model))}; correct or remove it{more}."
        )
    if kind == "missing":
        return f"key '{path}' is missing; add it{more}."
    if kind == "union_tag_invalid":
        method = str(first["ctx"]["tag"])
        choices = [word.strip("' ") for word in first["ctx"]["expected_tags"].split(",")]
        return (
            f"{path}.method: '{method}' is not known{_nearest(method, choices)}; "
            f"choose one of {', '.join(choices)}{more}."
        )
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    at = f"{path}: " if path else ""
    got = f"{shown} is not allowed: " if shown else ""
    return f"{at}{got}{message.rstrip('.')}{more}."


def _user_path(location: tuple[int | str, ...]) -> str:
    """Path of a complaint without the union members that pydantic adds to it."""
    parts = [str(part) for part in location]
    if len(parts) > 2 and parts[0] == "attacks":
        del parts[2]
    return ".".join(part for part in parts if not part.startswith(("constrained-", "function-")))


def _all_keys(model: type[BaseModel]) -> set[str]:
    """Every key that the schema of `model` knows, at any depth."""
    keys = set(model.model_fields)
    definitions = model.model_json_schema().get("$defs", {})
    for definition in definitions.values():
        keys.update(definition.get("properties", {}))
    return keys | set(ConvConfig.model_fields) | set(LinearConfig.model_fields)


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
