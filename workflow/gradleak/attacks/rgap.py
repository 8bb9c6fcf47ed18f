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
    walk,
)
from gradleak.models.activations import NAMES
from gradleak.models.chain import Chain
from gradleak.operators.system import LayerSystem


def minimum_norm(task: LayerTask, precision: str = "float64", rows: str = "plain") -> LayerAnswer:
    """X = U^+ V of one layer, after weighting the rows of U and V; see `RGap`."""
    system, values = balance(task) if rows == "balanced" else (task.system, task.values)
    solution = system.solve_single(values) if precision == "float32" else system.solve(values)
    residual = solution.residual / float(np.linalg.norm(values))
    facts = LayerFacts(task.layer.name, "4", residual, solution.iterations, solution.stop)
    return LayerAnswer(solution.x, None, facts)


def balance(task: LayerTask) -> tuple[LayerSystem, np.ndarray]:
    """U and V with each row of K as long as W's on average, times what A^-1 magnifies errors by.

    Rounding leaves every row of K x = ∇W with much the same relative error, but the row's length
    is that of dJ/dZ, often orders of magnitude below W's: unweighted least squares all but
    ignores them. The rows of W x = Z carry the errors of the layers behind, which A^-1 magnifies:
    by ||X / A'(Z)|| / ||Z − bias|| if the relative errors of all X are alike, 1 for LeakyReLU.
    """
    system = task.system
    delta = system.gradient.delta
    lengths = np.linalg.norm(delta, axis=1)
    row = float(np.linalg.norm(system.convolution.weight)) / np.sqrt(lengths.size)
    alive = lengths > 0
    factors = np.where(alive, _magnified(task) * row / np.where(alive, lengths, 1.0), 1.0)
    balanced = LayerSystem(system.convolution, system.gradient.scaled(factors), system.keep)
    below = task.values[system.split :].reshape(lengths.size, -1) * factors[:, None]
    return balanced, np.concatenate([task.values[: system.split], below.ravel()])


def _magnified(task: LayerTask) -> float:
    activation = task.layer.activation
    slope = np.maximum(activation.derivative(task.z), np.finfo(np.float32).eps)
    error = float(np.linalg.norm(activation.forward(task.z) / slope))
    size = float(np.linalg.norm(task.values[: task.system.split]))
    return max(1.0, error / size) if size else 1.0


@dataclass
class RGap:
    """R-GAP's recursive closed form.

    Parameters
    ----------
    precision
        ``float64``, or ``float32`` for the arithmetic of the paper's own numbers, least squares
        included.
    rows
        ``plain``: U as the paper writes it. ``balanced``: rows weighted by what is known of their
        errors, see `balance`; exact gradients give the same answer, and so does a layer that is
        solved only in part, but float32 gradients give one that is far less in error.
    margin
        Values beyond the range of Sigmoid or Tanh, as a layer that is solved only in part gives
        them, are moved to this distance inside of it, and counted.
    """

    precision: str = "float64"
    rows: str = "plain"
    margin: float = 1e-6
    _cache: ConvolutionCache = field(default_factory=ConvolutionCache, repr=False)

    def applies(self, chain: Chain) -> str | None:
        """See `gradleak.attacks.base.Attack`."""
        return inapplicable(chain, NAMES)

    def run(self, view: AttackerView, seed: int) -> Reconstruction:
        """See `gradleak.attacks.base.Attack`; deterministic, so `seed` changes nothing."""
        return walk(
            view,
            self._cache,
            lambda task: minimum_norm(task, self.precision, self.rows),
            precision=self.precision,
            margin=self.margin,
            linear=True,
        )
