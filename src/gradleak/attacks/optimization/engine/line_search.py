"""Line searches and curvature memory of L-BFGS for many problems at once."""

import torch
from torch import Tensor

# Share of the decrease that the slope promises (Nocedal and Wright 2006, section 3.1).
DECREASE = 1e-4
# Maximum number of trials in one line search.
TRIALS = 20
# An interpolated step is at least this fraction shorter than the last, and at most this much of it.
MARGIN = 0.1
# Pairs with sᵀy at rounding level of |s||y| carry no curvature.
FLAT = 1e-8


class Rows:
    """Tensors with a row for each problem."""

    def keep(self, rows: Tensor) -> None:
        """Keep only problems `rows` (mask)."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


class LineSearch(Rows):
    """Steps t with f(t) ≤ ceiling + c₁ t f'(0), by backtracking with cubic interpolation.

    All values are float64, one a row of `like`; `t` is the step to try next.
    """

    def __init__(self, like: Tensor) -> None:
        zeros = torch.zeros(len(like), dtype=torch.float64, device=like.device)
        self.value = self.slope = self.t = self.ceiling = self.trials = zeros

    def begin(self, rows: Tensor, value: Tensor, slope: Tensor, t: Tensor, ceiling: Tensor) -> None:
        """Start new searches for problems `rows` (mask) with f(0), f'(0) < 0 and a first step t."""
        fresh = {"value": value, "slope": slope, "t": t, "ceiling": ceiling}
        for name, start in {**fresh, "trials": torch.zeros_like(t)}.items():
            setattr(self, name, torch.where(rows, start, getattr(self, name)))

    def tell(self, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Process f(t) and f'(t), and choose the next t where the line search continues.

        Returns masks: t meets the condition; all trials are used up without an accepted step.
        """
        finite = torch.isfinite(value) & torch.isfinite(slope)
        enough = value <= self.ceiling + DECREASE * self.t * self.slope
        # Rounding may accept tiny steps that lower nothing.
        accepted = finite & enough & (value < self.ceiling)
        self.trials = self.trials + 1
        # The minimum of the cubic through both ends.
        chord = self.slope + slope - 3.0 * (value - self.value) / self.t
        root = torch.sqrt(chord.square() - self.slope * slope)
        share = 1.0 - (slope + root - chord) / (slope - self.slope + 2.0 * root)
        share = torch.where(torch.isfinite(share), share, 0.5).clamp(MARGIN, 1.0 - MARGIN)
        share = torch.where(finite, share, MARGIN)
        self.t = torch.where(accepted, self.t, share * self.t)
        return accepted, ~accepted & (self.trials >= TRIALS)


class Curvature(Rows):
    """Inverse Hessians H of A problems from their last m steps s and gradient changes y.

    Compact form (Byrd, Nocedal and Schnabel 1994, theorem 2.2), with S and Y (m, n) in rows:
    H v = γ v + Sᵀ R⁻ᵀ((D + γ Y Yᵀ) u − γ Y v) − γ Yᵀ u, u = R⁻¹ S v, where R is the upper
    triangle of S Yᵀ and D its diagonal: two passes over the pairs instead of a loop over them.
    Pairs are scaled to sᵀy = 1, which leaves H as it is and makes D the identity. `like` is
    shaped as all x (A, n); m is `memory`.

    R⁻¹ is kept, not R: a new pair adds a column to it, and dropping the oldest removes its first
    row and column. The order of the pairs in memory thus does not matter, and a ring whose end
    differs between problems needs no sorting. Small matrices are float64.
    """

    def __init__(self, like: Tensor, memory: int) -> None:
        self.memory = memory
        # S in rows 0 ... m − 1, Y in rows m ... 2m − 1.
        self._pairs = like.new_zeros((len(like), 2 * memory, like.shape[1]))
        shape = (len(like), memory, memory)
        self._inverse = torch.zeros(shape, dtype=torch.float64, device=like.device)
        self._yy = torch.zeros_like(self._inverse)
        self._gamma = torch.ones(len(like), dtype=torch.float64, device=like.device)
        self.stored = torch.zeros(len(like), dtype=torch.long, device=like.device)

    def clear(self, rows: Tensor) -> None:
        """Clear the memory of problems `rows` (mask)."""
        if bool(rows.any()):
            for value in (self._pairs, self._inverse, self._yy, self.stored):
                value[rows] = 0
            self._gamma[rows] = 1.0

    def learn(self, rows: Tensor, step: Tensor, change: Tensor, vector: Tensor) -> Tensor:
        """Learn s = `step`, y = `change` (A, n) of problems `rows` (mask) if sᵀy > 0; return H v.

        Both at once, since they share the pass over the pairs. Without any pairs, H v = v.
        """
        inner = (step * change).sum(1).double()
        norms = torch.linalg.vector_norm(step, dim=1) * torch.linalg.vector_norm(change, dim=1)
        index = torch.nonzero(rows & (inner > FLAT * norms.double()))[:, 0]
        scale = inner.rsqrt().to(step.dtype).unsqueeze(1)
        s, y = step * scale, change * scale
        slot = self.stored[index] % self.memory
        self._pairs[index, slot], self._pairs[index, self.memory + slot] = s[index], y[index]
        # Rows times a matrix: in batched products much faster than a matrix times columns.
        found = (torch.stack((vector, y), 1) @ self._pairs.mT).double()
        if index.numel():
            self._insert(index, slot, found[:, 1])
        return self._combine(vector, found[:, 0])

    def _insert(self, index: Tensor, slot: Tensor, found: Tensor) -> None:
        """Store pairs of problems `index` in `slot`; `found` is [S; Y] y (A, 2m)."""
        sy, yy = found.chunk(2, 1)
        self._yy[index, slot], self._yy[index, :, slot] = yy[index], yy[index]
        self._gamma[index] = 1.0 / yy[index, slot]
        self._inverse[index, slot], self._inverse[index, :, slot] = 0.0, 0.0
        column = -_times(self._inverse, sy)[index]
        column[torch.arange(len(index), device=index.device), slot] = 1.0
        self._inverse[index, :, slot] = column
        self.stored[index] += 1

    def _combine(self, vector: Tensor, found: Tensor) -> Tensor:
        """Return H v (A, n) from v and [S; Y] v (A, 2m)."""
        sv, yv = found.chunk(2, 1)
        gamma = self._gamma.unsqueeze(1)
        u = _times(self._inverse, sv)
        right = u + gamma * (_times(self._yy, u) - yv)
        top = _times(self._inverse.mT, right)
        parts = torch.cat((top, -gamma * u), 1).to(vector.dtype)
        combined = (parts.unsqueeze(1) @ self._pairs).squeeze(1)
        return gamma.to(vector.dtype) * vector + combined


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Products (A, m) of matrices (A, m, m) with vectors (A, m)."""
    return (vector.unsqueeze(1) @ matrix.mT).squeeze(1)
