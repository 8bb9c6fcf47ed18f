"""Make the generator of an entry of ``generators`` in config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from gradleak.client.capture import pick_device
from gradleak.data import targets
from gradleak.data.arrays import Dataset
from gradleak.errors import DataError, GradleakError
from gradleak.runtime.artifacts import write_rows
from gradleak.training.data import Images
from gradleak.training.generators import biggan, biggan_weights, conditional_vae, files
from gradleak.training.generators.train import CURVE, Recipe, Trainer

CHECKPOINT, KEPT_CURVE = "checkpoint.safetensors", "curve.csv"


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
    weights = biggan_weights.convert(settings["weights"], sized, settings["truncation"])
    facts = {"truncation": settings["truncation"], "provenance": provenance}
    files.save(path, "biggan", sized, weights, facts)


def train_vae(
    data: Dataset,
    settings: Mapping[str, Any],
    *,
    device: str,
    paths: Mapping[str, str],
    provenance: dict[str, Any],
    code: str = "",
) -> None:
    """Train a conditional autoencoder and write its decoder.

    Parameters
    ----------
    data
        The split of the data set that its images are taken from.
    settings
        Entry of kind ``conditional_vae``, amounts as numbers.
    device
        auto | cpu | cuda | mps.
    paths
        ``weights`` (the generator), ``curve`` (a row an epoch, rewritten as it grows),
        ``checkpoints`` (a folder; emptied at the end).
    provenance
        Of the generator.
    code
        Hash of the code: checkpoints of other code are not resumed.

    Raises
    ------
    DataError
        If the data set has no image from ``first`` on.
    ConfigError
        If the network does not support the images' size.
    """
    images = _images(data, settings, pick_device(device))
    _, height, width, channels = images.pixels.shape
    sizes = conditional_vae.Sizes(
        (channels, height, width), len(data.classes), settings["latent"], settings["width"]
    )
    recipe = Recipe(**{field.name: settings[field.name] for field in fields(Recipe)})
    source = {**data.identity(), **{key: settings[key] for key in ("first", "size", "resize")}}
    trainer = Trainer(sizes, images, recipe, source, code)
    folder = Path(paths["checkpoints"])
    rows: list[dict[str, Any]] = []

    def show(found: list[dict[str, Any]]) -> None:
        rows[:] = found
        write_rows(paths["curve"], CURVE, found)

    try:
        show(trainer.run(folder / CHECKPOINT, show))
    except GradleakError:
        # Snakemake removes the outputs of a failed job, but its curve helps to find the reason.
        if rows:
            write_rows(folder / KEPT_CURVE, CURVE, rows)
        raise
    name = "decoder."
    weights = {
        key.removeprefix(name): value
        for key, value in trainer.weights().items()
        if key.startswith(name)
    }
    facts = {
        "source": {**source, "images": len(images)},
        "trained": {**rows[-1], "device": images.device.type},
        "provenance": provenance,
    }
    files.save(paths["weights"], "conditional_vae", sizes, weights, facts)
    for left in (CHECKPOINT, KEPT_CURVE):
        (folder / left).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _images(data: Dataset, settings: Mapping[str, Any], device: torch.device) -> Images:
    """Up to ``images`` images from ``first`` on, resized like target sets."""
    first = settings["first"]
    count = min(settings["images"], len(data) - first)
    if count < 1:
        raise DataError(
            f"generators: first: {first} leaves no image, since {data.dataset}-{data.split} has "
            f"{len(data)}; lower first."
        )
    chosen = {
        "indices": None,
        "draw": "consecutive",
        "first": first,
        "relabel": 0,
        "offset": 0.0,
        "std": 1.0,
        "names": None,
        "size": settings["size"],
        "resize": settings["resize"],
    }
    found = targets.build(data, chosen, count, 1)
    times = found.enlarged
    pixels = found.images[:, 0].repeat(times, axis=2).repeat(times, axis=3)
    return Images(
        torch.from_numpy(pixels).permute(0, 2, 3, 1).contiguous().to(device),
        torch.from_numpy(found.labels[:, 0]).to(device),
    )
