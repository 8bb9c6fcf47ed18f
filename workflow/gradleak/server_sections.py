"""Sections of config.yaml for servers, and for the attacks that read their secrets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from gradleak.section import (
    Count,
    Section,
    Whole,
)

Beta = PositiveFloat | Annotated[list[PositiveFloat], Field(min_length=1)]


class HonestServer(Section):
    """The model's own weights."""

    method: Literal["honest"]


class MkorServerConfig(Section):
    """MKOR's malicious parameters; keys are those of `gradleak.servers.mkor.MkorServer`."""

    method: Literal["mkor"]
    convolutions: Literal["inconspicuous", "naive"] = "inconspicuous"
    classifier: Literal["paired", "naive", "untouched"] = "paired"
    shifts: Whole | None = None
    beta: Beta = 1.0
    noise: Annotated[float, Field(ge=0)] = 1e-3
    spare: Literal["noise", "keep", "silent"] = "noise"
    sigma: Annotated[float, Field(ge=0)] = 1e-4
    output_bias: Annotated[float, Field(ge=0)] = 0.0
    paths: Count = 1


class ClassFishingServerConfig(Section):
    """The last layer's weights for one class alone."""

    method: Literal["class_fishing"]
    target: Whole = 0
    bias: PositiveFloat = 10.0


ServerConfig = Annotated[
    HonestServer | MkorServerConfig | ClassFishingServerConfig, Field(discriminator="method")
]


class MkorConfig(Section):
    """MKOR's reconstruction; keys are those of `gradleak.attacks.mkor.Mkor`."""

    method: Literal["mkor"]
    rows: Literal["path", "all"] = "path"
    coupling: Literal["solve", "ignore"] = "solve"
    refinements: Whole = 1
    free: Literal["median", "range"] = "median"
    estimate: Literal["bounds", "direct", "average", "least_squares"] = "bounds"
    native: Count | None = None
    smooth: Count | None = None
