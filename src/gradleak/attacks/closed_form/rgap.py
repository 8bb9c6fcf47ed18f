"""R-GAP: minimum-norm solution of every layer system (R-GAP Algorithm 1; COPA's rival)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import PrivateAttr

from gradleak.attacks.base import Attack, AttackerView, LayerFacts, Reconstruction
from gradleak.attacks.closed_form.invertible import inapplicable, too_large
from gradleak.models.activations import INSIDE, NAMES
from gradleak.models.chain import Chain, ConvLayer
from gradleak.settings.fields import Precision

if TYPE_CHECKING:
    from gradleak.attacks.closed_form.layerwise import LayerAnswer, LayerTask
    from gradleak.operators.system import LayerSystem

# A layer whose equations contradict each other by more than this (relative) has an input in error.
AGREEMENT = 1e-3


def minimum_norm(task: LayerTask, rows: str = "plain") -> LayerAnswer:
    """Solve X = U^+ V of one layer, after weighting the rows of U and V; see `RGap`."""
    from gradleak.attacks.closed_form.layerwise import LayerAnswer, linear_facts

    system, values = balance(task) if rows == "balanced" else (task.system, task.values)
    solution = system.solve(values)
    residual = solution.residual / float(np.linalg.norm(values))
    return LayerAnswer(solution.x, None, linear_facts(task.layer.name, "4", residual, solution))


def balance(task: LayerTask) -> tuple[LayerSystem, np.ndarray]:
    """Scale each row of K to W's mean row length, times the error amplification of A^-1.

    Rounding leaves every row of K x = ∇W with much the same relative error, but the row's length
    is that of dJ/dZ, often orders of magnitude below W's: unweighted least squares all but
    ignores them. The rows of W x = Z carry the errors of the layers behind, which A^-1 amplifies
    by ||X / A'(Z)|| / ||Z − bias|| if the relative errors of all X are alike, 1 for LeakyReLU.
    """
    activation = task.layer.activation
    slope = np.maximum(activation.derivative(task.z), np.finfo(np.float32).eps)
    error = float(np.linalg.norm(activation.forward(task.z) / slope))
    size = float(np.linalg.norm(task.values[: task.system.split]))
    return task.system.balance(task.values, max(1.0, error / size) if size else 1.0)


class RGap(Attack):
    """R-GAP's recursive closed form.

    Values outside the range of Sigmoid or Tanh, which occur in a layer solved only in part, are
    moved to `INSIDE` of it and counted as saturated.
    """

    gives_twins = True
    # Thresholds of `failure`. In networks saturated by their weights, at least 9 % of the last
    # layer's input was saturated and residuals were above 0.3; noise of 0.01 of each tensor's
    # deviation left residuals up to 0.5, but at most 0.6 % of that input was saturated.
    failure_residual: ClassVar[float] = 0.25
    failure_saturated: ClassVar[float] = 0.05

    method: Literal["rgap"] = "rgap"
    # float32 as for the paper's own numbers: weights, gradients and everything passed from layer to
    # layer; each least-squares problem in float64, the only precision of `numpy.linalg.lstsq`.
    precision: Precision = "float64"
    # U as the paper writes it, or rows weighted by their estimated errors, see `balance`. Both
    # agree on exact gradients that fix every layer; on float32 ones weighting has far less error.
    # Where a layer was solved only in part, the equations of the layers before it contradict each
    # other and the two differ.
    rows: Literal["plain", "balanced"] = "plain"

    _cache: dict[str, Any] = PrivateAttr(default_factory=dict)

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        return inapplicable(chain, NAMES) or too_large(chain)

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; deterministic, `seed` is ignored."""
        from gradleak.attacks.closed_form.layerwise import walk

        misfits: dict[str, float] = {}

        def solve(task: LayerTask) -> LayerAnswer:
            answer = minimum_norm(task, self.rows)
            off = task.system.apply(answer.x) - task.values
            misfits[task.layer.name] = float(np.linalg.norm(off) / np.linalg.norm(task.values))
            return answer

        return walk(
            view,
            self._cache,
            solve,
            precision=self.precision,
            margin=INSIDE,
            linear=True,
            judge=lambda found: self.failure(found, view, misfits),
        )

    def failure(
        self, found: Reconstruction, view: AttackerView, misfits: Mapping[str, float]
    ) -> str:
        """Return why a reconstruction failed, judged without the original; empty if it did not.

        A saturated value z is unknown, and with it the equations of every layer before. The
        reconstruction fails if more than `failure_saturated` of some layer's input is saturated and
        the equations of a layer before contradict each other by more than `failure_residual`. Noise
        and layers that leave unknowns free, which are reported separately, also cause both. A
        layer's input therefore counts only where all equations up to there fix it and agree, and a
        batch, which no single image explains, is not judged.

        `misfits` has ||U x − V|| / ||V|| of each convolution, rows not weighted.
        """
        sizes = {
            layer.name: layer.shape.unknowns if isinstance(layer, ConvLayer) else layer.inputs
            for layer in view.chain.layers
        }
        worst: LayerFacts | None = None
        for facts in found.layers if view.batch == 1 else ():
            misfit = misfits.get(facts.layer, facts.residual)
            if worst is not None and misfit > self.failure_residual:
                return (
                    f"{worst.clipped} of {sizes[worst.layer]} values are saturated in the input "
                    f"of {worst.layer}, and the equations of {facts.layer} contradict each other "
                    f"(relative residual {misfit:.2g}, where more than {self.failure_residual:g} "
                    "counts as failed); use weights that saturate less."
                )
            if worst is None:
                if facts.free or misfit > AGREEMENT:
                    break
                if facts.clipped > self.failure_saturated * sizes[facts.layer]:
                    worst = facts
        return ""
