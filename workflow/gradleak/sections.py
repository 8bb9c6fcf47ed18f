"""Sections of config.yaml: closed models of what a person may write."""

from __future__ import annotations

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

from gradleak.models.activations import Activation
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.wording import sentence

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


class Targets(Section):
    """Images under attack: either `indices` or `count` of a split, from image `first` on.

    `batch` images share one gradient, so `count` is a number of batches.
    """

    dataset: DatasetName
    split: Literal["train", "test", "val"]
    indices: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None
    count: AmountOrName | None = None
    first: NonNegativeInt = 0
    batch: PositiveInt = 1
    names: list[str] | None = None
    offset: float = 0.0

    @model_validator(mode="after")
    def _one_selection(self) -> Targets:
        if (self.indices is None) == (self.count is None):
            raise ValueError("give either indices or count")
        if self.indices is not None and len(self.indices) % self.batch:
            raise ValueError(f"{len(self.indices)} indices do not fill batches of {self.batch}")
        if self.names is not None and len(self.names) * self.batch != len(self.indices or []):
            raise ValueError("names needs one entry for each of indices, or one for each batch")
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
    skip: NonNegativeInt = 0
    gain: PositiveFloat = 1.0


class LinearConfig(Section):
    """A fully connected layer and its activation."""

    fc: PositiveInt
    inputs: PositiveInt | None = None
    bias: bool = True
    activation: ActivationName = "identity"
    slope: PositiveFloat = 0.01
    gain: PositiveFloat = 1.0


InputSize = Annotated[tuple[PositiveInt, PositiveInt, PositiveInt], Field(strict=False)]


class Model(Section):
    """A network as a chain of layers."""

    input: InputSize
    layers: Annotated[list[dict[str, Any]], Field(min_length=1)]
    spread: PositiveFloat | None = None

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
                raise ValueError(f"layer {number}: {sentence(error, kind)}") from error
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
            skip=layer.skip,
            gain=layer.gain,
        )
    assert isinstance(layer, LinearConfig)
    activation = Activation(layer.activation, layer.slope)
    return LinearSpec(layer.fc, layer.bias, activation, layer.inputs, layer.gain)


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


class GaussianNoiseConfig(Section):
    """Gaussian noise on every gradient."""

    method: Literal["gaussian_noise"]
    level: PositiveFloat
    relative: bool = True


DefenceConfig = Annotated[NoDefence | GaussianNoiseConfig, Field(discriminator="method")]


class RGapConfig(Section):
    """R-GAP."""

    method: Literal["rgap"]
    precision: Literal["float32", "float64"] = "float64"
    rows: Literal["plain", "balanced"] = "plain"


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


class HybridConfig(Section):
    """H-GAP: for each image the answer with the least noise."""

    method: Literal["h_gap"]
    of: Annotated[list[Identifier], Field(min_length=2)]


class PhongConfig(Section):
    """The bias attack on a fully connected first layer."""

    method: Literal["phong"]
    rows: Literal["average", "weighted", "single"] = "average"


class Optimised(Section):
    """What attacks that search for an image have in common."""

    starts: AmountOrName = 1
    iterations: AmountOrName = 1000
    images: AmountOrName | None = None


class DlgConfig(Optimised):
    """DLG and iDLG."""

    method: Literal["dlg"]
    label: Literal["from_view", "unknown"] = "from_view"
    start: Literal["normal", "uniform", "reconstruction", "class"] = "normal"
    of: Identifier | None = None
    answer: Literal["answer", "twin"] = "answer"
    own_images: Identifier | None = None
    start_noise: Annotated[float, Field(ge=0)] = 0.0
    precision: Literal["float32", "float64"] = "float64"

    @model_validator(mode="after")
    def _start_given(self) -> DlgConfig:
        if (self.start == "reconstruction") != (self.of is not None):
            raise ValueError("start: reconstruction needs of: ATTACK, and nothing else takes it")
        if (self.start == "class") != (self.own_images is not None):
            raise ValueError("start: class needs own_images: TARGETS, and nothing else takes it")
        return self


class InvertingConfig(Optimised):
    """Inverting Gradients."""

    method: Literal["inverting_gradients"]
    rate: PositiveFloat = 0.1
    tv: Annotated[float, Field(ge=0)] = 1e-4


class GaussNewtonConfig(Optimised):
    """Second-order attack on the gradient residual."""

    method: Literal["gauss_newton"]
    start: Literal["normal", "reconstruction"] = "reconstruction"
    of: Identifier | None = None

    @model_validator(mode="after")
    def _start_given(self) -> GaussNewtonConfig:
        if (self.start == "reconstruction") != (self.of is not None):
            raise ValueError("start: reconstruction needs of: ATTACK, and nothing else takes it")
        return self


AttackConfig = Annotated[
    RGapConfig
    | CopaConfig
    | TotalVariationConfig
    | HybridConfig
    | PhongConfig
    | DlgConfig
    | InvertingConfig
    | GaussNewtonConfig,
    Field(discriminator="method"),
]


class Experiment(Section):
    """Every listed model, defence and attack on one target set."""

    paper: Literal["copa", "rgap", "fedkl", "mkor"]
    targets: Identifier
    models: Annotated[list[Identifier], Field(min_length=1)]
    seeds: AmountOrName
    defences: Annotated[list[Identifier], Field(min_length=1)]
    attacks: Annotated[list[Identifier], Field(min_length=1)]
    loss: Literal["cross_entropy", "logistic", "exponential", "hinge"] = "cross_entropy"
    labels: Literal["dataset", "opposite", "same"] = "dataset"
    precision: Literal["float32", "float64"] = "float32"
    label: Literal["granted", "recovered"] = "granted"
    conditions: AmountOrName | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> Experiment:
        if (self.loss == "cross_entropy") != (self.labels == "dataset"):
            raise ValueError(
                "labels: dataset goes with cross_entropy; losses of one output take labels: "
                "opposite (to the network's sign) or same"
            )
        return self
