"""Base class of the linear operators of a layer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np


class Operator(ABC):
    """A real linear map A: R^n -> R^m in float64, with its adjoint.

    A subclass supplies `shape`, `apply` and `adjoint`; the shared tests check
    <A x, y> = <x, A^T y> and compare both with a dense matrix.
    """

    shape: tuple[int, int]

    @abstractmethod
    def apply(self, x: np.ndarray) -> np.ndarray:
        """Forward map, (n,) -> (m,)."""

    @abstractmethod
    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Adjoint map, (m,) -> (n,)."""


@dataclass(frozen=True)
class Solution:
    """A least-squares solution of U x = V."""

    x: np.ndarray  # the solution (n,): of all minimisers, the one nearest to the start
    residual: float  # ||U x − V||
    iterations: int  # steps of the solver; 0 for a direct solve
    # ``direct``, ``converged``, ``stalled`` (only rounding errors are left) or ``iteration limit``.
    stop: str
