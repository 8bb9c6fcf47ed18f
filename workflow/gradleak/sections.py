"""Sections of config.yaml: closed models of what a person may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from gradleak.errors import ConfigError
from gradleak.layers import specs
from gradleak.losses import OF_CLASSES
from gradleak.models import resnet, vgg16
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.section import (
    ActivationName,
    AmountOrName,
    DatasetName,
    Identifier,
    Identifiers,
    InputSize,
    Precision,
    ScaledInputSize,
    Section,
)
from gradleak.server_sections import MkorConfig


class Data(Section):
    """Where data sets lie."""

    root: Annotated[str, Field(min_length=1)] = "data"
    imagenet: str | None = None
    mirrors: dict[DatasetName, str] = Field(default={})


class Amount(Section):
    """One amount at each scale."""

    smoke: PositiveInt
    laptop: PositiveInt
    paper: PositiveInt


class Targets(Section):
    """Images under attack: either `indices` or `count` of a split, from image `first` on.

    `batch` images share one gradient, so `count` is a number of batches. Where `draw` is
    ``unique``, a batch has one image of each of its classes; where it is ``random``, any images
    of `classes` classes, or of all. Where a data set has too few images for random batches,
    `relabel` appends the same batches so many times, under labels drawn at random among `classes`,
    or all. `size` is the side that images are cropped or enlarged to;
    `resize` says whether enlarging repeats pixels or is ``bilinear``.
    """

    dataset: DatasetName
    split: Literal["train", "test", "val"]
    indices: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None
    count: AmountOrName | None = None
    first: NonNegativeInt = 0
    batch: AmountOrName = 1
    draw: Literal["consecutive", "unique", "random"] = "consecutive"
    classes: AmountOrName | None = None
    seed: NonNegativeInt = 0
    relabel: NonNegativeInt = 0
    size: AmountOrName | None = None
    resize: Literal["repeat", "bilinear"] = "repeat"
    names: list[str] | None = None
    offset: float = 0.0

    @model_validator(mode="after")
    def _one_selection(self) -> Targets:
        if (self.indices is None) == (self.count is None):
            raise ValueError("give either indices or count")
        if self.draw != "consecutive" and (self.indices is not None or self.first):
            raise ValueError(f"draw: {self.draw} chooses images itself; take indices and first out")
        if self.draw != "random" and not self.relabel and self.classes is not None:
            raise ValueError("classes goes with draw: random or relabel; take it out")
        if self.draw != "random" and not self.relabel and self.seed:
            raise ValueError("seed goes with draw: random or relabel; take it out")
        if self.resize != "repeat" and self.size is None:
            raise ValueError(f"resize: {self.resize} goes with size; give it or take resize out")
        if self.indices is None and self.names is None:
            return self
        if isinstance(self.batch, str):
            raise ValueError("indices and names need batch as a number, not a name of scales")
        if self.indices is not None and len(self.indices) % self.batch:
            raise ValueError(f"{len(self.indices)} indices do not fill batches of {self.batch}")
        if self.names is not None and len(self.names) * self.batch != len(self.indices or []):
            raise ValueError("names needs one entry for each of indices, or one for each batch")
        return self


def _flat(layers: Any) -> Any:
    """Layers, a list among them taken for its entries: networks can share one by an anchor."""
    if not isinstance(layers, list):
        return layers
    parts = (entry if isinstance(entry, list) else [entry] for entry in layers)
    return [layer for part in parts for layer in part]


Layers = Annotated[
    list[dict[str, Any]],
    BeforeValidator(_flat, json_schema_input_type=list[dict[str, Any] | list[dict[str, Any]]]),
    Field(min_length=1),
]


class ResNetConfig(Section):
    """A residual network (He et al. 2016), with the skips of the blocks in `cut` left out."""

    kind: Literal["resnet18", "resnet20", "resnet32", "resnet34", "resnet101"]
    width: PositiveInt
    classes: PositiveInt
    stem: Literal["small", "large"] = "small"
    cut: list[PositiveInt] = Field(default=[])


class VggConfig(Section):
    """VGG-16 (Simonyan and Zisserman 2015)."""

    kind: Literal["vgg16"]
    classes: PositiveInt


class Model(Section):
    """A network: a chain of layers, or a known architecture."""

    input: ScaledInputSize
    layers: Layers | None = None
    architecture: Annotated[ResNetConfig | VggConfig, Field(discriminator="kind")] | None = None
    spread: PositiveFloat | None = None

    @model_validator(mode="after")
    def _known_layers(self) -> Model:
        if (self.layers is None) == (self.architecture is None):
            raise ValueError("give either layers or architecture")
        self.specs(lambda value: value if isinstance(value, int) else 1)
        return self

    def specs(self, amount: Callable[[int | str], int]) -> tuple[ConvSpec | LinearSpec, ...]:
        """Layers as the package's own descriptions; `amount` is that of `gradleak.layers.specs`."""
        if self.layers is not None:
            return specs(self.layers, amount)
        known = self.architecture
        if isinstance(known, VggConfig):
            return vgg16.specs(known.classes)
        assert known is not None
        try:
            return resnet.specs(known.kind, known.width, known.classes, known.stem, known.cut)
        except ConfigError as error:
            raise ValueError(f"architecture: {str(error).rstrip('.')}") from error

    @property
    def amounts(self) -> list[str]:
        """Names of ``scales`` that layers and sides use."""
        widths = (raw.get("fc") for raw in self.layers or ())
        return [value for value in (*self.input, *widths) if isinstance(value, str)]


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


