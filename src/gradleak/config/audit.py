"""Sections of config.yaml: user's networks to audit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from gradleak.settings.fields import (
    AmountOrName,
    Count,
    DatasetName,
    Draws,
    InputSize,
    Offset,
    OwnPath,
    Section,
    Seed,
    Std,
    known_split,
)

# Keys of an audit whose values are numbers, or lists of them.
NUMBERS = ("input", "classes", "seed", "count", "seeds", "batches", "offset", "std", "limit")
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class FileNetwork(Section):
    """A network from a function or class in a Python file; the file's code is run."""

    file: OwnPath
    factory: Name
    arguments: dict[Name, Any] = Field(default={})


class TorchvisionNetwork(Section):
    """A classifier of torchvision, by its name there."""

    torchvision: Name
    arguments: dict[Name, Any] = Field(default={})


class FolderSamples(Section):
    """A user's own images; sub-folders are classes."""

    folder: OwnPath


class DatasetSamples(Section):
    """Images of a data set, or of its embedded stand-in under ``images: embedded``."""

    dataset: DatasetName
    split: Literal["train", "test", "val"] = "train"

    @model_validator(mode="after")
    def _known_split(self) -> DatasetSamples:
        known_split(self.dataset, self.split)
        return self


def _number(value: Any) -> Any:
    """Parse a number, or a list of them, that `--config` passes as text below the top level."""
    if isinstance(value, list | tuple):
        return [_number(one) for one in value]
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            continue
    return value


def _network_kind(value: Any) -> str:
    """Tag of a network entry: ``file`` unless torchvision is named."""
    named = isinstance(value, TorchvisionNetwork) or (
        isinstance(value, dict) and "torchvision" in value
    )
    return "torchvision" if named else "file"


def _embedded(value: Any) -> Any:
    """Accept the word ``embedded``; otherwise name the forms that are accepted."""
    if value != "embedded":
        found = f"{value} is none of its forms; " if isinstance(value, dict) else ""
        forms = "embedded, {dataset: cifar10, split: test} or {folder: /path/to/images}"
        raise ValueError(f"{found}give {forms}")
    return value


def _samples_kind(value: Any) -> str:
    """Tag of an entry of images."""
    for kind, section in (("folder", FolderSamples), ("dataset", DatasetSamples)):
        if isinstance(value, section) or (isinstance(value, dict) and kind in value):
            return kind
    return "embedded"


class AuditConfig(Section):
    """A network under audit: its definition, the images it is tested on, and the leakage allowed.

    `weights` is a safetensors file or a state dict; without it the network is initialised with
    `seed`. Inputs are (pixels / 255 + `offset`) / `std`. `batches` are numbers of images that share
    a gradient: the first for the network as it is, then larger ones, evaluated as a mitigation.
    ``results/audit/{name}/passed.txt`` is made if no attack reads a larger share of gradients than
    `limit`, or than in the ``audit.json`` of an earlier audit, `baseline`.
    """

    network: Annotated[
        Annotated[FileNetwork, Tag("file")] | Annotated[TorchvisionNetwork, Tag("torchvision")],
        Discriminator(_network_kind),
    ]
    input: InputSize
    classes: Count | None = None
    weights: OwnPath | None = None
    seed: Seed = 0
    samples: Annotated[
        Annotated[Literal["embedded"], BeforeValidator(_embedded), Tag("embedded")]
        | Annotated[FolderSamples, Tag("folder")]
        | Annotated[DatasetSamples, Tag("dataset")],
        Discriminator(_samples_kind),
    ] = "embedded"
    loss: Literal["cross_entropy", "raw_logits", "logistic", "exponential", "hinge"] = (
        "cross_entropy"
    )
    mode: Literal["auto", "training", "evaluation"] = "auto"
    count: AmountOrName | None = None
    seeds: Draws | None = None
    batches: Annotated[list[Count], Field(min_length=1)] = Field(default=[1, 4])
    offset: Offset = 0.0
    std: Std = 1.0
    limit: Annotated[float, Field(ge=0, le=1)] | None = None
    baseline: OwnPath | None = None

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: _number(own) if key in NUMBERS else own for key, own in values.items()}

    @model_validator(mode="after")
    def _growing(self) -> AuditConfig:
        if any(a >= b for a, b in zip(self.batches, self.batches[1:], strict=False)):
            raise ValueError(f"batches: {self.batches} must grow; give for example [1, 4]")
        return self
