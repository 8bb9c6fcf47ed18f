"""Attacks of an audit with their settings by scale and their requirements on networks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradleak.attacks.base import Attack, ManyAttack
from gradleak.attacks.mkor.attack import estimate_for
from gradleak.attacks.optimization.inverting import BALANCED
from gradleak.attacks.runner import build
from gradleak.errors import ConfigError
from gradleak.models.chain import Chain, ConvLayer
from gradleak.models.pools import is_common
from gradleak_audit.result import AttackPart, Chapter

HONEST: Chapter = "honest server"
MALICIOUS: Chapter = "malicious server"
SEARCH = "inverting_gradients"
CLOSED, SECOND, MKOR = "rgap", "gauss_newton", "mkor"
# Of networks that are not chains: `gradleak.library.analytic`, a function.
ANALYTIC = "analytic"
# Of any network; on plain chains, Gauss-Newton minimises the same distance from R-GAP's image.
DLG = "dlg"
# Above any distance.
ANY = 1e30
# Attacks against one kind of change, which apply to no other.
UNLOCK, MASKED = "unlock", "masked"
AGAINST = {"lock": UNLOCK, "soteria": MASKED}
# Multiply-adds of a gradient, and of the gradient of a distance between gradients, in forward
# passes (each takes about two forward and backward passes); parameters are read and written as
# often.
PASSES = 4
# Lower bound on steps in large networks.
LEAST = 10


@dataclass(frozen=True)
class Amounts:
    """Computational budget of the attacks at one scale."""

    steps: int  # upper bound for Inverting Gradients
    work: float  # multiply-adds of one such run, which bounds its steps in large networks
    copa: int  # optimiser steps of COPA per layer
    second: int  # steps of the second-order attack
    precondition: bool  # whether to precondition it: fewer but more expensive steps
    soteria: float  # multiply-adds of its passes for one gradient, beyond which it is skipped


SCALES = {
    "smoke": Amounts(30, 2e9, 50, 4, False, 1e11),
    "laptop": Amounts(400, 4e10, 500, 30, False, 2e12),
    "paper": Amounts(24_000, 2e13, 2000, 60, True, 1e16),
}


@dataclass(frozen=True)
class Entry:
    """One attack; fields as in `gradleak_audit.result.AttackPart`."""

    id: str
    title: str
    settings: str
    options: Mapping[str, Any]  # as in an entry of ``attacks`` in config.yaml

    @property
    def chapter(self) -> Chapter:
        """Chapter of the report: an honest or a malicious server."""
        return MALICIOUS if self.id == MKOR else HONEST

    def attack(self, chain: Chain | None, device: str) -> Attack | ManyAttack:
        """Build the attack; against a lock, Inverting Gradients also fits the key's effect."""
        locked = self.id == SEARCH and chain is not None and chain.locked
        return build({**self.options, "lock": "fit"} if locked else self.options, device)

    def reason(self, chain: Chain, mode: str) -> str:
        """Reason why it does not apply to a chain; empty if it does."""
        if self.id == DLG and chain.is_plain:
            return "Gauss-Newton minimises the same distance, from R-GAP's reconstruction."
        if self.id == ANALYTIC:
            if isinstance(chain.layers[0], ConvLayer):
                return "The first layer is a convolution, which this closed form does not read."
            return "R-GAP solves the layers of a chain, the first one too."
        if self.id == MKOR:
            return _unplanned(chain) or mkor(self, chain).applies(chain) or ""
        attack = self.attack(chain, "cpu")
        more = [mode] if isinstance(attack, ManyAttack) else []
        return attack.applies(chain, *more) or ""

    def part(self, reason: str) -> AttackPart:
        """Convert to the result's format."""
        own: dict[str, Any] = {"id": self.id, "title": self.title, "settings": self.settings}
        own["threat"] = "B" if self.id == ANALYTIC else build(self.options).threat
        return AttackPart(**own, chapter=self.chapter, reason=reason)


