"""Each of torchvision's classifiers, as an audit reads it.

Weights are random, images as small as the network takes them. The largest networks are searched on
PyTorch's device ``meta``, which has shapes and derivatives but no values.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn
from torchvision import models

from benchmarks.study import Row, Runs
from gradleak.attacks.base import AttackerView
from gradleak.attacks.optimization.engine.module_gradients import ModuleGradients, ModuleView
from gradleak.errors import ConfigError, NotApplicable
from gradleak.models.chain import Chain
from gradleak.reading.conversion import convert
from gradleak.reading.fx_graph import outputs
from gradleak.reading.model_checks import first_line
from gradleak.reading.untraced import read_or_run
from gradleak.runtime.progress import progress
from gradleak_audit.attack import samples
from gradleak_audit.run import NetworkAudit, Origin, Settings

SIDES = (32, 64, 96, 224)
# Their builders fix the side, by this argument; MaxViT divides every stage into 7x7 places.
FIXED: dict[str, Any] = {"vit": ("image_size", (32, 28)), "maxvit": ("input_size", ((224, 224),))}
# Parameters above which a search is tried on `meta`: it takes about ten times their memory.
LARGEST = 150_000_000
CHAIN, DERIVATIVES, REFUSED = "chain", "derivatives", "refused"
# A pool of a few places does nothing at the side that a network was made for.
LARGER = f"chain at {SIDES[-1]}, else derivatives"


def names() -> list[str]:
    """All of torchvision's classifiers."""
    return list(models.list_models(models))


TOLD = ("how", "mode", "traced", "device", "why")


def compare(path: Path, chosen: list[str] | None = None) -> pd.DataFrame:
    """Try each network once, and keep its row in a CSV file as it is done.

    Columns: ``network``, ``parameters``, ``side`` of the image, ``how`` it is read (as a chain, by
    derivatives alone, not at all), ``mode`` of its norms, ``traced`` (whether torch.fx lists its
    layers), ``device``, ``why`` it is no chain or refused.
    """
    runs = Runs(path, ["network"], TOLD, ["parameters", "side"])
    for name in progress(chosen or names(), "networks"):
        runs.attempt({"network": name}, partial(attempt, name))
    return pd.DataFrame(runs.rows)


def attempt(name: str) -> Row:
    """Read a network as an audit does, and take one step of a search on it."""
    module, side = _smallest(name)
    parameters = sum(p.numel() for p in module.parameters())
    large = parameters > LARGEST
    found = _read(module, side) if large else _audited(module, side)
    module = module.to("meta") if large else module
    if not large and "pool" in found["why"] and _read(module, SIDES[-1])["how"] == CHAIN:
        found["how"] = LARGER
    if found["how"] not in (CHAIN, REFUSED) and (refused := _refusal(module, side)):
        found |= {"how": REFUSED, "why": refused}
    device = next(module.parameters()).device.type
    return {"parameters": parameters, "side": side, **found, "device": device}


def _build(name: str, **arguments: Any) -> nn.Module:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of initial weights that take long
        torch.manual_seed(0)
        return models.get_model(name, weights=None, num_classes=10, **arguments)


def _smallest(name: str) -> tuple[nn.Module, int]:
    """A network for the smallest image that it takes, and that image's side."""
    key, sides = FIXED.get(name.split("_")[0], ("", SIDES))
    module, why = None, ""
    for given in sides:
        side = given if isinstance(given, int) else given[0]
        try:
            if module is None or key:
                module = _build(name, **({key: given} if key else {}))
            outputs(module, (3, side, side))
            return module, side
        except (ConfigError, ValueError, AssertionError) as error:
            why = str(error)
    raise ConfigError(why)


def _audited(module: nn.Module, side: int) -> Row:
    """Read it as an audit does; in evaluation mode if training mode gives more than scores."""
    for mode in ("auto", "evaluation"):
        settings = Settings(mode=mode, scale="smoke", count=1, seeds=1, batches=(1,))
        origin = Origin("network", "torchvision", "random")
        try:
            audit = NetworkAudit(module, (3, side, side), samples.from_embedded, settings, origin)
        except ConfigError as error:
            found = {"how": REFUSED, "mode": mode, "traced": False, "why": str(error)}
            continue
        how, traced = DERIVATIVES if audit.converted is None else CHAIN, not audit.reading.untraced
        return {"how": how, "mode": audit.task.mode, "traced": traced, "why": audit.why}
    return found


def _read(module: nn.Module, side: int) -> Row:
    """The same with less memory: without a gradient, and in evaluation mode."""
    reading, how, why = read_or_run(module, (3, side, side)), CHAIN, ""
    try:
        convert(reading, module, "network")
    except NotApplicable as error:
        how, why = DERIVATIVES, reading.untraced or str(error)
    return {"how": how, "mode": "evaluation", "traced": not reading.untraced, "why": why}


def _refusal(module: nn.Module, side: int) -> str:
    """Why a search takes no step, which differentiates a gradient; empty if it does."""
    size, like = (3, side, side), next(module.parameters())
    shared = dict(module.named_parameters())
    known: Any = Chain("network", size, ()), {}, shared, (0,), 0.0, 1.0
    view = ModuleView(module, replace(AttackerView(*known), mode="evaluation"))
    network = ModuleGradients(view, like.dtype, like.device)
    images, labels = torch.rand(1, 1, *size).to(like), torch.zeros(1, 1).to(like).long()
    try:
        with network.running():
            _, slope, _ = network.descend(images, labels, list(shared.values()), labels[0] + 1.0)
    except RuntimeError as error:
        return first_line(error)
    finite = slope.is_meta or bool(torch.isfinite(slope).all() and slope.any())
    return "" if finite else "The derivative is 0 or no number."


def families(frame: pd.DataFrame) -> str:
    """A Markdown table with a row for networks of a family that are read alike."""
    frame = frame.fillna({"why": ""})
    family = frame["network"].str.extract("([a-z]+(?:_v[23](?=_))?)")[0]
    lines = ["| networks | read | image | why |", "| --- | --- | --- | --- |"]
    for (_, how, side), group in frame.groupby([family, "how", "side"], sort=False):
        why = re.sub(r" \((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", str(group["why"].iloc[0]))
        lines.append(f"| {', '.join(group['network'])} | {how} | {side} | {why} |")
    return "\n".join(lines)
