"""Sections of config.yaml: attacks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from gradleak.section import (
    AmountOrName,
    Count,
    Draws,
    Identifier,
    Identifiers,
    Precision,
    Section,
)
from gradleak.server_sections import MkorConfig


class RGapConfig(Section):
    """R-GAP."""

    method: Literal["rgap"]
    precision: Precision = "float64"
    rows: Literal["plain", "balanced"] = "plain"


class UnlockConfig(Section):
    """The closed form that opens a key-lock by moments of what lies behind it."""

    method: Literal["unlock"]


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

    starts: Draws = 1
    iterations: AmountOrName = 1000
    images: AmountOrName | None = None


class Judged(Optimised):
    """When a search by the relative distance of gradients is held for a failure."""

    failure_loss: PositiveFloat = 0.5
    failure_range: PositiveFloat = 1.0


class Unlocking(Optimised):
    """Attacks that can search for a lock's scale and shift beside the image."""

    lock: Literal["guess", "fit"] = "guess"


class DlgConfig(Judged, Unlocking):
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


class InvertingConfig(Cosine, Unlocking):
    """Inverting Gradients."""

    method: Literal["inverting_gradients"]


class ClassFishingConfig(Cosine):
    """Inverting Gradients for the class that a server fishes for."""

    method: Literal["class_fishing"]


class GrnnConfig(Unlocking):
    """GRNN."""

    method: Literal["grnn"]
    label: Literal["from_view", "unknown"] = "unknown"
    rate: PositiveFloat = 1e-4
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    tv: Annotated[float, Field(ge=0)] = 1e-3
    norm: Annotated[float, Field(ge=0)] = 1.0
    wasserstein: Annotated[float, Field(ge=0)] = 0.0
    latent: Count = 128
    precision: Precision = "float32"
    failure_loss: PositiveFloat = 0.5


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


class GglConfig(Section):
    """GGL: CMA-ES over the latent vectors of a generator."""

    method: Literal["ggl"]
    generator: Identifier
    generations: AmountOrName = 500
    population: Annotated[Count, Field(ge=2)] = 50
    starts: Draws = 1
    images: AmountOrName | None = None
    sigma: PositiveFloat = 0.5
    bound: PositiveFloat = 2.0
    prior: Annotated[float, Field(ge=0)] = 0.001
    precision: Precision = "float32"
    failure_loss: PositiveFloat = 2.0


def _check_start(start: str, of: str | None) -> None:
    if (start == "reconstruction") != (of is not None):
        raise ValueError("start: reconstruction needs of: ATTACK, and nothing else takes it")


# Methods that search for images step by step; the others solve for them.
SEARCHES = ("dlg", "inverting_gradients", "gauss_newton", "class_fishing", "ggl", "grnn")

AttackConfig = Annotated[
    RGapConfig
    | UnlockConfig
    | CopaConfig
    | TotalVariationConfig
    | HybridConfig
    | PhongConfig
    | DlgConfig
    | InvertingConfig
    | ClassFishingConfig
    | MkorConfig
    | GrnnConfig
    | GaussNewtonConfig
    | GglConfig,
    Field(discriminator="method"),
]