class SoteriaConfig(Section):
    """Features that would disturb a reconstruction most are not shared."""

    method: Literal["soteria"]
    prune: Annotated[float, Field(gt=0, lt=1)] = 0.3


class ClippingConfig(Section):
    """The whole gradient is scaled down to a norm."""

    method: Literal["clipping"]
    norm: PositiveFloat = 1.0


DefenceConfig = Annotated[
    NoDefence | GaussianNoiseConfig | ClippingConfig | SoteriaConfig, Field(discriminator="method")
]


class RGapConfig(Section):
    """R-GAP."""

    method: Literal["rgap"]
    precision: Precision = "float64"
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
    of: Annotated[Identifiers, Field(min_length=2)]


class PhongConfig(Section):
    """The bias attack on a fully connected first layer."""

    method: Literal["phong"]
    rows: Literal["average", "weighted", "single"] = "average"


class Optimised(Section):
    """What attacks that search for an image have in common.

    Defaults here and in sections of such attacks are those of the attack's own class.
    """

    starts: AmountOrName = 1
    iterations: AmountOrName = 1000
    images: AmountOrName | None = None


class Judged(Optimised):
    """When a search by the relative distance of gradients is held for a failure."""

    failure_loss: PositiveFloat = 0.5
    failure_range: PositiveFloat = 1.0


class DlgConfig(Judged):
    """DLG and iDLG."""

    method: Literal["dlg"]
    label: Literal["from_view", "unknown"] = "from_view"
    start: Literal["normal", "uniform", "reconstruction", "class"] = "normal"
    of: Identifier | None = None
    answer: Literal["answer", "twin"] = "answer"
    own_images: Identifier | None = None
    start_noise: Annotated[float, Field(ge=0)] = 0.0
    precision: Precision = "float64"

    @model_validator(mode="after")
    def _start_given(self) -> DlgConfig:
        _check_start(self.start, self.of)
        if (self.start == "class") != (self.own_images is not None):
            raise ValueError("start: class needs own_images: TARGETS, and nothing else takes it")
        if self.of is None and "answer" in self.model_fields_set:
            raise ValueError(
                f"answer: {self.answer} chooses among the answers of another attack; add start: "
                "reconstruction and of: ATTACK, or take answer out"
            )
        if self.start in ("normal", "uniform") and "start_noise" in self.model_fields_set:
            raise ValueError(
                f"start_noise is added to given starts, and start: {self.start} is noise already; "
                "take start_noise out, or choose start: reconstruction or class"
            )
        return self


class Cosine(Optimised):
    """Settings of a search by the cosine distance of gradients."""

    rate: PositiveFloat = 0.1
    tv: Annotated[float, Field(ge=0)] = 1e-4
    precision: Precision = "float32"
    failure_loss: PositiveFloat = 1.0


class InvertingConfig(Cosine):
    """Inverting Gradients."""

    method: Literal["inverting_gradients"]


class ClassFishingConfig(Cosine):
    """Inverting Gradients for the class that a server fishes for."""

    method: Literal["class_fishing"]


class GaussNewtonConfig(Judged):
    """Second-order attack on the gradient residual."""

    method: Literal["gauss_newton"]
    start: Literal["normal", "reconstruction"] = "reconstruction"
    of: Identifier | None = None
    iterations: AmountOrName = 30

    @model_validator(mode="after")
    def _start_given(self) -> GaussNewtonConfig:
        _check_start(self.start, self.of)
        return self


def _check_start(start: str, of: str | None) -> None:
    if (start == "reconstruction") != (of is not None):
        raise ValueError("start: reconstruction needs of: ATTACK, and nothing else takes it")


AttackConfig = Annotated[
    RGapConfig
    | CopaConfig
    | TotalVariationConfig
    | HybridConfig
    | PhongConfig
    | DlgConfig
    | InvertingConfig
    | ClassFishingConfig
    | MkorConfig
    | GaussNewtonConfig,
    Field(discriminator="method"),
]


class Experiment(Section):
    """Every listed model, defence and attack on one target set."""

    paper: Literal["copa", "rgap", "fedkl", "mkor"]
    targets: Identifier
    models: Identifiers
    seeds: AmountOrName
    defences: Identifiers
    attacks: Identifiers
    loss: Literal["cross_entropy", "raw_logits", "logistic", "exponential", "hinge"] = (
        "cross_entropy"
    )
    labels: Literal["dataset", "opposite", "same"] = "dataset"
    precision: Precision = "float32"
    label: Literal["granted", "recovered"] = "granted"
    kept: Literal["all", "classifier"] = "all"
    server: Identifier = "honest"
    conditions: AmountOrName | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> Experiment:
        if (self.loss in OF_CLASSES) != (self.labels == "dataset"):
            raise ValueError(
                "labels: dataset goes with cross_entropy and raw_logits; losses of one output take "
                "labels: opposite (to the network's sign) or same"
            )
        return self
