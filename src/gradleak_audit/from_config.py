"""Run the audit of an entry of ``audit`` in config.yaml, or of ``gradleak audit``."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradleak.data import arrays
from gradleak.errors import ConfigError, GradleakError
from gradleak.reading.model_checks import Size, same_parameters
from gradleak_audit import source
from gradleak_audit.attack import samples
from gradleak_audit.attack.samples import Samples, Source
from gradleak_audit.run import Audited, NetworkAudit, Origin, Settings
from gradleak_audit.source import load_weights


def audit(
    name: str, settings: Mapping[str, Any], *, dataset: str | None, scale: str, device: str
) -> Audited:
    """Audit entry `name` with amounts for the scale; `dataset` is the file of its data set, if any.

    Raises `GradleakError`, whose message begins with ``audit.NAME``, before any attack is run.
    """
    try:
        return run_entry(name, settings, dataset, scale, device)
    except GradleakError as error:
        raise type(error)(f"audit.{name}: {error}") from error


def run_entry(
    name: str, settings: Mapping[str, Any], dataset: str | None, scale: str, device: str
) -> Audited:
    """Audit as `audit` does, without its name in errors."""
    network, arguments = settings["network"], settings["network"]["arguments"]
    given = ", ".join(f"{key}={value}" for key, value in arguments.items())
    if "torchvision" in network:
        own = partial(source.from_torchvision, network["torchvision"], arguments)
        words = f"torchvision's {network['torchvision']}({given})"
    else:
        own = partial(source.from_file, network["file"], network["factory"], arguments)
        words = f"{network['factory']}({given}) of {network['file']}"

    def build(seed: int) -> nn.Module:
        return own(settings["seed"] + seed)

    module, weights = build(0), settings["weights"]
    if weights is not None:
        load_weights(module, weights)
        drawn, told = False, f"file {weights}"
    elif "torchvision" in network:
        drawn, told = True, f"fresh, seed {settings['seed']}"
    else:
        drawn, told = _drawn(module, build(1), settings["seed"])
    keys = "loss", "mode", "count", "seeds", "batches", "offset", "std"
    amounts = Settings(scale=scale, device=device, **{key: settings[key] for key in keys})
    parts = _images(settings, dataset), amounts, Origin(name, words, told)
    channels, height, width = settings["input"]
    size = channels, height, width
    return NetworkAudit(module, size, *parts, build if drawn else None).run()


def _drawn(first: nn.Module, second: nn.Module, seed: int) -> tuple[bool, str]:
    """Return whether a factory's weights depend on its seed, and describe the weights."""
    parameters = dict(first.named_parameters())
    same = same_parameters(first, second, "network: the factory")
    if len(same) == len(parameters):
        return False, "weights that the factory sets"
    # Biases of 0 and scales of 1 do not depend on the seed.
    own = [name for name in same if parameters[name].unique().numel() > 1]
    set_ = f", but {len(own)} of {len(parameters)} parameters as the factory sets them"
    return True, f"fresh, seed {seed}{set_ if own else ''}"


def _images(settings: Mapping[str, Any], dataset: str | None) -> Source:
    classes, entry, own = settings["classes"], settings["samples"], samples.from_embedded
    if dataset is not None:
        name, _, split = Path(dataset).stem.rpartition("-")
        own = partial(samples.from_dataset, arrays.load(dataset, name, split))
    elif entry != "embedded":
        own = partial(samples.from_folder, entry["folder"])

    def give(size: Size, found: int) -> Samples:
        if classes is not None and found != max(classes, 2):
            raise ConfigError(
                f"classes: {classes}, but the network gives {found} scores; correct classes, or "
                "the network's arguments (of torchvision's networks: num_classes)."
            )
        return own(size, found)

    return give
