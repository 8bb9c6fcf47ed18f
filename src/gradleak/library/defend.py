"""`gradleak.defend`: what a defended client shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from gradleak.client.defences.base import Client, Defence, build
from gradleak.errors import ConfigError
from gradleak.library.network import Arrays, OwnNetwork, as_tensor, read_network
from gradleak.library.shared import apart
from gradleak.library.tensors import Gradient, image_batch, label_batch, named_gradient
from gradleak.library.update import Update
from gradleak.models.chain import Chain
from gradleak.reading.gradients import gradient as gradient_of
from gradleak.settings import registry
from gradleak.settings.validation_messages import nearest, sentence

# Defences that look at the client's images, and those of changes of weights.
OF_IMAGES = ("soteria", "dp_sgd")
OF_UPDATES = ("percentile_privacy", "local_dp")
# By name, with what is set unless the caller does.
DEFENCES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gaussian_noise": {"level": 0.01},
        "clipping": {},
        **dict.fromkeys((*OF_UPDATES, *OF_IMAGES), MappingProxyType({})),
    }
)
# Relative difference of a batch's gradient from the mean of its images' that is no rounding.
APART = 1e-2
DROPOUTS = (nn.modules.dropout._DropoutNd,)


def defend(
    shared: Gradient | Update,
    model: nn.Module,
    defence: str = "gaussian_noise",
    *,
    images: Any = None,
    labels: Any = None,
    loss: str = "cross_entropy",
    mode: str = "training",
    seed: int = 0,
    **settings: Any,
) -> dict[str, torch.Tensor] | Update:
    """Change a gradient or an update before it is shared.

    Parameters
    ----------
    shared, model
        As in `gradleak.invert`. Of an update, the change of the weights is defended.
    defence
        ``gaussian_noise`` with ``level``, by default 0.01 of each tensor's standard deviation (or,
        with ``relative=False``, the deviation itself); ``clipping`` to ``norm``, of all parameters
        together; ``dp_sgd``, Opacus' clipping of each image's gradient to ``norm`` and noise of
        ``noise_multiplier`` times that; ``percentile_privacy``, NVFLARE's filter of small and
        large values; ``local_dp``, Flower's mod with ``epsilon`` and ``delta``; ``soteria`` (MKOR
        section 4), which prunes what the first fully connected layer would reveal of `images`.
        ``percentile_privacy`` and ``local_dp`` act on changes of weights: for a gradient, give
        ``rate``, the learning rate.
    images, labels, loss, mode
        The client's batch, for ``soteria`` and ``dp_sgd`` alone; as in `gradleak.capture`.
    seed
        Of noise.
    settings
        Of the defence, as in an entry of ``defences`` in ``papers/*/paper.yaml``.

    Returns
    -------
    dict or Update
        Of the kind of `shared`: a tensor of each parameter's shape by its name, or an update whose
        weights after training are changed; ``percentile_privacy`` and ``local_dp`` change running
        statistics with them, as their frameworks do.

    Raises
    ------
    GradleakError
        In one sentence, if gradient, network and defence do not fit together.
    """
    if isinstance(shared, Update):
        return _of_update(_chosen(defence, _for_update(defence, shared, settings)), shared, seed)
    chosen = _chosen(defence, settings)
    if defence in OF_UPDATES and "rate" not in settings:
        raise ConfigError(
            f"rate: {defence} acts on changes of weights, rate times a gradient; give the client's "
            "learning rate."
        )
    given = named_gradient(shared, model)
    if defence in OF_IMAGES:
        batch = _batch(defence, model, images, labels, loss, mode)
        of_images = _of_chain if defence == "soteria" else _of_each
        found = of_images(chosen, batch, given, seed)
    else:
        nobody = Client(Chain(type(model).__name__, (1, 1, 1), ()), {}, np.empty(0), np.empty(0))
        found = chosen.apply(nobody, given, seed)
    return {name: as_tensor(value, model) for name, value in found.items()}


def _for_update(defence: str, shared: Update, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a defence for an update, which has a rate and steps of its own."""
    if defence in OF_IMAGES:
        choices = ", ".join(name for name in DEFENCES if name not in OF_IMAGES)
        raise ConfigError(
            f"{defence} changes the gradient of a batch, but this is an update; choose one of "
            f"{choices}."
        )
    if defence in OF_UPDATES and (own := [key for key in ("rate", "steps") if key in settings]):
        raise ConfigError(f"{own[0]}: an update has its own; take it out.")
    return {"steps": shared.steps, **settings} if defence == "percentile_privacy" else settings


def _of_update(defence: Defence, shared: Update, seed: int) -> Update:
    """Defend the change of the weights, and of running statistics where a framework does."""
    change: dict[str, np.ndarray] = dict(shared.change)
    moved = {n: v for n, v in shared.buffers_after.items() if n in shared.buffers_before}
    moved = {n: v for n, v in moved.items() if v.is_floating_point()}
    if defence.method not in OF_UPDATES:
        moved = {}
    for name, value in moved.items():
        change[name] = (shared.buffers_before[name] - value).cpu().numpy()
    nobody = Client(Chain("update", (1, 1, 1), ()), {}, np.empty(0), np.empty(0))
    found = defence.apply(nobody, change, seed)
    after, buffers = (
        {name: held[name] - torch.from_numpy(found[name]).to(held[name]) for name in names}
        for held, names in ((shared.before, shared.before), (shared.buffers_before, moved))
    )
    return replace(shared, after=after, buffers_after={**shared.buffers_after, **buffers})


def _chosen(name: str, settings: dict[str, Any]) -> Defence:
    if not isinstance(name, str) or name not in DEFENCES:
        choices = ", ".join(DEFENCES)
        raise ConfigError(
            f"defence: {name!r} is not known{nearest(str(name), DEFENCES)}; choose one of "
            f"{choices}."
        )
    try:
        return build({"method": name, **DEFENCES[name], **settings})
    except ValidationError as error:
        kind = registry.class_of("defences", name)
        raise ConfigError(f"{name}: {sentence(error, kind)}") from error


class _Batch(NamedTuple):
    """A client's network, images and labels."""

    network: OwnNetwork
    images: np.ndarray
    labels: np.ndarray


def _batch(
    defence: str, model: nn.Module, images: Any, labels: Any, loss: str, mode: str
) -> _Batch:
    """Check the network and the client's images and labels."""
    if images is None or labels is None:
        raise ConfigError(f"images, labels: {defence} looks at the client's batch; give both.")
    if len(shape := getattr(images, "shape", ())) != 4:
        raise ConfigError("images: give a batch (K, C, H, W), as a tensor or an array.")
    network = read_network(model, shape[1:], loss=loss, mode=mode)
    batch = image_batch(images, network)
    return _Batch(network, batch, label_batch(labels, network, len(batch)))


def _of_chain(defence: Defence, batch: _Batch, given: Arrays, seed: int) -> Arrays:
    """Apply a defence that needs the layers, by names and shapes of the chain."""
    network, images, labels = batch
    chain = network.chain
    assert network.converted is not None
    before, names = network.converted.before, network.converted.names
    inputs = images if before is None else before(images)
    owner = Client(chain, network.weights, inputs, labels)
    found = defence.apply(owner, network.arrays(given), seed)
    return {names[own]: value.reshape(given[names[own]].shape) for own, value in found.items()}


def _of_each(defence: Defence, batch: _Batch, given: Arrays, seed: int) -> Arrays:
    """Apply a defence that needs the gradient of each image."""
    network, images, labels = batch
    module = network.module
    mixed = [
        name
        for name, one in module.named_modules()
        if isinstance(one, nn.modules.batchnorm._BatchNorm)
    ]
    if mixed and network.mode == "training" and len(images) > 1:
        raise ConfigError(
            f"dp_sgd: {mixed[0]} of {network.name} mixes the images of a batch, so that none has a "
            "gradient of its own; put GroupNorm in its place, as Opacus' ModuleValidator.fix does, "
            "or set mode='evaluation'."
        )

    def alone(number: int) -> Arrays:
        part = slice(number, number + 1)
        # Dropout must not advance the global random state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + number)
            return gradient_of(module, images[part], labels[part], network.loss, network.mode)

    each = [alone(number) for number in range(len(images))]
    mean = {name: np.mean([one[name] for one in each], axis=0) for name in given}
    drawn = network.mode == "training" and any(isinstance(m, DROPOUTS) for m in module.modules())
    if not drawn and not apart(mean, given) <= APART:
        raise ConfigError(
            f"images, labels: their gradient is {apart(mean, given):.2g} times its size away from "
            "the one given; give the batch, loss and mode that it was taken with."
        )
    owner = Client(Chain(network.name, network.size, ()), {}, images, labels, each.__getitem__)
    return defence.apply(owner, given, seed)