def menu(scale: str, multiply_adds: int, parameters: int) -> dict[str, Entry]:
    """All attacks at one scale by id, honest servers' first; large networks get fewer steps."""
    amounts = SCALES[scale]
    steps = search_steps(amounts, multiply_adds, parameters)
    cut = f" (of {amounts.steps}: the network is large)" if steps < amounts.steps else ""
    kind = "preconditioned" if amounts.precondition else "plain"
    # Shared gradients are float32; nothing below its precision is reliable.
    second: dict[str, Any] = {"iterations": amounts.second, "target": 1e-6}
    second["precondition"] = amounts.precondition
    search = {"method": SEARCH, "iterations": steps, **BALANCED}
    rows: dict[str, tuple[str, str, dict[str, Any]]] = {
        CLOSED: (
            "R-GAP, a closed form",
            "each layer solved for its input, rows of the system weighted by their errors",
            {"rows": "balanced"},
        ),
        ANALYTIC: (
            "First layer, a closed form",
            "fully connected on the image, or on patches with learned positions",
            {},
        ),
        "copa": (
            "COPA, a closed form with constraints between layers",
            f"at most {amounts.copa} steps of L-BFGS for each layer, from noise",
            {"iterations": amounts.copa},
        ),
        SECOND: (
            "Gauss-Newton, second order (ours)",
            f"from R-GAP's image, at most {amounts.second} steps, {kind} conjugate gradients",
            second,
        ),
        DLG: (
            "DLG, a search by gradients",
            f"{steps} gradients{cut} of L-BFGS from noise",
            # The picture is judged, whatever the search ended at.
            {"iterations": steps, "start": "uniform", "failure_loss": ANY, "failure_range": ANY},
        ),
        UNLOCK: (
            "Unlock, a closed form against the key-lock (ours)",
            "scale and shift of the lock from moments of what the layers behind it give away",
            {},
        ),
        SEARCH: (
            "Inverting Gradients, a search",
            f"{steps} steps{cut} of Adam from gray noise, along the unit gradients of distance and "
            f"total variation, weighted 1 to {BALANCED['balance']:g}",
            search,
        ),
        MASKED: (
            "Inverting Gradients without what Soteria withholds",
            f"{steps} steps{cut}; columns of zeros are not compared",
            search,
        ),
        MKOR: (
            "MKOR, weights that a malicious server sends",
            "paths for pixels written into the convolutions, fully connected layers as they are",
            {"rows": "all"},
        ),
    }
    return {
        name: Entry(name, title, settings, {"method": name, **options})
        for name, (title, settings, options) in rows.items()
    }


def search_steps(amounts: Amounts, multiply_adds: int, parameters: int) -> int:
    """Number of steps of an optimisation-based attack within its budget."""
    steps = int(amounts.work / (PASSES * (multiply_adds + parameters)))
    return max(LEAST, min(amounts.steps, steps))


def cut_short(scale: str, multiply_adds: int, parameters: int) -> str:
    """Note on an attack shortened because of the network's size; empty if it was not."""
    most, steps = SCALES[scale].steps, search_steps(SCALES[scale], multiply_adds, parameters)
    had = f"searches had {steps} of the {most} steps of scale {scale}; more might find more."
    return "" if steps == most else f"The network is large, so {had}"


def mkor(entry: Entry, chain: Chain) -> Attack:
    """Build MKOR for a chain: the reconstruction of a region depends on the pools."""
    attack = build({**entry.options, "estimate": estimate_for(chain)})
    assert not isinstance(attack, ManyAttack)
    return attack


def _unplanned(chain: Chain) -> str:
    from gradleak.servers.plan import plan

    why = "has a pool of another kind than 2x2, through which MKOR lays no path."
    for layer in chain.convolutions:
        if not is_common(layer.pool):
            return f"{chain.name}: {layer.name} {why}"
    try:
        plan(chain)
    except ConfigError as error:
        return str(error)
    return ""
