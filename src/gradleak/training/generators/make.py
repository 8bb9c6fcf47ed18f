"""Make the generator of an entry of ``generators`` in config.yaml."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from gradleak.client.capture import pick_device
from gradleak.data import targets
from gradleak.data.arrays import Dataset
from gradleak.errors import DataError
from gradleak.runtime.artifacts import write_rows
from gradleak.training.checkpoint import clear, curve_kept
from gradleak.training.data import Images
from gradleak.training.generators import biggan, conditional_vae, files
from gradleak.training.generators.train import CURVE, Recipe, Trainer
from gradleak.training.learner import arrays_of

CHECKPOINT = "checkpoint.safetensors"


def convert_biggan(
    settings: Mapping[str, Any],
    path: str,
    provenance: dict[str, Any],
    sizes: biggan.Sizes = biggan.DEEP_256,
) -> None:
    """Write BigGAN's generator to `path` (safetensors) from weights that the user provides.

    `settings` is an entry of kind ``biggan``, amounts as numbers; `sizes` are those of the network,
    except for its side. Raises `DataError` if the weights are missing or of another network.
    """
    sized = biggan.Sizes(**{**vars(sizes), "side": settings["size"]})
    weights = biggan.convert(settings["weights"], sized, settings["truncation"])
    facts = {"truncation": settings["truncation"], "provenance": provenance}
    files.save(path, "biggan", sized, weights, facts)


def train_vae(
    data: Dataset,
    settings: Mapping[str, Any],
    *,
    device: str,
    paths: Mapping[str, str],
    provenance: dict[str, Any],
    code: str,
) -> None:
    """Train a conditional autoencoder on images of a split and write its decoder.

    `settings` are an entry of kind ``conditional_vae``, amounts as numbers. `paths` are ``weights``
    (the generator), ``curve`` (a row an epoch, rewritten as it grows), and ``checkpoints`` (a
    folder; emptied at the end), of which those of another hash `code` are not resumed. Raises
    `DataError` if the data set has no image from ``first`` on, and `ConfigError` if the network
    does not support the images' size.
    """
    images = _images(data, settings, pick_device(device))
    network = (images.shape, len(data.classes), settings["latent"], settings["width"])
    recipe = Recipe(**{field.name: settings[field.name] for field in fields(Recipe)})
    chosen = {key: settings[key] for key in ("first", "size", "resize")}
    source = {**data.identity(), **chosen, "images": len(images)}
    trainer = Trainer(conditional_vae.Sizes(*network), images, recipe, source, code)
    folder = Path(paths["checkpoints"])
    rows: list[dict[str, Any]] = []

    def show(found: list[dict[str, Any]]) -> None:
        rows[:] = found
        write_rows(paths["curve"], CURVE, found)

    def keep(path: Path) -> None:
        if rows:
            write_rows(path, CURVE, rows)

    with curve_kept(folder, keep):
        show(trainer.run(folder / CHECKPOINT, show))
    facts = {
        "source": source,
        "trained": {**rows[-1], "device": images.device.type},
        "provenance": provenance,
    }
    decoder = arrays_of(trainer.module.decoder.state_dict())
    files.save(paths["weights"], "conditional_vae", trainer.sizes, decoder, facts)
    clear(folder, folder / CHECKPOINT)


def _images(data: Dataset, settings: Mapping[str, Any], device: torch.device) -> Images:
    """Up to ``images`` images from ``first`` on, resized like target sets."""
    first = settings["first"]
    count = min(settings["images"], len(data) - first)
    if count < 1:
        raise DataError(
            f"generators: first: {first} leaves no image, since {data.dataset}-{data.split} has "
            f"{len(data)}; lower first."
        )
    images, labels = data.take(range(first, first + count))
    images, times = targets.resized(images, settings["size"], settings["resize"])
    return Images.of(images.repeat(times, axis=2).repeat(times, axis=3), labels, device)
