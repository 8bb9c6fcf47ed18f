"""An attack of the library on what a client shared."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from gradleak.attacks.base import Attack, AttackerView, LayerFacts, ManyAttack, Reconstruction
from gradleak.attacks.optimization.engine.module_gradients import ModuleView
from gradleak.attacks.optimization.engine.norm_statistics import Statistics
from gradleak.attacks.optimization.module_inversion import invert as invert_module
from gradleak.attacks.optimization.optimization_attack import Search
from gradleak.attacks.runner import build, run_one
from gradleak.attacks.threat_models import Letter, under
from gradleak.client.local_training import Recipe
from gradleak.errors import ConfigError, NotApplicable, NumericsError
from gradleak.library.analytic import invert_first
from gradleak.library.attack_choice import (
    ANALYTIC,
    ATTACKS,
    CLOSED,
    MALICIOUS,
    SEARCH,
    SECOND,
    SURROGATE,
    chosen,
)
from gradleak.library.network import OwnNetwork, as_tensor
from gradleak.library.shared import Shared
from gradleak.models.files import fingerprint
from gradleak.servers.secret import Secret

# Searches that need derivatives alone: for any network, and for updates, whose steps they simulate.
OF_ANY = (SEARCH, "dlg", SECOND, SURROGATE)
# Closed forms of one image, which can be carried through an update's steps.
CARRIED = (CLOSED, "copa", "unlock", ANALYTIC)
# Distance of an image from which a closed form is carried through the steps of an update, and how
# often at most; distance at which the search that gives it another image stops. On LeNet, an image
# 2e-4 away comes to the rounding of float32 in one or two rounds.
NEAR, CORRECTIONS, FAR = 1e-2, 5, 1e-4


@dataclass(frozen=True)
class Inversion:
    """Images that an attack made of a gradient or an update.

    Attributes
    ----------
    images
        (K', C, H, W) in the range of the network's inputs, with its parameters' type; K' is the
        batch size, 1 where the attack takes a batch for one image, or the number of classes (MKOR).
    attack
        Name of the attack that gave them.
    labels
        That it was given or inferred; MKOR's classes.
    distance
        ‖s(images) − s‖ / ‖s‖ of what was shared, s: 0 if the images explain it, 1 if they explain
        nothing of it; NaN where that cannot be told.
    drift
        Of an update, ‖ḡ − g‖ / ‖g‖ of its mean gradient ḡ and the first step's g, replayed from the
        images: how far off closed forms are, which take ḡ for g. 0 for a gradient.
    stop
        Why the attack stopped.
    threat
        Threat model: what an attacker needs for this, a letter of docs/threat_models.md.
    recipe
        Of an update, of several candidates the best; None for a gradient.
    failure
        Why the attack itself takes its images for wrong; empty if it does not.
    layers
        Facts of a closed form, last layer first.
    twin
        An image (C, H, W) with the same gradient, if there is one.
    """

    images: torch.Tensor = field(repr=False)
    attack: str
    labels: tuple[int, ...]
    distance: float
    drift: float
    stop: str
    threat: Letter
    recipe: Recipe | None
    failure: str
    layers: tuple[LayerFacts, ...] = field(repr=False, default=())
    twin: torch.Tensor | None = field(repr=False, default=None)


@dataclass(frozen=True)
class Attacker:
    """An attack on what was shared."""

    name: str
    attack: Attack | ManyAttack | None  # None: `gradleak.library.analytic`
    shared: Shared
    labels: tuple[int, ...] | None
    batch: int
    bounds: tuple[float, float]
    seed: int
    secret: Secret | None
    statistics: Statistics
    knows: Letter  # threat model of who has these statistics

    @property
    def network(self) -> OwnNetwork:
        """The network that was trained."""
        return self.shared.network

    @property
    def by_module(self) -> bool:
        """True if it runs the network itself.

        It is no chain, or none that Gauss-Newton linearises, or local steps are simulated.
        """
        needed = self.shared.update is not None or bool(self.statistics)
        converted = self.network.converted
        if converted is None or (self.name == SECOND and not converted.chain.is_plain):
            return self.name in OF_ANY
        return self.name in OF_ANY and needed

    def check(self) -> None:
        """Raise `NotApplicable`, saying what applies instead, if the attack cannot be run."""
        network = self.network
        if self.name == SURROGATE and self.shared.update is None:
            raise NotApplicable(
                f"{SURROGATE} stands for several local steps, but this is the gradient of one; use "
                f"attack='{SEARCH}'."
            )
        if self.by_module or self.attack is None:
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
                self, name=SECOND, attack=chosen(SECOND, {"target": FAR**2}, "cpu")
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
        if best.attack != self.name:
            stop = (
                f"{self.name}'s image does not explain the update (distance {found.distance:.2g}); "
                f"this is {best.attack}'s"
            )
            return replace(best, stop=stop)
        return replace(best, stop=f"{best.stop}; carried {count} times through {self._steps} steps")

    @property
    def _known(self) -> tuple[int, ...] | None:
        """Labels that were given, or those of a batch, which searches on chains do not infer."""
        infers = self.batch > 1 and isinstance(self.attack, ManyAttack) and self.attack.needs_labels
        return self.shared.labels(self.batch) if self.labels is None and infers else self.labels

    @property
    def _threat(self) -> Letter:
        own: Letter = "B" if self.attack is None else self.attack.threat
        return max(under(own, update=self.shared.recipe is not None), self.knows)

    @property
    def _steps(self) -> int:
        return 1 if self.shared.update is None else self.shared.update.steps

    def _walked(self, gradient: Mapping[str, np.ndarray]) -> Reconstruction:
        """Run the attack on the chain that the network is, or on its first layer."""
        if self.attack is None:
            labels = self.labels
            if labels is None:
                # They are not needed for the image.
                with suppress(ConfigError, NumericsError):
                    labels = self.shared.labels(self.batch)
            return invert_first(self.network, gradient, labels or (), self.batch)
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
        labels = self._known
        known = network.attacked, network.weights, network.arrays(gradient), labels, low, high
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
        update = shared.update
        steps = ModuleView(network.module, view, statistics=self.statistics)
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
        labels = found.classes or self._known or ()
        if not labels and found.label is not None and self.batch == 1:
            labels = (found.label,)
        distance, drift = np.nan, np.nan
        locked = network.converted is not None and network.chain.locked
        whole = len(labels) == len(images) == self.batch and np.isfinite(images).all()
        if self.name != MALICIOUS and not locked and whole:
            distance, drift = self.shared.explained(images, np.array(labels))
        twins = [
            as_tensor(one.images[0], network.module) for one in found.others if one.kind == "twin"
        ]
        return Inversion(
            as_tensor(images, network.module),
            self.name,
            tuple(labels),
            distance,
            drift,
            found.stop,
            self._threat,
            self.shared.recipe,
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
