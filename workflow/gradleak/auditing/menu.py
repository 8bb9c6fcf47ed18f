"""The attacks of an audit, their settings by scale, and why one does not apply to a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradleak.attacks.base import Attack, ManyAttack
from gradleak.attacks.run import build
from gradleak.auditing.result import AttackPart, Chapter
from gradleak.errors import ConfigError
from gradleak.models.chain import Chain

HONEST: Chapter = "honest server"
MALICIOUS: Chapter = "malicious server"
SEARCH = "inverting_gradients"
CLOSED, SECOND, MKOR = "rgap", "gauss_newton", "mkor"
# Attacks that are made against one change, and apply to no other.
UNLOCK, MASKED = "unlock", "masked"
# Attacks that are made against one kind of change.
AGAINST = {"lock": UNLOCK, "soteria": MASKED}
# Multiply-adds of a gradient and of the gradient of a distance between gradients, each about two
# passes forward and back, relative to one pass forward; parameters are read and written as often.
PASSES = 4
# Fewest steps of a search, however large the network is.
LEAST = 10


@dataclass(frozen=True)
class Amounts:
    """What attacks may spend at one scale."""

    steps: int  # of Inverting Gradients, at most
    work: float  # multiply-adds of one such search, by which its steps are cut in large networks
    copa: int  # steps of COPA's optimiser for each layer
    second: int  # steps of the second-order attack
    precondition: bool  # whether these are preconditioned: fewer passes, but each step costs more
    soteria: float  # multiply-adds of its passes for one gradient, beyond which it is not tried


SCALES = {
    "smoke": Amounts(30, 2e9, 50, 4, False, 1e11),
    "laptop": Amounts(400, 4e10, 500, 30, False, 2e12),
    "paper": Amounts(24_000, 2e13, 2000, 60, True, 1e16),
}


@dataclass(frozen=True)
class Entry:
    """One attack of the menu; as of `gradleak.auditing.result.AttackPart`."""

    id: str
    title: str
    chapter: Chapter
    settings: str
    options: Mapping[str, Any]  # as an entry of ``attacks`` in config.yaml

    def attack(self, chain: Chain | None, device: str) -> Attack | ManyAttack:
        """The attack; against a lock a search fits what it does beside the image."""
        options = dict(self.options)
        if self.id == SEARCH and chain is not None and chain.locked:
            options["lock"] = "fit"
        return build(options, device)

    def reason(self, chain: Chain, mode: str) -> str:
        """Why it does not apply to a chain; empty if it does."""
        if self.id == MKOR:
            return _unplanned(chain) or mkor(self, chain).applies(chain) or ""
        attack = self.attack(chain, "cpu")
        if isinstance(attack, ManyAttack):
            return attack.applies(chain, mode) or ""
        return attack.applies(chain) or ""

    def part(self, reason: str) -> AttackPart:
        """What the result says of it."""
        own = {key: getattr(self, key) for key in ("id", "title", "chapter", "settings")}
        return AttackPart(**own, reason=reason)


def menu(scale: str, multiply_adds: int, parameters: int) -> tuple[Entry, ...]:
    """All attacks at one scale, those of an honest server first.

    `multiply_adds` are those of one image's pass forward: steps of searches are cut so that one
    stays within `Amounts.work`.
    """
    amounts = SCALES[scale]
    steps = search_steps(amounts, multiply_adds, parameters)
    cut = f" (of {amounts.steps}: the network is large)" if steps < amounts.steps else ""
    kind = "preconditioned" if amounts.precondition else "plain"
    search = {"method": SEARCH, "iterations": steps, "tv": 1e-4, "rate": 0.1}
    return (
        Entry(
            CLOSED,
            "R-GAP, a closed form",
            HONEST,
            "each layer solved for its input, rows of the system weighted by their errors",
            {"method": CLOSED, "rows": "balanced"},
        ),
        Entry(
            "copa",
            "COPA, a closed form with constraints between layers",
            HONEST,
            f"at most {amounts.copa} steps of L-BFGS for each layer, from noise",
            {"method": "copa", "iterations": amounts.copa},
        ),
        Entry(
            SECOND,
            "Gauss-Newton, second order (ours)",
            HONEST,
            f"from R-GAP's answer, at most {amounts.second} steps, {kind} conjugate gradients",
            {
                "method": SECOND,
                "iterations": amounts.second,
                "precondition": amounts.precondition,
                # Gradients are shared in float32, and say nothing beyond.
                "target": 1e-6,
            },
        ),
        Entry(
            UNLOCK,
            "Unlock, a closed form against the key-lock (ours)",
            HONEST,
            "scale and shift of the lock from moments of what the layers behind it give away",
            {"method": UNLOCK},
        ),
        Entry(
            SEARCH,
            "Inverting Gradients, a search",
            HONEST,
            f"{steps} steps{cut} of Adam on signs from noise, total variation 0.0001",
            search,
        ),
        Entry(
            MASKED,
            "Inverting Gradients without what Soteria withholds",
            HONEST,
            f"{steps} steps{cut}; columns of zeros are not compared",
            search,
        ),
        Entry(
            MKOR,
            "MKOR, weights that a malicious server sends",
            MALICIOUS,
            "paths for pixels written into the convolutions, fully connected layers as they are",
            {"method": MKOR, "rows": "all"},
        ),
    )


def search_steps(amounts: Amounts, multiply_adds: int, parameters: int) -> int:
    """Steps of a search that stays within its work."""
    each = PASSES * (multiply_adds + parameters)
    return max(LEAST, min(amounts.steps, int(amounts.work / each)))


def cut_short(scale: str, multiply_adds: int, parameters: int) -> str:
    """A sentence on a search that the network's size cut; empty if it did not."""
    most = SCALES[scale].steps
    steps = search_steps(SCALES[scale], multiply_adds, parameters)
    if steps == most:
        return ""
    return (
        f"The network is large, so searches had {steps} of the {most} steps of scale {scale}; "
        "more might find more."
    )


def named(entries: tuple[Entry, ...], name: str) -> Entry:
    """Entry of that id."""
    return next(entry for entry in entries if entry.id == name)


def mkor(entry: Entry, chain: Chain) -> Attack:
    """MKOR for a chain: what it reads of a region depends on the pools."""
    average = any(layer.pool == "average" for layer in chain.convolutions)
    attack = build({**entry.options, "estimate": "average" if average else "bounds"})
    assert not isinstance(attack, ManyAttack)
    return attack


def _unplanned(chain: Chain) -> str:
    """Why MKOR lays no paths through a chain; empty if it does."""
    from gradleak.servers.plan import plan

    for layer in chain.convolutions:
        if layer.pool in ("global", "max3"):
            return (
                f"{chain.name}: {layer.name} has a pool of another kind than 2x2, through which "
                "MKOR lays no path."
            )
    try:
        plan(chain)
    except ConfigError as error:
        return str(error)
    return ""
