"""Sections of config.yaml: training of networks, and generators that attacks search."""

from typing import Annotated, Literal, Self

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
    def _settings_fit(self) -> Self:
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
    split: fields.SplitName = "train"
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
    def _settings_fit(self) -> Self:
        fields.known_split(self)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: true needs momentum; set it above 0, or nesterov: false")
        given = {"milestones", "factor"} & self.model_fields_set
        if self.schedule != "step" and given:
            raise ValueError(f"{min(given)} goes with schedule: step; take it out")
        return fields.sized(self)


class ConditionalVaeConfig(fields.Section):
    """A class-conditional variational autoencoder, trained on images that are not under attack.

    Training takes `images` of `split` from image `first` on, or as many as there are, cropped or
    enlarged to `size` like targets. `latent` is the latent dimension, `width` the channels at full
    resolution. Defaults are those of `gradleak.training.generators.train.Recipe` and
    `gradleak.training.generators.conditional_vae.Sizes`.
    """

    kind: Literal["conditional_vae"]
    dataset: fields.DatasetName
    split: fields.SplitName = "train"
    images: fields.AmountOrName
    first: fields.Whole = 0
    size: fields.AmountOrName | None = None
    resize: Literal["repeat", "bilinear"] = "repeat"
    epochs: fields.AmountOrName
    batch: fields.AmountOrName = 64
    latent: fields.Count = 64
    width: fields.Count = 32
    rate: PositiveFloat = 1e-3
    seed: fields.Seed = 0
    checkpoint: fields.Count = 5

    _known_split = model_validator(mode="after")(fields.known_split)


class BigGanConfig(fields.Section):
    """BigGAN-deep-256 for ImageNet's classes, from weights that the user provides.

    `weights` is the published file (docs/generators.md says where it is); images are resized to
    `size`. `truncation` chooses the statistics of the norms.
    """

    kind: Literal["biggan"]
    weights: fields.OwnPath
    size: fields.AmountOrName = 256
    truncation: Annotated[float, Field(gt=0, le=1)] = 1.0


GeneratorConfig = Annotated[ConditionalVaeConfig | BigGanConfig, Field(discriminator="kind")]
