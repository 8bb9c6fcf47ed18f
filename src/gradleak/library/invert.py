"""`gradleak.invert`: images from what a client shared."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import nn

from gradleak.attacks.mkor.attack import estimate_for
from gradleak.client.capture import pick_device
from gradleak.errors import ConfigError
from gradleak.library.attack_choice import CLOSED, MALICIOUS, SEARCH, SURROGATE, chosen
from gradleak.library.attacker import Attacker, Inversion
from gradleak.library.candidates import among, fewer, plausible
from gradleak.library.network import read_network
from gradleak.library.norms import NONE, SOURCES, known_statistics
from gradleak.library.shared import open_shared
from gradleak.library.tensors import Gradient, label_batch
from gradleak.library.update import Update
from gradleak.servers.secret import Secret


def invert(
    gradient: Gradient | Update,
    model: nn.Module,
    input_shape: Sequence[int],
    attack: str = CLOSED,
    *,
    labels: Any = None,
    batch: int | None = None,
    loss: str = "cross_entropy",
    mode: str = "training",
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
    device: str = "cpu",
    secret: Secret | None = None,
    norms: str = NONE,
    proxy: Any = None,
    **settings: Any,
) -> Inversion:
    """Reconstruct the images behind the gradient of a batch's mean loss.

    Parameters
    ----------
    gradient
        Tensors or arrays by name of a parameter, or a list in the order of `model.parameters()`;
        or the `Update` of a client that took several steps.
    model
        The network with the weights that the gradient was taken with; it is not modified.
    input_shape
        (C, H, W) of one image.
    attack
        ``rgap``, ``copa``, ``gauss_newton``, ``unlock``: closed forms, and second order from the
        first, for chains of convolutions and fully connected layers. ``dlg``, ``grnn``: searches,
        for chains with norms, skips and pools as well. ``inverting_gradients``, ``dlg``,
        ``gauss_newton`` take any other network, too, by automatic differentiation, and simulate the
        steps of an update; closed forms take its mean gradient. ``surrogate``: the surrogate model
        extension of Zhu et al. (2023), for updates. ``analytic``: one image from the first layer of
        any network, if that is fully connected or embeds patches with learned positions. ``mkor``:
        for a gradient under weights that `gradleak.poison` made.
    labels, batch
        True classes (K,), and K if they are not known; by default one image. The class of one
        image is inferred from its gradient.
    loss, mode
        As in `gradleak.capture`.
    low, high
        Range of the network's inputs, which searches stay in.
    seed, device
        Of a search's noise; ``cpu``, ``cuda``, ``mps`` or ``auto``.
    secret
        Of the server, for ``mkor``.
    norms, proxy
        Statistics of batch norms that ``inverting_gradients`` and ``surrogate`` hold the images to:
        ``running`` ones of the network; ``inferred`` ones of the client's batch, from an update's
        buffers; those of ``proxy`` images (K, C, H, W). Their weight is the setting ``statistics``.
    settings
        Of the attack, as in an entry of ``attacks`` in ``papers/*/paper.yaml`` (docs/library.md).

    Returns
    -------
    Inversion
        Images, and how well they explain the gradient.

    Raises
    ------
    NotApplicable
        If the attack cannot be run on this network; the message names the layer and what applies.
    GradleakError
        If gradient, network and labels do not fit together, or the numbers do not allow it.

    Notes
    -----
    R-GAP Algorithm 1, COPA Algorithm 1, DLG and iDLG (R-GAP eq. 1), GRNN (FedKL section IV),
    MKOR section 3. `gauss_newton` and `unlock` are ours (docs/second_order.md, docs/fedkl.md).
    """
    check_numbers(low, high, seed)
    pick_device(device)
    method = chosen(attack, settings, device)
    if isinstance(gradient, Update) and gradient.candidates:
        own: dict[str, Any] = {"labels": labels, "loss": loss, "mode": mode, "low": low}
        own["high"] = high

        def attempt(update: Update, quick: bool) -> Inversion:
            steps = getattr(method, "iterations", None)
            less = {"iterations": fewer(steps)} if quick and isinstance(steps, int) else {}
            more: dict[str, Any] = {"seed": seed, "device": device, "norms": norms, "proxy": proxy}
            more["secret"] = secret
            given = {**own, **more, **settings, **less, "batch": batch}
            return invert(update, model, input_shape, attack, **given)

        return among(plausible(gradient, model, input_shape, own), attempt)
    network = read_network(model, input_shape, loss=loss, mode=mode)
    shared = open_shared(network, gradient)
    if isinstance(gradient, Update) and batch is None:
        batch = gradient.count
    statistics = known_statistics(
        network, norms, gradient if isinstance(gradient, Update) else None, proxy
    )
    if statistics and attack not in (SEARCH, SURROGATE):
        raise ConfigError(f"norms: {attack} does not use them; choose attack='{SEARCH}'.")
    if statistics and getattr(method, "statistics", 1.0) == 0.0:
        raise ConfigError("statistics: at 0, norms have no weight; raise it, or leave norms out.")
    if secret is not None and attack != MALICIOUS:
        raise ConfigError(f"secret: {attack} takes none; choose attack='{MALICIOUS}'.")
    if secret is None and attack == MALICIOUS:
        raise ConfigError(
            "secret: mkor needs what the server kept to itself; take both, network and secret, "
            "from gradleak.poison."
        )
    if attack == MALICIOUS and network.converted is not None:
        method = chosen(attack, {"estimate": estimate_for(network.chain), **settings}, device)
    known = None if labels is None else label_batch(labels, network, batch)
    truth = None if known is None else tuple(known.tolist())
    size = _batch(batch, known)
    given = truth, size, (low, high), seed, secret, statistics, SOURCES[norms]
    attacker = Attacker(attack, method, shared, *given)
    attacker.check()
    return attacker.run()


def _batch(batch: int | None, labels: np.ndarray | None) -> int:
    if batch is None:
        return 1 if labels is None else len(labels)
    if isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 1:
        raise ConfigError(f"batch: give the number of images, 1 or more, not {batch!r}.")
    return int(batch)


def check_numbers(low: Any, high: Any, seed: Any = 0) -> None:
    """Raise `ConfigError` unless low < high are numbers, and a seed is a whole number."""
    for key, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(f"{key}: give a number, not {value!r}.")
    if not low < high:
        raise ConfigError(f"low, high: {low:g} is not below {high:g}; correct them.")
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ConfigError(f"seed: give a whole number, 0 or more, not {seed!r}.")
