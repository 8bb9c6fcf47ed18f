"""Line searches of many problems at once, each in its own state."""

import torch
from torch import Tensor

# Weak Wolfe conditions with the usual constants (Nocedal and Wright 2006, section 3.1).
DECREASE, CURVATURE = 1e-4, 0.9
# Maximum number of trials in one line search.
TRIALS = 20
# An interpolated step keeps this fraction of the bracket away from its ends.
MARGIN = 0.1
GROWTH = 4.0


class Rows:
    """Tensors with a row for each problem."""

    def keep(self, rows: Tensor) -> None:
        """Keep only problems `rows` (mask)."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


class LineSearch(Rows):
    """Steps t with f(t) ≤ ceiling + c₁ t f'(0) and, if strict, f'(t) ≥ c₂ f'(0), by bracketing.

    With ceiling = f(0) and strict, these are the weak Wolfe conditions. Lewis and Overton's (2013)
    scheme, which also ends where f has kinks, with cubic interpolation in place of bisection. All
    values are float64 of shape (A,), A being `problems`. `t` is the step to try next; `low` is the
    longest step known that lowers f but not enough of its slope, 0 if there is none.
    """

    def __init__(self, problems: int, device: torch.device, *, strict: bool = True) -> None:
        def zeros() -> Tensor:
            return torch.zeros(problems, dtype=torch.float64, device=device)

        self.ceiling, self.slope, self.t, self.trials = zeros(), zeros(), zeros(), zeros()
        self.strict = strict
        self.low, self.low_value, self.low_slope = zeros(), zeros(), zeros()
        self.high, self.high_value, self.high_slope = zeros(), zeros(), zeros()

    def begin(self, rows: Tensor, value: Tensor, slope: Tensor, t: Tensor, ceiling: Tensor) -> None:
        """Start new searches for problems `rows` (mask) with f(0), f'(0) < 0 and a first step t."""
        zero, infinite = torch.zeros_like(t), torch.full_like(t, torch.inf)
        fresh = {"ceiling": ceiling, "slope": slope, "t": t, "trials": zero}
        fresh |= {"low": zero, "low_value": value, "low_slope": slope}
        fresh |= {"high": infinite, "high_value": infinite, "high_slope": zero}
        for name, start in fresh.items():
            setattr(self, name, torch.where(rows, start, getattr(self, name)))

    def tell(self, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Process f(t) and f'(t), and choose the next t where the line search continues.

        Returns masks: t meets both conditions; t lowers f, but its slope is still too steep; all
        trials are used up without an accepted step.
        """
        finite = torch.isfinite(value) & torch.isfinite(slope)
        enough = value <= self.ceiling + DECREASE * self.t * self.slope
        # Rounding may accept tiny steps that lower nothing.
        fits = finite & enough & (value < self.ceiling)
        accepted = fits & (slope >= CURVATURE * self.slope) if self.strict else fits
        lowered, failed = fits & ~accepted, ~fits
        self.low = torch.where(lowered, self.t, self.low)
        self.low_value = torch.where(lowered, value, self.low_value)
        self.low_slope = torch.where(lowered, slope, self.low_slope)
        self.high = torch.where(failed, self.t, self.high)
        self.high_value = torch.where(failed & finite, value, torch.inf).where(
            failed, self.high_value
        )
        self.high_slope = torch.where(failed, slope, self.high_slope)
        self.trials = self.trials + 1
        self.t = torch.where(accepted, self.t, self._next())
        return accepted, lowered, ~accepted & (self.trials >= TRIALS)

    def _next(self) -> Tensor:
        """Minimise the cubic through both ends of the bracket; beyond its known end if open."""
        width = self.high - self.low
        chord = self.low_slope + self.high_slope - 3.0 * (self.high_value - self.low_value) / width
        root = torch.sqrt(chord.square() - self.low_slope * self.high_slope)
        share = 1.0 - (self.high_slope + root - chord) / (
            self.high_slope - self.low_slope + 2.0 * root
        )
        share = torch.where(torch.isfinite(share), share, 0.5).clamp(MARGIN, 1.0 - MARGIN)
        share = torch.where(torch.isfinite(self.high_value), share, MARGIN)
        inside = self.low + share * width
        return torch.where(torch.isfinite(self.high), inside, GROWTH * self.t)
