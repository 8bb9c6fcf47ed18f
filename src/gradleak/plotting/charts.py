"""Charts of runs: jittered points, and axes of errors."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullLocator

from gradleak.plotting.style import BLUE, GREEN, ORANGE

# Colour and marker of each line of a chart.
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))


def strip(axes: Axes, x: float, values: pd.Series, width: float, **style: Any) -> None:
    """Draw points of successful runs, spread over `width` on both sides of `x`."""
    works = values.dropna()
    spread = np.linspace(-1, 1, len(works)) if len(works) > 1 else np.zeros(len(works))
    axes.plot(x + width * spread, works, **{"linestyle": "none", "mew": 0, **style})


def log_ticks(axis: Axis, count: int, subs: tuple[int, ...] = (1,)) -> None:
    """Set at most `count` ticks on a logarithmic axis, without minor ticks."""
    axis.set_major_locator(LogLocator(subs=subs, numticks=count))
    axis.set_minor_locator(NullLocator())


def log_limits(values: pd.Series, below: float, above: float) -> tuple[float, float]:
    """Range of errors on a logarithmic axis, with margins as factors."""
    works = values[values > 0]
    if works.empty:
        return 1e-6, 1.0
    return float(works.min()) / below, float(works.max()) * above
