"""Power of a comparison with a printed number: which results of ours agree with it, and how well.

A comparison that nearly any result would pass says nothing. Its acceptance window is our interval,
widened by the rounding and the ± of the paper. A window is too wide to reproduce a number if it
spans over a factor of 10 in an error, over 10 dB in a PSNR, or holds 0 for a score such as SSIM.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gradleak.claims.metrics import LOGARITHMIC, PEAKS, may_be_zero
from gradleak.claims.statement import Statement, Tolerance
from gradleak.claims.statistics import MSE_FLOOR

WIDEST = 10.0  # a factor, or dB
TOO_WIDE = "too wide"  # begins the reason of a number that hardly any result would miss
ONE_DRAW = "one draw"  # begins the reason of what a single training or batch came to
MOST = 10_000  # runs, the most that are asked for
# Ratios of two errors (of PSNRs, of their MSEs; else of the numbers) up to which they are close.
LEVELS = {"10 %": 1.1, "25 %": 1.25, "factor 2": 2.0, "factor 10": 10.0}


def printed_range(claim: Statement, metric: str) -> tuple[float, float]:
    """Range of the paper's value with its rounding and what is printed after ±.

    For errors, ± is a factor to both sides, so that v ± v does not include 0.
    """
    value, spread = claim.value, claim.spread
    low = value - spread
    if metric in LOGARITHMIC and value > 0:
        low = value**2 / (value + spread)
    return low - claim.rounding, value + spread + claim.rounding


@dataclass(frozen=True)
class Window:
    """Acceptance window of a claim's number: our interval from `low` to `high`, and `metric`.

    `own` is the interval before the tolerance widened it.
    """

    claim: Statement
    metric: str
    low: float
    high: float
    own: tuple[float, float] | None = None

    @property
    def holds(self) -> bool:
        """True if the paper's value, with its rounding and ±, reaches our interval."""
        low, high = printed_range(self.claim, self.metric)
        return high >= self.low and low <= self.high

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest value of a paper that our interval would agree with."""
        low, high = printed_range(self.claim, self.metric)
        return self.low - (high - self.claim.value), self.high + (self.claim.value - low)

    @property
    def width(self) -> float:
        """Width: a factor for errors and other positive numbers, else a difference."""
        low, high = printed_range(self.claim, self.metric)
        if self.metric in PEAKS or may_be_zero(self.metric):
            return self.ends[1] - self.ends[0]
        if self.low <= 0 or low <= 0:
            return math.inf
        return self.high / self.low * (high / low)

    @property
    def rounds(self) -> bool:
        """True if our whole interval, before it was widened, rounds to the number as printed."""
        rounding = self.claim.rounding
        low, high = self.own or (self.low, self.high)
        printed = self.claim.value - rounding, self.claim.value + rounding
        return rounding > 0 and printed[0] <= low and high <= printed[1]

    @property
    def too_wide(self) -> bool:
        """True if the window could hardly refuse a result."""
        if self.rounds:
            return False
        if may_be_zero(self.metric):
            return self.ends[0] <= 0 <= self.ends[1]
        return not self.width <= WIDEST

    def __str__(self) -> str:
        if self.rounds:
            return "rounds to the printed number"
        if self.metric in PEAKS:
            return f"{self.width:.3g} dB"
        if may_be_zero(self.metric):
            return "{:.2g} to {:.2g}".format(*self.ends)
        return "without limit" if math.isinf(self.width) else f"factor {self.width:.3g}"


def allowed(claim: Statement, tolerance: Tolerance) -> str:
    """Acceptance window of rules that every value must keep."""
    if tolerance.rule == "absolute":
        amount = tolerance.limit + claim.rounding
        return f"± {amount:g}" if amount else "equal"
    return f"{tolerance.rule.replace('_', ' ')} {tolerance.limit:g}"


def widened(low: float, high: float, metric: str, tolerance: Tolerance) -> tuple[float, float]:
    """Widen an interval by the factor (for a PSNR its dB) and the margin of a tolerance."""
    margin = tolerance.margin
    if metric in PEAKS:
        margin += 10 * math.log10(tolerance.factor)
        return low - margin, high + margin
    return low / tolerance.factor - margin, high * tolerance.factor + margin


def needed(values: np.ndarray, window: Window, tolerance: Tolerance) -> int | None:
    """Smallest number of values with which the window would not be too wide; None if none is.

    Further values are taken to spread as those there are: an interval of the mean shrinks with
    √n, a prediction interval only towards that of a single value.
    """
    n = values.size
    if n < 2 or tolerance.rule not in ("prediction", "mean"):
        return None
    log = window.metric in LOGARITHMIC and tolerance.rule == "prediction"
    scaled = np.log10(np.maximum(values, MSE_FLOOR)) if log else values
    further = 1 if tolerance.rule == "prediction" else 0
    for more in sorted({*range(n + 1, 100), *np.geomspace(100, MOST, 60).astype(int).tolist()}):
        t = stats.t.ppf((1 + tolerance.level) / 2, more - 1)
        half = t * scaled.std(ddof=1) * math.sqrt(further + 1 / more)
        ends = scaled.mean() - half, scaled.mean() + half
        low, high = (10.0**end for end in ends) if log else ends
        low, high = widened(low, high, window.metric, tolerance)
        if more > n and not Window(window.claim, window.metric, low, high).too_wide:
            return int(more)
    return None


def alone(values: np.ndarray, window: Window, tolerance: Tolerance) -> bool:
    """True if the window would be too wide even without any spread of our values."""
    middle = float(np.median(values))
    low, high = widened(middle, middle, window.metric, tolerance)
    return Window(window.claim, window.metric, low, high).too_wide


def closeness(claim: Statement, ours: float, metric: str) -> str:
    """Agreement of our number with the paper's: one of `LEVELS`, ``as printed`` or ``beyond``.

    Empty beside a 0 of the paper's that ours does not round to: nothing is a factor from 0.
    """
    if claim.paper_value is None or not math.isfinite(ours):
        return ""
    paper = claim.value
    if abs(ours - paper) <= claim.rounding * (1 + 1e-12):
        return "as printed"
    if paper == 0 and metric not in PEAKS:
        return ""
    if metric in PEAKS:
        ratio = 10.0 ** (abs(ours - paper) / 10)
    elif ours * paper > 0:
        ratio = max(ours / paper, paper / ours)
    else:
        ratio = math.inf
    near = (name for name, most in LEVELS.items() if ratio <= most * (1 + 1e-9))
    return next(near, "beyond")
