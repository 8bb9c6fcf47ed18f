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
    """What attacks may spend at one scale.

    Attributes
    ----------
    steps
        Of Inverting Gradients, at most.
    work
        Multiply-adds of one such search, by which its steps are cut in large networks.
    copa
        Steps of COPA's optimiser for each layer.
    second
        Steps of the second-order attack.
    precondition
        Whether these are preconditioned: fewer passes, but each step costs more.
    soteria
        Multiply-adds of Soteria's passes for one gradient, beyond which it is not tried.
    """

    steps: int
    work: float
    copa: int
    second: int
    precondition: bool
    soteria: float


SCALES = {
    "smoke": Amounts(30, 2e9, 50, 4, False, 1e11),
    "laptop": Amounts(400, 4e10, 500, 30, False, 2e12),
    "paper": Amounts(24_000, 2e13, 2000, 60, True, 1e16),
}


@dataclass(frozen=True)
class Entry:
    """One attack of the menu.

    Attributes
    ----------
    id, title, chapter
        As of `gradleak.auditing.result.AttackPart`.
    words
        Its settings in one line.
    options
        As an entry of ``attacks`` in config.yaml.
    """

    id: str
    title: str
    chapter: Chapter
    words: str
    options: Mapping[str, Any]

    def attack(self, chain: Chain | None, device: str) -> Attack | ManyAttack:
        """The attack; against a lock a search fits what it does beside the image."""
        options = dict(self.options)
        if self.id == SEARCH and chain is not None and chain.locked:
            options["lock"] = "fit"
        return build(options, device)

    def reason(self, chain: Chain, mode: str) -> str:
        """Why it does not apply to a chain; empty if it does."""
        if self.id == MKOR:
            return _mkor_reason(self, chain)
        attack = self.attack(chain, "cpu")
        if isinstance(attack, ManyAttack):
            return attack.applies(chain, mode) or ""
        return attack.applies(chain) or ""

    def part(self, reason: str) -> AttackPart:
        """What the result says of it."""
        return AttackPart(
            id=self.id,
            title=self.title,
            chapter=self.chapter,
            settings=self.words,
            reason=reason,
        )


def menu(scale: str, multiply_adds: int, parameters: int) -> tuple[Entry, ...]:
    """All attacks at one scale, those of an honest server first.

    Parameters
    ----------
    scale
        ``smoke``, ``laptop`` or ``paper``.
    multiply_adds, parameters
        Of one image's pass forward, and of the network: steps of searches are cut so that one
        stays within `Amounts.work`.

    Raises
    ------
    ConfigError
        If there is no such scale.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale: {scale} is not known; choose one of {', '.join(SCALES)}.")
    amounts = SCALES[scale]
    steps = search_steps(amounts, multiply_adds, parameters)
    cut = f" (of {amounts.steps}: the network is large)" if steps < amounts.steps else ""
    kind = "preconditioned" if amounts.precondition else "plain"
    return (
        _entry(
            CLOSED,
            "R-GAP, a closed form",
            "each layer solved for its input, rows of the system weighted by their errors",
            rows="balanced",
        ),
        _entry(
            "copa",
            "COPA, a closed form with constraints between layers",
            f"at most {amounts.copa} steps of L-BFGS for each layer, from noise",
            iterations=amounts.copa,
        ),
        _entry(
            SECOND,
            "Gauss-Newton, second order (ours)",
            f"from R-GAP's answer, at most {amounts.second} steps, {kind} conjugate gradients",
            iterations=amounts.second,
            precondition=amounts.precondition,
            # Gradients are shared in float32, and say nothing beyond.
            target=1e-6,
        ),
        _entry(
            UNLOCK,
            "Unlock, a closed form against the key-lock (ours)",
            "scale and shift of the lock from moments of what the layers behind it give away",
        ),
        _entry(
            SEARCH,
            "Inverting Gradients, a search",
            f"{steps} steps{cut} of Adam on signs from noise, total variation 0.0001",
            iterations=steps,
            tv=1e-4,
            rate=0.1,
        ),
        Entry(
            MASKED,
            "Inverting Gradients without what Soteria withholds",
            HONEST,
            f"{steps} steps{cut}; columns of zeros are not compared",
            {"method": SEARCH, "iterations": steps, "tv": 1e-4, "rate": 0.1},
        ),
        _entry(
            MKOR,
            "MKOR, weights that a malicious server sends",
            "paths for pixels written into the convolutions, fully connected layers as they are",
            MALICIOUS,
            rows="all",
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


def _entry(method: str, title: str, words: str, chapter: Chapter = HONEST, **options: Any) -> Entry:
    return Entry(method, title, chapter, words, {"method": method, **options})


def honest(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Those that attack what an honest server gets."""
    return tuple(entry for entry in entries if entry.chapter == HONEST)


def named(entries: tuple[Entry, ...], name: str) -> Entry:
    """Entry of that id."""
    return next(entry for entry in entries if entry.id == name)


def _mkor_reason(entry: Entry, chain: Chain) -> str:
    """MKOR's own checks, and pools that its plan does not know."""
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
    attack = build(mkor_options(entry, chain))
    assert not isinstance(attack, ManyAttack)
    return attack.applies(chain) or ""


def mkor_options(entry: Entry, chain: Chain) -> dict[str, Any]:
    """MKOR's settings for a chain: what it reads of a region depends on the pools."""
    average = any(layer.pool == "average" for layer in chain.convolutions)
    return {**entry.options, "estimate": "average" if average else "bounds"}
