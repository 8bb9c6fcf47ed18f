"""COPA: the combined optimisation attack (COPA Algorithm 1, eq. 5 to 7 and Appendix B)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import PositiveFloat

from gradleak.attacks.base import Attack, AttackerView, LayerFacts, Reconstruction
from gradleak.models.activations import INSIDE
from gradleak.models.chain import Chain
from gradleak.settings.fields import AmountOrName

if TYPE_CHECKING:
    from gradleak.attacks.closed_form.layerwise import ConvolutionCache, LayerAnswer, LayerTask
    from gradleak.operators.convolution import Convolution


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

    @cached_property
    def _cache(self) -> ConvolutionCache:
        from gradleak.attacks.closed_form.layerwise import ConvolutionCache

        return ConvolutionCache()

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        from gradleak.attacks.closed_form.layerwise import inapplicable

        return inapplicable(chain)

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; `seed` draws the initial values."""
        from gradleak.attacks.closed_form.layerwise import walk

        generator = np.random.default_rng(seed)

        def solve(task: LayerTask) -> LayerAnswer:
            if task.before is None:
                return self._first(task, generator)
            return self._hidden(task, generator)

        return walk(view, self._cache, solve)

    def _first(self, task: LayerTask, generator: np.random.Generator) -> LayerAnswer:
        """Solve eq. (6): quadratic, so descent from X₀ ends at the minimiser nearest to X₀."""
        from gradleak.attacks.closed_form.layerwise import LayerAnswer

        begin = None
        if self.start == "random":
            begin = generator.uniform(-self.first_spread, self.first_spread, task.system.shape[1])
        solution = task.system.solve(task.values, begin)
        residual = solution.residual / float(np.linalg.norm(task.values))
        facts = LayerFacts(task.layer.name, "6", residual, solution.iterations, solution.stop)
        return LayerAnswer(solution.x, None, facts)

    def _hidden(self, task: LayerTask, generator: np.random.Generator) -> LayerAnswer:
        """Solve eq. (5) or (7) in Y, the linear output of the layer before, with X = A(Y)."""
        from gradleak.attacks.closed_form.layerwise import LayerAnswer
        from gradleak.attacks.closed_form.least_squares import OPTIMISERS, LayerProblem

        assert task.before is not None and task.before_convolution is not None
        before = task.before_convolution
        constrained = self._constrained(before)
        clipped = 0
        if self.start == "rgap":
            estimate = task.system.solve(task.values).x
            opened = task.before.activation.open(estimate, INSIDE)
            begin, clipped = opened.z, opened.clipped
        else:
            size = task.system.shape[1]
            begin = generator.uniform(-self.hidden_spread, self.hidden_spread, size)
        given, activation = (task.system, task.values), task.before.activation
        outside = (lambda y: y - before.project(y)) if constrained else None
        problem = LayerProblem(*given, activation, outside, task.before_bias)
        found = OPTIMISERS[self.optimiser](problem, begin, self.iterations)
        residual = float(np.sqrt(found.trace[-1])) / float(np.linalg.norm(task.values))
        equation, how = "7" if constrained else "5", (found.iterations, found.stop)
        facts = LayerFacts(task.layer.name, equation, residual, *how, clipped, found.trace)
        return LayerAnswer(activation.forward(found.y), found.y, facts)

    def _constrained(self, before: Convolution) -> bool:
        """True if eq. (19) constrains the input of a layer behind the convolution `before`."""
        rows, columns = before.shape
        full_column_rank = before.is_tall and before.factor is not None and columns < rows
        return full_column_rank and self.pull_back == "appendix_b"
