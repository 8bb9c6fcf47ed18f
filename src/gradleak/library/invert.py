"""`gradleak.invert`: images from a shared gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from gradleak.attacks.base import Attack, AttackerView, LayerFacts, ManyAttack, Reconstruction
from gradleak.attacks.mkor.attack import estimate_for
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.optimization.module_inversion import ModuleView
from gradleak.attacks.optimization.module_inversion import invert as invert_module
from gradleak.attacks.runner import build, run_one
from gradleak.client.capture import pick_device
from gradleak.errors import ConfigError, NotApplicable, NumericsError
from gradleak.library.network import OwnNetwork, as_tensor, read_network
from gradleak.library.tensors import Gradient, label_batch, named_gradient
from gradleak.models.files import fingerprint
from gradleak.reading.gradients import gradient as gradient_of
from gradleak.servers.secret import Secret
from gradleak.settings import registry
from gradleak.settings.validation_messages import nearest, sentence

CLOSED, SECOND, SEARCH, MALICIOUS = "rgap", "gauss_newton", "inverting_gradients", "mkor"
# Attacks by name, with what is set unless the caller does. R-GAP's rows are balanced, which is
# exact where float32 gradients leave the paper's own with noise; DLG has the gradients of its
# authors, Inverting Gradients the steps of theirs and the weight that was best on other images
# (docs/rgap.md).
ATTACKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        CLOSED: {"rows": "balanced"},
        "copa": {},
        SECOND: {},
        "unlock": {},
        "dlg": {"iterations": 6000},
        SEARCH: {"iterations": 4800, "tv": 0.01},
        "grnn": {},
        MALICIOUS: {"rows": "all"},
    }
)


@dataclass(frozen=True)
class Inversion:
    """What an attack made of a gradient."""

    # (K', C, H, W) in the range of the network's inputs, with its parameters' type; K' is the
    # batch size, 1 where the attack takes a batch for one image, or the number of classes (MKOR).
    images: torch.Tensor = field(repr=False)
    attack: str
    labels: tuple[int, ...]  # that it was given or inferred; MKOR's classes
    # ‖∇(images) − gradient‖ / ‖gradient‖: 0 if the images explain the gradient, 1 if they explain
    # nothing of it; NaN where that cannot be told.
    distance: float
    stop: str  # why it stopped
    failure: str  # why the attack itself takes its images for wrong; empty if it does not
    layers: tuple[LayerFacts, ...] = field(repr=False, default=())  # of a closed form, last first
    twin: torch.Tensor | None = field(repr=False, default=None)  # (C, H, W) with the same gradient


def invert(
    gradient: Gradient,
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
    **settings: Any,
) -> Inversion:
    """Reconstruct the images behind the gradient of a batch's mean loss.

    Parameters
    ----------
    gradient
        Tensors or arrays by name of a parameter, or a list in the order of `model.parameters()`.
    model
        The network with the weights that the gradient was taken with; it is not modified.
    input_shape
        (C, H, W) of one image.
    attack
        ``rgap``, ``copa``, ``gauss_newton``, ``unlock``: closed forms, and second order from the
        first, for chains of convolutions and fully connected layers. ``dlg``, ``grnn``: searches,
        for chains with norms, skips and pools as well. ``inverting_gradients``: a search for any
        network. ``mkor``: for a gradient under weights that `gradleak.poison` made.
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
    R-GAP Algorithm 1, COPA Algorithm 1, DLG and iDLG (R-GAP eq. 1), GRNN (FedKL section IV-C),
    MKOR section 3. `gauss_newton` and `unlock` are ours (docs/second_order.md, docs/fedkl.md).
    """
    pick_device(device)
    chosen = _chosen(attack, settings, device)
    network = read_network(model, input_shape, loss=loss, mode=mode)
    if attack == MALICIOUS and network.converted is not None:
        chosen = _chosen(attack, {"estimate": estimate_for(network.chain), **settings}, device)
    shared = named_gradient(gradient, network.module)
    known = None if labels is None else label_batch(labels, network, batch)
    size = _batch(batch, known)
    _check_applies(attack, chosen, network)
    view = _view(network, shared, known, size, (low, high))
    if secret is not None or attack == MALICIOUS:
        view = _malicious(view, secret, attack)
    found = _run(attack, chosen, network, view, seed)
    return _result(attack, network, shared, found, known, size)


def _chosen(name: str, settings: Mapping[str, Any], device: str) -> Attack | ManyAttack:
    if name not in ATTACKS:
        choices = ", ".join(ATTACKS)
        raise ConfigError(
            f"attack: {name!r} is not known{nearest(str(name), ATTACKS)}; choose one of {choices}."
        )
    try:
        return build({"method": name, **ATTACKS[name], **settings}, device)
    except ValidationError as error:
        kind = registry.class_of("attacks", name)
        raise ConfigError(f"{name}: {sentence(error, kind)}") from error


def _batch(batch: int | None, labels: np.ndarray | None) -> int:
    if batch is None:
        return 1 if labels is None else len(labels)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ConfigError(f"batch: give the number of images, 1 or more, not {batch!r}.")
    return batch


def _check_applies(name: str, attack: Attack | ManyAttack, network: OwnNetwork) -> None:
    """Raise `NotApplicable`, saying what applies instead, if an attack cannot be run."""
    if network.converted is None:
        if name != SEARCH:
            raise NotApplicable(
                f"{name} takes a chain of layers, which {network.name} is not: "
                f"{network.why_no_chain} Use attack='{SEARCH}', which takes any network."
            )
        return
    chain = network.attacked
    why = attack.applies(chain, *([network.mode] if isinstance(attack, ManyAttack) else []))
    if why is not None:
        raise NotApplicable(network.told(why))


def _view(
    network: OwnNetwork,
    shared: Mapping[str, np.ndarray],
    labels: np.ndarray | None,
    size: int,
    bounds: tuple[float, float],
) -> AttackerView:
    before = None if network.converted is None else network.converted.before
    low, high = bounds if before is None else before.bounds(*bounds)
    if not low < high:
        raise ConfigError(f"low, high: {bounds[0]:g} is not below {bounds[1]:g}; correct them.")
    weights = {} if network.converted is None else network.weights
    truth = None if labels is None else tuple(labels.tolist())
    known = network.attacked, weights, network.arrays(shared), truth, low, high
    return AttackerView(*known, network.loss, size, mode=network.mode)


def _malicious(view: AttackerView, secret: Secret | None, attack: str) -> AttackerView:
    if attack != MALICIOUS:
        raise ConfigError(f"secret: {attack} takes none; choose attack='{MALICIOUS}'.")
    if secret is None:
        raise ConfigError(
            "secret: mkor needs what the server kept to itself; take both, network and secret, "
            "from gradleak.poison."
        )
    mark = fingerprint(view.weights)
    return replace(view, labels=None, secret=secret, fingerprint=mark)


def _run(
    name: str, attack: Attack | ManyAttack, network: OwnNetwork, view: AttackerView, seed: int
) -> Reconstruction:
    found: Reconstruction | NumericsError
    if network.converted is None:
        if view.labels is None:
            raise ConfigError(
                f"labels: give them, since {network.name} is no chain, whose last layer would tell."
            )
        assert isinstance(attack, InvertingGradients)
        (found,) = invert_module(attack, [ModuleView(network.module, view)], [seed])
    elif isinstance(attack, ManyAttack):
        if name == SECOND:
            view = replace(view, starts=_start(view, seed))
        (found,) = attack.run_many([view], [seed])
    else:
        found = run_one(attack, view, seed)
    if isinstance(found, NumericsError):
        raise NumericsError(network.told(str(found)))
    return found


def _start(view: AttackerView, seed: int) -> np.ndarray | None:
    """R-GAP's image for the second-order attack; None where there is none."""
    first = build({"method": CLOSED, **ATTACKS[CLOSED]})
    assert isinstance(first, Attack)
    if view.batch > 1 or first.applies(view.chain) is not None:
        return None
    found = run_one(first, view, seed)
    return None if isinstance(found, NumericsError) else found.images[None]


