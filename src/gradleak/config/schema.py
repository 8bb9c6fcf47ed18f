"""Sections of config.yaml: closed models of valid entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from gradleak.config.audit import AuditConfig
from gradleak.config.generators import GeneratorConfig
from gradleak.config.layer_config import ConvConfig, LinearConfig, parse, spec
from gradleak.config.training import TrainingConfig
from gradleak.errors import ConfigError
from gradleak.models import resnet, vgg16
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock
from gradleak.models.losses import OF_CLASSES
from gradleak.servers.honest import HonestServer
from gradleak.settings import registry
from gradleak.settings.fields import (
    ActivationName,
    AmountOrName,
    Count,
    DatasetName,
    Draws,
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
    at_scale,
    known_split,
)

if TYPE_CHECKING:
    from gradleak.attacks.base import Entry as AttackConfig
    from gradleak.settings.fields import Method as DefenceConfig
    from gradleak.settings.fields import Method as ServerConfig
else:
    AttackConfig = registry.entries("attacks")
    DefenceConfig = registry.entries("defences")
    ServerConfig = registry.entries("servers")


class Data(Section):
    """Location of data sets, and addresses that replace the official ones."""

    root: OwnPath = "data"
    imagenet: OwnPath | None = None
    mirrors: dict[MirrorName, WebAddress] = Field(default={})


class Targets(Section):
    """Images under attack: either `indices` or `count` of a split, from image `first` on.

    `batch` images share one gradient; `count` is a number of batches. With `draw` ``unique``, a
    batch has one image of each of its classes; with ``random``, any images of `classes` classes, or
    of all. If a data set has too few images for random batches, `relabel` appends the same batches
    so many times, under labels drawn at random among `classes`, or all. Images are cropped or
    enlarged to side `size`, enlarged by ``repeat`` of pixels or ``bilinear`` (`resize`). Network
    inputs are (pixels / 255 + `offset`) / `std`.
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
        if self.indices is not None and len(self.indices) % self.batch:
            raise ValueError(f"{len(self.indices)} indices do not fill batches of {self.batch}")
        if self.names is not None and len(self.names) * self.batch != len(self.indices or []):
            raise ValueError("names needs one entry for each of indices, or one for each batch")
        return self


Layer = ConvConfig | LinearConfig
# Raw entries; nested lists are flattened.
Layers = Annotated[
    list[Layer],
    BeforeValidator(lambda layers: layers, json_schema_input_type=list[Layer | list[Layer]]),
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

    _specs: tuple[ConvSpec | LinearSpec, ...] = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _parsed(cls, values: Any, info: ValidationInfo) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("layers"), list):
            return values
        return {**values, "layers": parse(values["layers"], info.context)}

    @model_validator(mode="after")
    def _known_layers(self) -> Model:
        if (self.layers is None) == (self.architecture is None):
            raise ValueError("give either layers or architecture")
        self._specs = self._plain()
        if self.lock is not None:
            lock = Lock(self.lock.key, Activation(self.lock.activation))
            try:
                self._specs = with_lock(self._specs, self.lock.layers, lock)
            except ConfigError as error:
                raise ValueError(str(error).rstrip(".")) from error
        return self

    def _plain(self) -> tuple[ConvSpec | LinearSpec, ...]:
        """Layers without a lock."""
        if self.layers is not None:
            return tuple(spec(layer) for layer in self.layers)
        known = self.architecture
        if isinstance(known, VggConfig):
            return vgg16.specs(known.classes)
        assert known is not None
        try:
            return resnet.specs(
                known.kind, known.width, known.classes, known.stem, known.cut, known.activation
            )
        except ConfigError as error:
            raise ValueError(f"architecture: {str(error).rstrip('.')}") from error

    def chain(self, name: str) -> Chain:
        """Network under a name; inconsistent layers raise an error only when it is built."""
        return Chain(name, self.input, self._specs, self.spread)


class Family(Section):
    """Networks drawn at random from lists of sizes."""

    input: InputSize
    networks: Draws
    seed: Seed
    convolutions: Count
    filters: Annotated[list[Count], Field(min_length=1)]
    kernels: Annotated[list[Count], Field(min_length=1)]
    strides: Annotated[list[Count], Field(min_length=1)]
    paddings: Annotated[list[Whole], Field(min_length=1)]
    classes: Count
    activation: ActivationName


class Paper(Section):
    """A paper; papers are listed by year, then by name."""

    year: Annotated[int, Field(ge=1900, le=2200)]


class Experiment(Section):
    """Every listed model, defence and attack on one target set.

    Only the first `few_seeds` seeds are used where results hardly depend on the seed.
    """

    paper: Identifier
    targets: Identifier
    models: Identifiers
    seeds: Draws
    few_seeds: AmountOrName = 3
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

    @property
    def few(self) -> int:
        """Number of seeds where results hardly depend on them."""
        return min(self.few_seeds, self.seeds)


class Config(Section):
    """All of config.yaml and of the files that it includes, amounts as numbers at its scale."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]
    device: Literal["auto", "cpu", "cuda", "mps"]
    data: Data
    include: list[OwnPath] = Field(default=[])
    papers: dict[Identifier, Paper]
    scales: dict[Identifier, AmountOrName] = Field(default={})
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
    _raw: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _scales: dict[str, Config] = PrivateAttr(default_factory=dict)
    _chains: dict[str, Chain] = PrivateAttr(default_factory=dict)

    @classmethod
    def resolve(cls, raw: Mapping[str, Any]) -> Config:
        """Validate parsed settings, amounts as numbers at their scale."""
        config = cls.model_validate(raw, context=at_scale(raw))
        config._raw = raw
        return config

    def at(self, scale: str) -> Config:
        """The same settings at another scale."""
        if scale == self.scale:
            return self
        if scale not in self._scales:
            self._scales[scale] = Config.resolve({**self._raw, "scale": scale})
        return self._scales[scale]

    def amount(self, value: int | str) -> int:
        """Resolve an amount: a number, or a name in `scales`."""
        return value if isinstance(value, int) else self.scales[value]

    def chain(self, model: str) -> Chain:
        """Chain of one entry of `models`."""
        # Cached: rules call this thousands of times.
        if model not in self._chains:
            self._chains[model] = self.models[model].chain(model)
        return self._chains[model]

    def members(self, model: str) -> list[str]:
        """Models in the file of an id: those of a group, or the model itself."""
        return self.groups.get(model, [model])
