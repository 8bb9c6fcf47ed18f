"""Sections of config.yaml: closed models of what a person may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PrivateAttr, model_validator

from gradleak import registry
from gradleak.audit_sections import AuditConfig
from gradleak.errors import ConfigError
from gradleak.generator_sections import GeneratorConfig
from gradleak.layers import specs
from gradleak.losses import OF_CLASSES
from gradleak.models import resnet, vgg16
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock
from gradleak.section import (
    ActivationName,
    AmountOrName,
    Count,
    DatasetName,
    Identifier,
    Identifiers,
    Indices,
    InputSize,
    MirrorName,
    Offset,
    OwnPath,
    Precision,
    ScaledInputSize,
    Section,
    Seed,
    Std,
    WebAddress,
    Whole,
    known_split,
)
from gradleak.servers.honest import HonestServer
from gradleak.training_sections import TrainingConfig

if TYPE_CHECKING:
    from gradleak.attacks.base import Entry as AttackConfig
    from gradleak.section import Method as DefenceConfig
    from gradleak.section import Method as ServerConfig
else:
    AttackConfig = registry.entries("attacks")
    DefenceConfig = registry.entries("defences")
    ServerConfig = registry.entries("servers")


class Data(Section):
    """Where data sets lie, and addresses that replace the official ones."""

    root: OwnPath = "data"
    imagenet: OwnPath | None = None
    mirrors: dict[MirrorName, WebAddress] = Field(default={})


class Amount(Section):
    """One amount at each scale."""

    smoke: Count
    laptop: Count
    paper: Count


class Targets(Section):
    """Images under attack: either `indices` or `count` of a split, from image `first` on.

    `batch` images share one gradient, so `count` is a number of batches. Where `draw` is
    ``unique``, a batch has one image of each of its classes; where it is ``random``, any images
    of `classes` classes, or of all. Where a data set has too few images for random batches,
    `relabel` appends the same batches so many times, under labels drawn at random among `classes`,
    or all. `size` is the side that images are cropped or enlarged to;
    `resize` says whether enlarging repeats pixels or is ``bilinear``. Inputs of networks are
    (pixels / 255 + `offset`) / `std`.
    """

    dataset: DatasetName
    split: Literal["train", "test", "val"]
    indices: Indices | None = None
    count: AmountOrName | None = None
    first: Whole = 0
    batch: AmountOrName = 1
    draw: Literal["consecutive", "unique", "random"] = "consecutive"
    classes: AmountOrName | None = None
    seed: Seed = 0
    relabel: Whole = 0
    size: AmountOrName | None = None
    resize: Literal["repeat", "bilinear"] = "repeat"
    names: list[str] | None = None
    offset: Offset = 0.0
    std: Std = 1.0

    @model_validator(mode="after")
    def _one_selection(self) -> Targets:
        known_split(self.dataset, self.split)
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
    width: AmountOrName
    classes: Count
    stem: Literal["small", "large"] = "small"
    cut: list[Count] = Field(default=[])
    activation: Literal["relu", "sigmoid"] = "relu"


class VggConfig(Section):
    """VGG-16 (Simonyan and Zisserman 2015)."""

    kind: Literal["vgg16"]
    classes: Count


class LockConfig(Section):
    """Key-lock: scale and shift of the norm behind convolutions, made from a client's key (FedKL).

    `layers` are the convolutions, ``conv1`` for the first, ``conv8_skip`` for the projection of the
    skip that ends at the eighth; `key` is the key's length.
    """

    layers: Annotated[
        list[Annotated[str, Field(pattern=r"^conv[1-9][0-9]*(_skip)?$")]], Field(min_length=1)
    ] = Field(default=["conv1"])
    key: Count = 1024
    activation: Literal["identity", "relu", "sigmoid"] = "relu"


class Model(Section):
    """A network: a chain of layers, or a known architecture; some of its layers may be locked."""

    input: ScaledInputSize
    layers: Layers | None = None
    architecture: Annotated[ResNetConfig | VggConfig, Field(discriminator="kind")] | None = None
    spread: PositiveFloat | None = None
    lock: LockConfig | None = None

    @model_validator(mode="after")
    def _known_layers(self) -> Model:
        if (self.layers is None) == (self.architecture is None):
            raise ValueError("give either layers or architecture")
        self.specs(lambda value: value if isinstance(value, int) else 1)
        return self

    def specs(self, amount: Callable[[int | str], int]) -> tuple[ConvSpec | LinearSpec, ...]:
        """Layers as the package's own descriptions; `amount` is that of `gradleak.layers.specs`."""
        plain = self._plain(amount)
        if self.lock is None:
            return plain
        lock = Lock(self.lock.key, Activation(self.lock.activation))
        try:
            return with_lock(plain, self.lock.layers, lock)
        except ConfigError as error:
            raise ValueError(str(error).rstrip(".")) from error

    def _plain(self, amount: Callable[[int | str], int]) -> tuple[ConvSpec | LinearSpec, ...]:
        """Layers without a lock."""
        if self.layers is not None:
            return specs(self.layers, amount)
        known = self.architecture
        if isinstance(known, VggConfig):
            return vgg16.specs(known.classes)
        assert known is not None
        try:
            width = amount(known.width)
            return resnet.specs(
                known.kind, width, known.classes, known.stem, known.cut, known.activation
            )
        except ConfigError as error:
            raise ValueError(f"architecture: {str(error).rstrip('.')}") from error

    @property
    def amounts(self) -> list[str]:
        """Names of ``scales`` that layers and sides use."""
        widths = [raw.get("fc") for raw in self.layers or ()]
        if isinstance(self.architecture, ResNetConfig):
            widths.append(self.architecture.width)
        return [value for value in (*self.input, *widths) if isinstance(value, str)]