def _result(
    name: str,
    network: OwnNetwork,
    shared: Mapping[str, np.ndarray],
    found: Reconstruction,
    labels: np.ndarray | None,
    size: int,
) -> Inversion:
    images = _inputs(network, found.images)
    used = found.classes or _labels(labels, found, len(images))
    distance = np.nan
    locked = network.converted is not None and network.chain.locked
    whole = len(used) == len(images) == size and np.isfinite(images).all()
    if name != MALICIOUS and not locked and whole:
        distance = _distance(network, shared, images, np.array(used))
    twins = [one for one in found.others if one.kind == "twin"]
    twin = as_tensor(_inputs(network, twins[0].images)[0], network.module) if twins else None
    return Inversion(
        as_tensor(images, network.module),
        name,
        tuple(used),
        distance,
        found.stop,
        network.told(found.failure),
        found.layers,
        twin,
    )


def _inputs(network: OwnNetwork, images: np.ndarray) -> np.ndarray:
    """Undo preprocessing that the chain does not have."""
    before = None if network.converted is None else network.converted.before
    return images if before is None else before.undo(images)


def _labels(labels: np.ndarray | None, found: Reconstruction, count: int) -> tuple[int, ...]:
    if labels is not None:
        return tuple(labels.tolist())
    return () if found.label is None or count > 1 else (found.label,)


def _distance(
    network: OwnNetwork, shared: Mapping[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> float:
    own = gradient_of(network.module, images, labels, network.loss, network.mode)
    rest = sum(float(np.sum((own[n].astype(np.float64) - g) ** 2)) for n, g in shared.items())
    whole = sum(float(np.sum(g.astype(np.float64) ** 2)) for g in shared.values())
    return float(np.sqrt(rest / whole))
