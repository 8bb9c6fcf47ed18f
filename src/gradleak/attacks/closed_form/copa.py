"""COPA: the combined optimisation attack (COPA Algorithm 1, eq. 5 to 7 and Appendix B)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PositiveFloat, PrivateAttr

from gradleak.attacks.base import Attack, AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.closed_form.invertible import inapplicable, too_large
from gradleak.models.activations import INSIDE
from gradleak.models.chain import Chain
from gradleak.settings.fields import AmountOrName

if TYPE_CHECKING:
    from gradleak.attacks.closed_form.layerwise import LayerAnswer, LayerTask


class Copa(Attack):
    """The combined optimisation attack: least squares layer by layer, with constraints between."""

    inverts_activations = True

    method: Literal["copa"] = "copa"
    # Uniform in the ranges below, or R-GAP's minimum-norm solution of the same layer. The paper
    # does not publish its initial values.
    start: Literal["random", "rgap"] = "random"
    first_spread: PositiveFloat = 0.5  # half-width of the initial values of the image
    hidden_spread: PositiveFloat = 0.05  # and of Y of the other layers
    # Appendix B: eq. (7) where W of the layer before has full column rank n < m, else eq. (5).
    # As Algorithm 1 is printed: eq. (5) where rank(W) < |X|, else eq. (7); there W has no left null
    # space, g of eq. (19) is zero and eq. (7) equals eq. (5).
    pull_back: Literal["appendix_b", "algorithm_1"] = "appendix_b"
    optimiser: Literal["lbfgs", "levenberg_marquardt", "adam"] = "lbfgs"
    iterations: AmountOrName = 500  # maximum number of the optimiser's steps

    _cache: dict[str, Any] = PrivateAttr(default_factory=dict)

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        # Only the image itself comes from a linear system, unless R-GAP's solutions are the start.
        layers = 1 if self.start == "random" else None
        return inapplicable(chain) or too_large(chain, layers)

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; `seed` draws the initial values."""
        from gradleak.attacks.closed_form.layerwise import walk

        generator = np.random.default_rng(seed)
        return walk(view, self._cache, lambda task: self._solve(task, generator))

    def _solve(self, task: LayerTask, generator: np.random.Generator) -> LayerAnswer:
        """Solve eq. (6) in X of the first layer, else (5) or (7) in Y with X = A(Y)."""
        from gradleak.attacks.closed_form.layerwise import LayerAnswer, linear_facts
        from gradleak.attacks.closed_form.least_squares import OPTIMISERS, LayerProblem

        name, system, before = task.layer.name, task.system, task.before_convolution
        begin, length = None, float(np.linalg.norm(task.values))
        if self.start == "random":
            spread = self.hidden_spread if before else self.first_spread
            begin = generator.uniform(-spread, spread, system.shape[1])
        if task.before is None or before is None:
            solution = system.solve(task.values, begin)
            facts = linear_facts(name, "6", solution.residual / length, solution)
            return LayerAnswer(solution.x, None, facts)
        activation, clipped = task.before.activation, 0
        if begin is None:
            opened = activation.open(system.solve(task.values).x, INSIDE)
            begin, clipped = opened.z, opened.clipped
        # Eq. (19) constrains Y behind a convolution of full column rank with more rows.
        thin = before.shape[1] < before.shape[0] and before.factor is not None
        constrained = thin and self.pull_back == "appendix_b"
        outside = (lambda y: y - before.project(y)) if constrained else None
        problem = LayerProblem(system, task.values, activation, outside, task.before_bias)
        found = OPTIMISERS[self.optimiser](problem, begin, self.iterations)
        how = float(np.sqrt(found.trace[-1])) / length, found.iterations, found.stop
        facts = LayerFacts(name, "7" if constrained else "5", *how, clipped, found.trace)
        return LayerAnswer(activation.forward(found.y), found.y, facts)
