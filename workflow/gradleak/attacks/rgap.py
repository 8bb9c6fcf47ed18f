"""R-GAP: minimum-norm solution of every layer system (R-GAP Algorithm 1; COPA's rival)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gradleak.attacks.base import AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.layerwise import (
    ConvolutionCache,
    LayerAnswer,
    LayerTask,
    inapplicable,
    pull_through,
    walk,
)
from gradleak.models.chain import Chain


def minimum_norm(task: LayerTask, margin: float) -> LayerAnswer:
    """X = U^+ V of one layer."""
    solution = task.system.solve(task.values)
    z_before, clipped = pull_through(task, solution.x, margin)
    residual = solution.residual / float(np.linalg.norm(task.values))
    facts = LayerFacts(task.layer.name, "4", residual, solution.iterations, solution.stop, clipped)
    return LayerAnswer(solution.x, z_before, facts)


@dataclass
class RGap:
    """R-GAP's recursive closed form.

    Parameters
    ----------
    margin
        See `pull_through`.
    """

    margin: float = 1e-6
    _cache: ConvolutionCache = field(default_factory=ConvolutionCache, repr=False)

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        return inapplicable(chain)

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; deterministic, so `seed` changes nothing."""
        return walk(view, self._cache, lambda task: minimum_norm(task, self.margin))
