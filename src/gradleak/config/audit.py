"""Sections of config.yaml: user's networks to audit."""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from gradleak.settings import fields

# Keys of an audit whose values are numbers, or lists of them.
NUMBERS = ("input", "classes", "seed", "count", "seeds", "batches", "offset", "std", "limit")
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class FileNetwork(fields.Section):
    """A network from a function or class in a Python file; the file's code is run."""

    file: fields.OwnPath
    factory: Name
    arguments: dict[Name, Any] = Field(default={})


class TorchvisionNetwork(fields.Section):
    """A classifier of torchvision, by its name there."""

    torchvision: Name
    arguments: dict[Name, Any] = Field(default={})


class FolderSamples(fields.Section):
    """A user's own images; sub-folders are classes."""

    folder: fields.OwnPath


class DatasetSamples(fields.Section):
    """Images of a data set, or of its embedded stand-in under ``images: embedded``."""

    dataset: fields.DatasetName
    split: fields.SplitName = "train"

    _known_split = model_validator(mode="after")(fields.known_split)


def _number(value: Any) -> Any:
    """Parse a number, or a list of them, that a command line passes as text."""
    if isinstance(value, list | tuple):
        return [_number(one) for one in value]
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            continue
    return value


def _by_key(otherwise: str, **kinds: type[fields.Section]) -> Discriminator:
    """Tell the kinds of an entry by the key that only one of them has."""

    def has(value: Any, kind: str) -> bool:
        return isinstance(value, kinds[kind]) or (isinstance(value, dict) and kind in value)

    return Discriminator(lambda value: next((k for k in kinds if has(value, k)), otherwise))


def _embedded(value: Any) -> Any:
    """Accept the word ``embedded``; otherwise name the forms that are accepted."""
    if value != "embedded":
        found = f"{value} is none of its forms; " if isinstance(value, dict) else ""
        forms = "embedded, {dataset: cifar10, split: test} or {folder: /path/to/images}"
        raise ValueError(f"{found}give {forms}")
    return value


class AuditConfig(fields.Section):
    """A network under audit: its definition, the images it is tested on, and the leakage allowed.

    `weights` is a safetensors file or a state dict; without it the network is initialised with
    `seed`. Inputs are (pixels / 255 + `offset`) / `std`. `batches` are numbers of images that share
    a gradient: the first for the network as it is, then larger ones, evaluated as a mitigation.
    ``results/audit/{name}/passed.txt`` is made if no attack reads a larger share of gradients than
    `limit`, or than in the ``audit.json`` of an earlier audit, `baseline`. A gradient `counts` if
    it was read at least in part (``partly``), or only if it was read (``read``).
    """

    network: Annotated[
        Annotated[FileNetwork, Tag("file")] | Annotated[TorchvisionNetwork, Tag("torchvision")],
        _by_key("file", torchvision=TorchvisionNetwork),
    ]
    input: fields.InputSize
    classes: fields.Count | None = None
    weights: fields.OwnPath | None = None
    seed: fields.Seed = 0
    samples: Annotated[
        Annotated[Literal["embedded"], BeforeValidator(_embedded), Tag("embedded")]
        | Annotated[FolderSamples, Tag("folder")]
        | Annotated[DatasetSamples, Tag("dataset")],
        _by_key("embedded", folder=FolderSamples, dataset=DatasetSamples),
    ] = "embedded"
    loss: fields.LossName = "cross_entropy"
    mode: Literal["auto", "training", "evaluation"] = "auto"
    count: fields.AmountOrName | None = None
    seeds: fields.Draws | None = None
    batches: Annotated[list[fields.Count], Field(min_length=1)] = Field(default=[1, 4])
    offset: fields.Offset = 0.0
    std: fields.Std = 1.0
    limit: Annotated[float, Field(ge=0, le=1)] | None = None
    baseline: fields.OwnPath | None = None
    counts: Literal["read", "partly"] = "partly"

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: _number(own) if key in NUMBERS else own for key, own in values.items()}

    @model_validator(mode="after")
    def _growing(self) -> Self:
        if any(a >= b for a, b in pairwise(self.batches)):
            raise ValueError(f"batches: {self.batches} must grow; give for example [1, 4]")
        return self
