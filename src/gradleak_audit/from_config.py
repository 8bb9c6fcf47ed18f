"""Run the audit of an entry of ``audit`` in config.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from gradleak.data import arrays
from gradleak.errors import ConfigError, GradleakError
from gradleak_audit.attack import samples
from gradleak_audit.attack.samples import Samples
from gradleak_audit.read import source
from gradleak_audit.read.model_checks import same_parameters
from gradleak_audit.read.weights import load_weights
from gradleak_audit.run import Audited, Origin, Settings, audit_network


def audit(
    name: str, settings: Mapping[str, Any], *, dataset: str | None, scale: str, device: str
) -> Audited:
    """Audit the network of one entry.

    Parameters
    ----------
    name, settings
        Id of the entry, and its settings with amounts resolved for the scale.
    dataset
        File of the data set named by `samples`; None for other images.
    scale, device
        As in config.yaml.

    Raises
    ------
    GradleakError
        If network, weights, images or settings are unusable; the message begins with
        ``audit.NAME``. No attack is run then.
    """
    try:
        return _audit(name, settings, dataset, scale, device)
    except GradleakError as error:
        raise type(error)(f"audit.{name}: {error}") from error


def _audit(
    name: str, settings: Mapping[str, Any], dataset: str | None, scale: str, device: str
) -> Audited:
    def build(seed: int) -> nn.Module:
        return network(settings["network"], settings["seed"] + seed)

    module, weights = build(0), settings["weights"]
    if weights is not None:
        load_weights(module, weights)
        drawn, told = False, f"file {weights}"
    elif "torchvision" in settings["network"]:
        drawn, told = True, f"fresh, seed {settings['seed']}"
    else:
        drawn, told = _drawn(module, build(1), settings["seed"])
    own = {key: settings[key] for key in ("loss", "mode", "count", "seeds", "offset", "std")}
    batches, (channels, height, width) = tuple(settings["batches"]), settings["input"]
    return audit_network(
        module,
        (channels, height, width),
        _images(settings, dataset),
        Settings(batches=batches, scale=scale, device=device, **own),
        Origin(name, words(settings["network"]), told),
        redraw=build if drawn else None,
    )


def _drawn(first: nn.Module, second: nn.Module, seed: int) -> tuple[bool, str]:
    """Return whether a factory's weights depend on its seed, and a description of the weights.

    A factory that loads a checkpoint returns the same weights under every seed.
    """
    parameters = dict(first.named_parameters())
    same = same_parameters(first, second, "network: the factory")
    if len(same) == len(parameters):
        return False, "weights that the factory sets"
    # Biases of 0 and scales of 1 do not depend on the seed.
    own = [name for name in same if parameters[name].unique().numel() > 1]
    told = f"fresh, seed {seed}"
    if own:
        told += f", but {len(own)} of {len(parameters)} parameters as the factory sets them"
    return True, told


def network(entry: Mapping[str, Any], seed: int) -> nn.Module:
    """Return the network of ``audit.NAME.network``, initialized with `seed`."""
    if "torchvision" in entry:
        return source.from_torchvision(entry["torchvision"], entry["arguments"], seed)
    return source.from_file(entry["file"], entry["factory"], entry["arguments"], seed)


def words(entry: Mapping[str, Any]) -> str:
    """Describe the source of the network."""
    given = ", ".join(f"{key}={value}" for key, value in entry["arguments"].items())
    if "torchvision" in entry:
        return f"torchvision's {entry['torchvision']}({given})"
    return f"{entry['factory']}({given}) of {entry['file']}"


def _images(
    settings: Mapping[str, Any], dataset: str | None
) -> Callable[[tuple[int, int, int], int], Samples]:
    """Return a function that provides the entry's images for an input size and a class count."""
    classes, entry, data = settings["classes"], settings["samples"], None
    if dataset is not None:
        name, _, split = Path(dataset).stem.rpartition("-")
        data = arrays.load(dataset, name, split)

    def give(size: tuple[int, int, int], found: int) -> Samples:
        if classes is not None and found != max(classes, 2):
            raise ConfigError(
                f"classes: {classes}, but the network gives {found} scores; correct classes:, or "
                "the network's arguments."
            )
        if data is not None:
            return samples.from_dataset(data, size, found)
        if entry == "embedded":
            return samples.from_embedded(size, found)
        return samples.from_folder(entry["folder"], size, found)

    return give
