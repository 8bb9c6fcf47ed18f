"""Sections of config.yaml: generators, in whose latent space attacks optimise."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from gradleak.settings import fields


class ConditionalVaeConfig(fields.Section):
    """A class-conditional variational autoencoder, trained on images that are not under attack.

    Training takes `images` of `split` from image `first` on, or as many as there are, cropped or
    enlarged to `size` like targets. `latent` is the latent dimension, `width` the channels at full
    resolution. Defaults are those of `gradleak.training.generators.train.Recipe` and
    `gradleak.training.generators.conditional_vae.Sizes`.
    """

    kind: Literal["conditional_vae"]
    dataset: fields.DatasetName
    split: Literal["train", "test", "val"] = "train"
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
