"""`gradleak.invert`: images from what a client shared."""

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
from gradleak.attacks.optimization.engine.module_gradients import ModuleView
from gradleak.attacks.optimization.module_inversion import invert as invert_module
from gradleak.attacks.optimization.optimization_attack import Search
from gradleak.attacks.runner import build, run_one
from gradleak.client.capture import pick_device
from gradleak.errors import ConfigError, NotApplicable, NumericsError
from gradleak.library.network import OwnNetwork, as_tensor, read_network
from gradleak.library.shared import Shared, open_shared
from gradleak.library.tensors import Gradient, label_batch
from gradleak.library.update import Update
from gradleak.models.files import fingerprint
from gradleak.servers.secret import Secret
from gradleak.settings import registry
from gradleak.settings.validation_messages import nearest, sentence

CLOSED, SECOND, SEARCH, SURROGATE = "rgap", "gauss_newton", "inverting_gradients", "surrogate"
MALICIOUS = "mkor"
# Attacks by name, with what is set unless the caller does. R-GAP's rows are balanced, which is
# exact where float32 gradients leave the paper's own with noise. DLG has the gradients of its
# authors, and starts in the range of inputs. Inverting Gradients has the steps of its authors and
# the weight of total variation that was best on other images (docs/rgap.md).
ATTACKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        CLOSED: {"rows": "balanced"},
        "copa": {},
        SECOND: {},
        "unlock": {},
        "dlg": {"iterations": 6000, "start": "uniform"},
        SEARCH: {"iterations": 4800, "tv": 0.01},
        SURROGATE: {"method": SEARCH, "iterations": 4800, "tv": 0.01},
        "grnn": {},
        MALICIOUS: {"rows": "all"},
    }
)
# Searches that need derivatives alone: for any network, and for updates, whose steps they simulate.
OF_ANY = (SEARCH, "dlg", SECOND, SURROGATE)
# Closed forms of one image, which can be carried through an update's steps.
CARRIED = (CLOSED, "copa", "unlock")
# Distance of an image from which a closed form is carried through the steps of an update, and how
# often at most; distance at which the search that gives it another image stops. On LeNet, an image
# 2e-4 away comes to the rounding of float32 in one or two rounds.
NEAR, CORRECTIONS, FAR = 1e-2, 5, 1e-4


