"""Sections of config.yaml: closed models of valid entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from gradleak.config.audit import AuditConfig
from gradleak.config.layer_config import ConvConfig, LinearConfig, parse, spec
from gradleak.config.training import GeneratorConfig, TrainingConfig
from gradleak.errors import ConfigError
from gradleak.models import resnet, vgg16
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock
from gradleak.models.losses import OF_CLASSES
from gradleak.servers.base import HonestServer
from gradleak.settings import fields, registry

if TYPE_CHECKING:
    from gradleak.attacks.base import Entry as AttackConfig
    from gradleak.settings.fields import Method as DefenceConfig
    from gradleak.settings.fields import Method as ServerConfig
else:
    AttackConfig = registry.entries("attacks")
    DefenceConfig = registry.entries("defences")
    ServerConfig = registry.entries("servers")


class Data(fields.Section):
    """Location of data sets, and addresses that replace the official ones."""

    root: fields.OwnPath = "data"
    imagenet: fields.OwnPath | None = None
    mirrors: dict[fields.MirrorName, fields.WebAddress] = Field(default={})


class Targets(fields.Section):
    """Images under attack: either `indices` or `count` of a split, from image `first` on.

    `batch` images share one gradient; `count` is a number of batches. With `draw` ``unique``, a
    batch has one image of each of its classes; with ``random``, any images of `classes` classes, or
    of all. If a data set has too few images for random batches, `relabel` appends the same batches
    so many times, under labels drawn at random among `classes`, or all. Images are cropped or
    enlarged to side `size`, enlarged by ``repeat`` of pixels or ``bilinear`` (`resize`). Network
    inputs are (pixels / 255 + `offset`) / `std`.
    """

    dataset: fields.DatasetName
    split: fields.SplitName
    indices: fields.Indices | None = None
    count: fields.AmountOrName | None = None
    first: fields.Whole = 0
    batch: fields.AmountOrName = 1
    draw: Literal["consecutive", "unique", "random"] = "consecutive"
    classes: fields.AmountOrName | None = None
    seed: fields.Seed = 0
    relabel: fields.Whole = 0
    size: fields.AmountOrName | None = None
    resize: Literal["repeat", "bilinear"] = "repeat"
    names: list[str] | None = None
    offset: fields.Offset = 0.0
    std: fields.Std = 1.0

    @model_validator(mode="after")
    def _one_selection(self) -> Self:
        fields.known_split(self)
        if (self.indices is None) == (self.count is None):
            raise ValueError("give either indices or count")
        if self.draw != "consecutive" and (self.indices is not None or self.first):
            raise ValueError(f"draw: {self.draw} chooses images itself; take indices and first out")
        for key in ("classes", "seed") if self.draw != "random" and not self.relabel else ():
            if getattr(self, key) not in (None, 0):
                raise ValueError(f"{key} goes with draw: random or relabel; take it out")
        fields.sized(self)
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


class ResNetConfig(fields.Section):
    """A residual network (He et al. 2016), with the skips of the blocks in `cut` left out."""

    kind: Literal["resnet18", "resnet20", "resnet32", "resnet34", "resnet101"]
    width: fields.AmountOrName
    classes: fields.Count
    stem: Literal["small", "large"] = "small"
    cut: list[fields.Count] = Field(default=[])
    activation: Literal["relu", "sigmoid"] = "relu"


class VggConfig(fields.Section):
    """VGG-16 (Simonyan and Zisserman 2015)."""

    kind: Literal["vgg16"]
    classes: fields.Count


class LockConfig(fields.Section):
    """Key-lock: scale and shift of the norm behind convolutions, made from a client's key (FedKL).

    `layers` are the convolutions, ``conv1`` for the first, ``conv8_skip`` for the projection of the
    skip that ends at the eighth; `key` is the key's length.
    """

    layers: Annotated[
        list[Annotated[str, Field(pattern=r"^conv[1-9][0-9]*(_skip)?$")]], Field(min_length=1)
    ] = Field(default=["conv1"])
    key: fields.Count = 1024
    activation: Literal["identity", "relu", "sigmoid"] = "relu"


class Model(fields.Section):
    """A network: a chain of layers, or a known architecture; some of its layers may be locked.

    `seeds` is the least number of initializations; a training trains each of them.
    """

    input: fields.ScaledInputSize
    layers: Layers | None = None
    architecture: Annotated[ResNetConfig | VggConfig, Field(discriminator="kind")] | None = None
    spread: PositiveFloat | None = None
    lock: LockConfig | None = None
    seeds: fields.Draws = 1

    _specs: tuple[ConvSpec | LinearSpec, ...] = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _parsed(cls, values: Any, info: ValidationInfo) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("layers"), list):
            return values
        return {**values, "layers": parse(values["layers"], info.context)}

    @model_validator(mode="after")
    def _known_layers(self) -> Self:
        if (self.layers is None) == (self.architecture is None):
            raise ValueError("give either layers or architecture")
        known, where = self.architecture, "architecture: "
        try:
            if isinstance(known, ResNetConfig):
                self._specs = resnet.specs(**dict(known))
            elif known is not None:
                self._specs = vgg16.specs(known.classes)
            else:
                self._specs = tuple(spec(layer) for layer in self.layers or ())
            if self.lock is not None:
                where, lock = "", Lock(self.lock.key, Activation(self.lock.activation))
                self._specs = with_lock(self._specs, self.lock.layers, lock)
        except ConfigError as error:
            raise ValueError(f"{where}{str(error).rstrip('.')}") from error
        return self

    def chain(self, name: str) -> Chain:
        """Network under a name; inconsistent layers raise an error only when it is built."""
        return Chain(name, self.input, self._specs, self.spread)


class Family(fields.Section):
    """Networks drawn at random from lists of sizes."""

    input: fields.InputSize
    networks: fields.Draws
    seed: fields.Seed
    convolutions: fields.Count
    filters: Annotated[list[fields.Count], Field(min_length=1)]
    kernels: Annotated[list[fields.Count], Field(min_length=1)]
    strides: Annotated[list[fields.Count], Field(min_length=1)]
    paddings: Annotated[list[fields.Whole], Field(min_length=1)]
    classes: fields.Count
    activation: fields.ActivationName


class Paper(fields.Section):
    """A paper; papers are listed by year, then by name."""

    year: Annotated[int, Field(ge=1900, le=2200)]


class Experiment(fields.Section):
    """Every listed model, defence and attack on one target set.

    Only the first `few_seeds` seeds are used where results hardly depend on the seed.
    """

    paper: fields.Identifier
    targets: fields.Identifier
    models: fields.Identifiers
    seeds: fields.Draws
    few_seeds: fields.AmountOrName = 3
    defences: fields.Identifiers
    attacks: fields.Identifiers
    loss: fields.LossName = "cross_entropy"
    labels: Literal["dataset", "opposite", "same"] = "dataset"
    precision: fields.Precision = "float32"
    label: Literal["granted", "recovered"] = "granted"
    kept: Literal["all", "classifier"] = "all"
    mode: Literal["training", "evaluation"] = "training"
    training: fields.Identifier | None = None
    server: fields.Identifier = "honest"
    lock: Literal["withheld", "key", "gradient", "both"] = "withheld"
    conditions: fields.AmountOrName | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
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


class Config(fields.Section):
    """All of config.yaml and of the files that it includes, amounts as numbers at its scale."""

    images: Literal["embedded", "real"]
    scale: fields.Scale
    device: Literal["auto", "cpu", "cuda", "mps"]
    figures: Literal["titled", "bare"] = "titled"
    data: Data
    include: list[fields.OwnPath] = Field(default=[])
    papers: dict[fields.Identifier, Paper]
    scales: dict[fields.Identifier, fields.AmountOrName] = Field(default={})
    targets: dict[fields.Identifier, Targets]
    models: dict[fields.Identifier, Model]
    families: dict[fields.Identifier, Family] = Field(default={})
    groups: dict[fields.Identifier, fields.Identifiers] = Field(default={})
    servers: dict[fields.Identifier, ServerConfig] = Field(default={"honest": HonestServer()})
    trainings: dict[fields.Identifier, TrainingConfig] = Field(default={})
    generators: dict[fields.Identifier, GeneratorConfig] = Field(default={})
    defences: dict[fields.Identifier, DefenceConfig]
    attacks: dict[fields.Identifier, AttackConfig]
    experiments: dict[fields.Identifier, Experiment]
    audit: dict[fields.Identifier, AuditConfig] = Field(default={})
    _raw: Mapping[str, Any] = PrivateAttr(default_factory=dict)
    _cases: dict[tuple[str, str], Config] = PrivateAttr(default_factory=dict)
    _chains: dict[str, Chain] = PrivateAttr(default_factory=dict)

    @classmethod
    def resolve(cls, raw: Mapping[str, Any]) -> Config:
        """Validate parsed settings, amounts as numbers at their scale."""
        config = cls.model_validate(raw, context=fields.at_scale(raw))
        config._raw = raw
        return config

    def at(self, scale: str, images: str | None = None) -> Config:
        """The same settings at another scale, or of other images."""
        case = scale, images or self.images
        if case == (self.scale, self.images):
            return self
        if case not in self._cases:
            self._cases[case] = Config.resolve({**self._raw, "scale": scale, "images": case[1]})
        return self._cases[case]

    def chain(self, model: str) -> Chain:
        """Chain of one entry of `models`."""
        # Cached: rules call this thousands of times.
        if model not in self._chains:
            self._chains[model] = self.models[model].chain(model)
        return self._chains[model]

    def members(self, model: str) -> list[str]:
        """Models in the file of an id: those of a group, or the model itself."""
        return self.groups.get(model, [model])

    def drawn(self, model: str, training: str | None = None) -> int:
        """Initial weights of each network in the file of an id, or those that a training trains.

        It is the most that the networks or an experiment ask for.
        """
        own = [self.models[one].seeds for one in self.members(model) if one in self.models]
        asked = [
            entry.seeds
            for entry in self.experiments.values()
            if model in entry.models and training in (None, entry.training)
        ]
        return max(own + asked, default=1)
