"""Base class of the linear operators of a layer."""

from abc import ABC, abstractmethod

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

    def normal(self, x: np.ndarray) -> np.ndarray:
        """A^T A x, (n,) -> (n,)."""
        return self.adjoint(self.apply(x))