class Family(Section):
    """Networks drawn at random from lists of sizes."""

    input: InputSize
    networks: AmountOrName
    seed: Seed
    convolutions: Count
    filters: Annotated[list[Count], Field(min_length=1)]
    kernels: Annotated[list[Count], Field(min_length=1)]
    strides: Annotated[list[Count], Field(min_length=1)]
    paddings: Annotated[list[Whole], Field(min_length=1)]
    classes: Count
    activation: ActivationName


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
    mode: Literal["training", "evaluation"] = "training"
    training: Identifier | None = None
    server: Identifier = "honest"
    lock: Literal["withheld", "key", "gradient", "both"] = "withheld"
    conditions: AmountOrName | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> Experiment:
        if (self.loss in OF_CLASSES) != (self.labels == "dataset"):
            raise ValueError(
                "labels: dataset goes with cross_entropy and raw_logits; losses of one output take "
                "labels: opposite (to the network's sign) or same"
            )
        return self


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
    groups: dict[Identifier, Identifiers] = Field(default={})
    servers: dict[Identifier, ServerConfig] = Field(default={"honest": HonestServer()})
    trainings: dict[Identifier, TrainingConfig] = Field(default={})
    generators: dict[Identifier, GeneratorConfig] = Field(default={})
    defences: dict[Identifier, DefenceConfig]
    attacks: dict[Identifier, AttackConfig]
    experiments: dict[Identifier, Experiment]
    audit: dict[Identifier, AuditConfig] = Field(default={})
    _chains: dict[tuple[str, str], Chain] = PrivateAttr(default_factory=dict)

    def amount(self, value: int | str) -> int:
        """Resolve an amount: a number, or a name in `scales` at the current scale."""
        if isinstance(value, int):
            return value
        return int(getattr(self.scales[value], self.scale))

    def chain(self, model: str) -> Chain:
        """Chain of one entry of `models`."""
        # Rules ask thousands of times; a copy at another scale shares what is kept here.
        known = self._chains.get((self.scale, model))
        if known is None:
            entry = self.models[model]
            channels, height, width = (self.amount(value) for value in entry.input)
            size = channels, height, width
            known = Chain(model, size, entry.specs(self.amount), entry.spread)
            self._chains[self.scale, model] = known
        return known

    def members(self, model: str) -> list[str]:
        """Models in the file of an id: those of a group, or the model itself."""
        return self.groups.get(model, [model])
