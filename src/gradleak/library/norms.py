"""Statistics of a client's batch norms, as far as an attacker knows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from gradleak.attacks.optimization.engine.norm_statistics import Statistics, statistics_of
from gradleak.attacks.threat_models import Letter
from gradleak.errors import ConfigError
from gradleak.library.network import OwnNetwork, as_tensor
from gradleak.library.tensors import image_batch
from gradleak.library.update import Update
from gradleak.reading.gradients import passing

NONE, RUNNING, INFERRED, PROXY = "none", "running", "inferred", "proxy"
# Sources of statistics, with the threat model of an attacker that has it.
SOURCES: Mapping[str, Letter] = {NONE: "A", RUNNING: "E", INFERRED: "E", PROXY: "D"}
BatchNorm = nn.modules.batchnorm._BatchNorm


def known_statistics(
    network: OwnNetwork, source: str, update: Update | None, proxy: Any
) -> Statistics:
    """Return mean and variance of each batch norm's input, by name of the norm.

    ``running``: those of the network itself, over all its training data. ``inferred``: those of the
    client's batch, from running ones before and after, (after − (1 − m)^t before) / (1 − (1 − m)^t)
    with momentum m after t steps. ``proxy``: those of other images.

    Raises `ConfigError` if the source is not known, or lacks what it needs.
    """
    if not isinstance(source, str) or source not in SOURCES:
        raise ConfigError(f"norms: {source!r} is not known; choose one of {', '.join(SOURCES)}.")
    if (proxy is not None) != (source == PROXY):
        raise ConfigError("proxy: give other images (K, C, H, W) with norms='proxy', else none.")
    if source == NONE:
        return {}
    norms = {n: m for n, m in network.module.named_modules() if isinstance(m, BatchNorm)}
    if not norms:
        raise ConfigError(f"norms: {network.name} has no batch norm; leave norms out.")
    if source == PROXY:
        return _of_images(network, norms, image_batch(proxy, network, "proxy"))
    untracked = [name for name, part in norms.items() if part.running_mean is None]
    if untracked:
        raise ConfigError(
            f"norms: {untracked[0]} of {network.name} keeps no running statistics; choose proxy."
        )
    if source == RUNNING:
        pairs = ((name, part.running_mean, part.running_var) for name, part in norms.items())
        return {n: (_array(mean), _array(variance)) for n, mean, variance in pairs}
    return _inferred(network, norms, update)


def _inferred(
    network: OwnNetwork, norms: Mapping[str, BatchNorm], update: Update | None
) -> Statistics:
    if update is None or not update.buffers_after or not update.buffers_before:
        raise ConfigError(
            "norms: inferred needs running statistics before and after; give an Update with "
            "buffers_before and buffers_after."
        )
    same = (
        torch.equal(v.cpu(), update.buffers_before[n].cpu())
        for n, v in update.buffers_after.items()
        if n in update.buffers_before
    )
    if all(same):
        raise ConfigError(
            "norms: the running statistics did not change, so the client ran in evaluation mode or "
            "sent the old ones; choose running or proxy."
        )
    size = min(update.recipe.batch_size or update.count, update.count)
    found, counts = {}, _counts(network, norms, size)
    for name, part in norms.items():
        if part.momentum is None:
            raise ConfigError(
                f"norms: {name} of {network.name} averages all batches (momentum=None), so that "
                "one batch cannot be told from them; choose running or proxy."
            )
        kept = (1.0 - part.momentum) ** update.steps
        pair = []
        for key in ("running_mean", "running_var"):
            own, sides = f"{name}.{key}", (update.buffers_before, update.buffers_after)
            for held in sides:
                if own not in held or held[own].shape != getattr(part, key).shape:
                    raise ConfigError(
                        f"norms: inferred needs {own} of {network.name} in buffers_before and "
                        "buffers_after; give both as the client had them."
                    )
            before, after = (_array(held[own]) for held in sides)
            pair.append((after - kept * before) / (1.0 - kept))
        # Running variances are those of samples.
        unbiased = (counts[name] - 1) / counts[name]
        found[name] = pair[0], np.maximum(unbiased * pair[1], 0.0)
    return found


def _of_images(
    network: OwnNetwork, norms: Mapping[str, BatchNorm], images: np.ndarray
) -> Statistics:
    seen = _inputs(network, norms, images)
    pairs = {name: statistics_of(values) for name, values in seen.items()}
    return {name: (_array(mean), _array(variance)) for name, (mean, variance) in pairs.items()}


def _counts(network: OwnNetwork, norms: Mapping[str, BatchNorm], size: int) -> dict[str, int]:
    """Values a channel in the input of each norm, for a batch of `size` images."""
    noise = np.random.default_rng(0).random((2, *network.size))
    seen = _inputs(network, norms, noise)
    return {n: size * v.numel() // (v.shape[1] * len(noise)) for n, v in seen.items()}


def _inputs(
    network: OwnNetwork, norms: Mapping[str, BatchNorm], images: np.ndarray
) -> dict[str, torch.Tensor]:
    """Inputs of the norms, in training mode, when images run through the network."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen[name] = inputs[0].detach().double()

    module = network.module
    with ExitStack() as stack:
        stack.enter_context(passing(module, "training"))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.no_grad())
        for name, part in norms.items():
            stack.callback(part.register_forward_pre_hook(partial(keep, name)).remove)
        module(as_tensor(images, module))
    return seen


def _array(values: torch.Tensor | None) -> np.ndarray:
    assert values is not None
    return np.asarray(values.detach().double().cpu().numpy())
