"""Attackers who draw lock weights of their own instead of the server's (FedKL section IV-C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gradleak.attacks.base import AttackerView, Outcome
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.models.chain import Chain
from gradleak.models.fresh_locks import draw_lock

if TYPE_CHECKING:
    from gradleak.attacks.optimization.optimization_attack import Search as Base
else:
    Base = object

# Random stream of an attacker's lock weights, beside the run's seed; its key has another.
STREAM = b"lock"


class FreshLock(Base):
    """A search under lock weights that the attacker draws, anew for each gradient.

    Like `gradleak.attacks.keylock.open_lock`, but without the initial lock weights that the server
    sent, which FedKL's text leaves open: its attacker "has no knowledge of the private key sequence
    and gradient of the lock layer". Not a pydantic model, so that the fields of the search that it
    stands before stay as they are.
    """

    def applies(self, chain: Chain, mode: str = "training") -> str | None:
        """See `gradleak.attacks.base.ManyAttack`."""
        if not chain.locked:
            return f"{chain.name} has no lock whose weights could be drawn; guess none, or lock it."
        return super().applies(chain, mode)

    def run_many(self, views: Sequence[AttackerView], seeds: Sequence[int]) -> list[Outcome]:
        """See `gradleak.attacks.base.ManyAttack`."""
        pairs = zip(views, seeds, strict=True)
        return super().run_many([redrawn(view, seed) for view, seed in pairs], seeds)


def redrawn(view: AttackerView, seed: int) -> AttackerView:
    """Return a view whose lock weights are the attacker's own."""
    drawn = draw_lock(view.chain, np.random.default_rng((seed, *STREAM)))
    return replace(view, weights={**view.weights, **drawn})


class DlgFreshLock(FreshLock, Dlg):
    """DLG under lock weights of the attacker's own."""

    method: Literal["dlg_fresh_lock"] = "dlg_fresh_lock"  # type: ignore[assignment]


class GrnnFreshLock(FreshLock, Grnn):
    """GRNN under lock weights of the attacker's own."""

    method: Literal["grnn_fresh_lock"] = "grnn_fresh_lock"  # type: ignore[assignment]


class InvertingFreshLock(FreshLock, InvertingGradients):
    """Inverting Gradients under lock weights of the attacker's own."""

    method: Literal["inverting_fresh_lock"] = "inverting_fresh_lock"  # type: ignore[assignment]
