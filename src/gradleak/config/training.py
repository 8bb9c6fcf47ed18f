"""Sections of config.yaml: training of networks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from gradleak.settings import fields
from gradleak.training.clients import chosen_number


class FederatedConfig(fields.Section):
    """Clients that train a network together (FedAvg; FedKL where the network is locked).

    In each round a fraction `share` of the `clients` is chosen at random; each of them responds
    with probability `answering`, after `local_epochs` passes over its images. Training images are
    split ``iid`` or, with concentration `alpha`, by ``dirichlet``.
    """

    clients: fields.Count = 3
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    local_epochs: fields.Count = 1
    split: Literal["iid", "dirichlet"] = "iid"
    alpha: PositiveFloat = 0.5
    answering: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _settings_fit(self) -> FederatedConfig:
        if self.split != "dirichlet" and "alpha" in self.model_fields_set:
            raise ValueError("alpha goes with split: dirichlet; take it out")
        if not chosen_number(self.share, self.clients):
            raise ValueError(
                f"share: {self.share:g} of {self.clients} clients is none of them; raise it, to "
                f"{1 / self.clients:.2g} for one, or take more clients"
            )
        return self


class TrainingConfig(fields.Section):
    """Training settings of networks, and the images used.

    `train`, `validation` and `test` are numbers of images, all of `split` and disjoint; if a data
    set has fewer, all parts shrink in proportion. `size` and `resize` as in ``targets``. With
    `federated`, `epochs`, `milestones` and `checkpoint` count rounds. Defaults are those of
    `gradleak.training.recipe.Recipe`.
    """

    dataset: fields.DatasetName
    split: Literal["train", "test", "val"] = "train"
    train: fields.AmountOrName
    validation: fields.AmountOrName
    test: fields.AmountOrName
    seed: fields.Seed = 0
    size: fields.AmountOrName | None = None
    resize: Literal["repeat", "bilinear"] = "repeat"
    offset: fields.Offset = 0.0
    std: fields.Std = 1.0
    epochs: fields.AmountOrName
    batch: fields.AmountOrName = 128
    rate: PositiveFloat = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = True
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["step", "cosine", "constant"] = "cosine"
    milestones: list[Annotated[float, Field(gt=0, lt=1)]] = Field(default=[0.5, 0.75])
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    crop: fields.Whole = 4
    flip: bool = True
    precision: Literal["auto", "mixed", "float32"] = "auto"
    checkpoint: fields.Count = 5
    federated: FederatedConfig | None = None

    @model_validator(mode="after")
    def _settings_fit(self) -> TrainingConfig:
        fields.known_split(self)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: true needs momentum; set it above 0, or nesterov: false")
        given = {"milestones", "factor"} & self.model_fields_set
        if self.schedule != "step" and given:
            raise ValueError(f"{min(given)} goes with schedule: step; take it out")
        if self.resize != "repeat" and self.size is None:
            raise ValueError(f"resize: {self.resize} goes with size; give it or take resize out")
        return self