@dataclass(frozen=True)
class Inversion:
    """Images that an attack made of a gradient or an update."""

    # (K', C, H, W) in the range of the network's inputs, with its parameters' type; K' is the
    # batch size, 1 where the attack takes a batch for one image, or the number of classes (MKOR).
    images: torch.Tensor = field(repr=False)
    attack: str
    labels: tuple[int, ...]  # that it was given or inferred; MKOR's classes
    # ‖s(images) − s‖ / ‖s‖ of what was shared, s: 0 if the images explain it, 1 if they explain
    # nothing of it; NaN where that cannot be told.
    distance: float
    stop: str  # why it stopped
    failure: str  # why the attack itself takes its images for wrong; empty if it does not
    layers: tuple[LayerFacts, ...] = field(repr=False, default=())  # of a closed form, last first
    twin: torch.Tensor | None = field(repr=False, default=None)  # (C, H, W) with the same gradient


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
        extension of Zhu et al. (2023), for updates. ``mkor``: for a gradient under weights that
        `gradleak.poison` made.
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
    R-GAP Algorithm 1, COPA Algorithm 1, DLG and iDLG (R-GAP eq. 1), GRNN (FedKL section IV),
    MKOR section 3. `gauss_newton` and `unlock` are ours (docs/second_order.md, docs/fedkl.md).
    """
    pick_device(device)
    chosen = _chosen(attack, settings, device)
    network = read_network(model, input_shape, loss=loss, mode=mode)
    shared = open_shared(network, gradient)
    if isinstance(gradient, Update) and batch is None:
        batch = gradient.count
    if not low < high:
        raise ConfigError(f"low, high: {low:g} is not below {high:g}; correct them.")
    if secret is not None and attack != MALICIOUS:
        raise ConfigError(f"secret: {attack} takes none; choose attack='{MALICIOUS}'.")
    if secret is None and attack == MALICIOUS:
        raise ConfigError(
            "secret: mkor needs what the server kept to itself; take both, network and secret, "
            "from gradleak.poison."
        )
    if attack == MALICIOUS and network.converted is not None:
        chosen = _chosen(attack, {"estimate": estimate_for(network.chain), **settings}, device)
    known = None if labels is None else label_batch(labels, network, batch)
    truth = None if known is None else tuple(known.tolist())
    size = _batch(batch, known)
    attacker = _Attacker(attack, chosen, shared, truth, size, (low, high), seed, secret)
    attacker.check()
    return attacker.run()


def _chosen(name: str, settings: Mapping[str, Any], device: str) -> Attack | ManyAttack:
    if name not in ATTACKS:
        choices = ", ".join(ATTACKS)
        raise ConfigError(
            f"attack: {name!r} is not known{nearest(str(name), ATTACKS)}; choose one of {choices}."
        )
    options = {"method": name, **ATTACKS[name], **settings}
    try:
        return build(options, device)
    except ValidationError as error:
        kind = registry.class_of("attacks", options["method"])
        raise ConfigError(f"{name}: {sentence(error, kind)}") from error


def _batch(batch: int | None, labels: np.ndarray | None) -> int:
    if batch is None:
        return 1 if labels is None else len(labels)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ConfigError(f"batch: give the number of images, 1 or more, not {batch!r}.")
    return batch


@dataclass(frozen=True)
class _Attacker:
    """An attack on what was shared."""

    name: str
    attack: Attack | ManyAttack
    shared: Shared
    labels: tuple[int, ...] | None
    batch: int
    bounds: tuple[float, float]
    seed: int
    secret: Secret | None

    @property
    def network(self) -> OwnNetwork:
        return self.shared.network

    @property
    def by_module(self) -> bool:
        """True if it runs the network itself: it is no chain, or local steps are simulated."""
        steps = self.shared.update is not None
        return self.name in OF_ANY and (steps or self.network.converted is None)

    def check(self) -> None:
        """Raise `NotApplicable`, saying what applies instead, if the attack cannot be run."""
        network = self.network
        if self.name == SURROGATE and self.shared.update is None:
            raise NotApplicable(
                f"{SURROGATE} stands for several local steps, but this is the gradient of one; use "
                f"attack='{SEARCH}'."
            )
        if self.by_module:
            return
        if network.converted is None:
            raise NotApplicable(
                f"{self.name} takes a chain of layers, which {network.name} is not: "
                f"{network.why_no_chain} Use attack='{SEARCH}', which takes any network."
            )
        mode = [network.mode] if isinstance(self.attack, ManyAttack) else []
        why = self.attack.applies(network.attacked, *mode)
        if why is not None:
            raise NotApplicable(network.told(why))

    def run(self) -> Inversion:
        """Attack; `NumericsError` if the numbers do not allow it."""
        if self.by_module:
            return self._result(self._searched())
        found = self._result(self._walked(self.shared.gradient))
        carries = self.name in CARRIED and self.batch == 1 and self.shared.update is not None
        return self._carried(found) if carries else found

    def _carried(self, found: Inversion) -> Inversion:
        """Carry a closed form through the client's steps, which are replayed from its image.

        It needs the gradient g of the first step, and has the mean ḡ of all. For an image x near
        the client's, g ≈ g(x) + c (ḡ − ḡ(x)) with c = <g(x), ḡ(x)> / ‖ḡ(x)‖² for each parameter:
        where the first step fits the image, later gradients vanish and ḡ is a fraction 1/c of g.
        The search of second order, which simulates the steps, gives the first x unless the closed
        form itself does.
        """
        mean, best = self.shared.gradient, found
        if not found.distance < NEAR:
            best = replace(
                self, name=SECOND, attack=_chosen(SECOND, {"target": FAR**2}, "cpu")
            ).run()
        count = 0
        while count < CORRECTIONS and np.isfinite(best.distance):
            images = best.images.double().cpu().numpy()
            again = self.shared.replay(images, np.array(best.labels))
            moved = {
                n: again.first[n] + again.ratio(n) * (g - again.mean[n]) for n, g in mean.items()
            }
            nearer = self._result(self._walked(moved))
            # Not a number, too, ends it.
            if not nearer.distance < best.distance:
                break
            best, count = nearer, count + 1
        return replace(best, stop=f"{best.stop}; carried {count} times through {self._steps} steps")

    @property
    def _steps(self) -> int:
        return 1 if self.shared.update is None else self.shared.update.steps

    def _walked(self, gradient: Mapping[str, np.ndarray]) -> Reconstruction:
        """Run the attack on the chain that the network is."""
        view = self._view(gradient)
        found: Reconstruction | NumericsError
        if isinstance(self.attack, ManyAttack):
            if self.name == SECOND:
                view = replace(view, starts=_start(view, self.seed))
            (found,) = self.attack.run_many([view], [self.seed])
        else:
            found = run_one(self.attack, view, self.seed)
        if isinstance(found, NumericsError):
            raise NumericsError(self.network.told(str(found)))
        assert self.network.converted is not None
        before = self.network.converted.before
        return found if before is None else replace(found, images=before.undo(found.images))

    def _view(self, gradient: Mapping[str, np.ndarray]) -> AttackerView:
        network = self.network
        assert network.converted is not None
        before = network.converted.before
        low, high = self.bounds if before is None else before.bounds(*self.bounds)
        known = network.attacked, network.weights, network.arrays(gradient), self.labels, low, high
        view = AttackerView(*known, network.loss, self.batch, mode=network.mode)
        if self.secret is None:
            return view
        mark = fingerprint(view.weights)
        return replace(view, labels=None, secret=self.secret, fingerprint=mark)

    def _searched(self) -> Reconstruction:
        """Run a search on the network itself."""
        shared, network = self.shared, self.network
        labels = shared.labels(self.batch) if self.labels is None else self.labels
        layerless = replace(network, converted=None).attacked
        low, high = self.bounds
        nothing: dict[str, np.ndarray] = {}
        known = layerless, nothing, shared.given, labels, low, high, network.loss, self.batch
        view = AttackerView(*known, mode=network.mode)
        update, steps = shared.update, ModuleView(network.module, view)
        if update is not None and self.name == SURROGATE:
            after = {name: update.after[name].detach().cpu().numpy() for name in shared.given}
            steps = replace(steps, after=after)
        elif update is not None:
            steps = replace(steps, recipe=update.recipe)
        assert isinstance(self.attack, Search)
        (found,) = invert_module(self.attack, [steps], [self.seed])
        if isinstance(found, NumericsError):
            raise found
        return replace(found, classes=labels)

    def _result(self, found: Reconstruction) -> Inversion:
        network, images = self.network, found.images
        labels = found.classes or self.labels or ()
        if not labels and found.label is not None and self.batch == 1:
            labels = (found.label,)
        distance = np.nan
        locked = network.converted is not None and network.chain.locked
        whole = len(labels) == len(images) == self.batch and np.isfinite(images).all()
        if self.name != MALICIOUS and not locked and whole:
            distance = self.shared.distance(images, np.array(labels))
        twins = [
            as_tensor(one.images[0], network.module) for one in found.others if one.kind == "twin"
        ]
        return Inversion(
            as_tensor(images, network.module),
            self.name,
            tuple(labels),
            distance,
            found.stop,
            network.told(found.failure),
            found.layers,
            twins[0] if twins else None,
        )


def _start(view: AttackerView, seed: int) -> np.ndarray | None:
    """R-GAP's image for the second-order attack; None where there is none."""
    first = build({"method": CLOSED, **ATTACKS[CLOSED]})
    assert isinstance(first, Attack)
    if view.batch > 1 or first.applies(view.chain) is not None:
        return None
    found = run_one(first, view, seed)
    return None if isinstance(found, NumericsError) else found.images[None]
