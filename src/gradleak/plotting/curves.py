"""Training curves: accuracy and loss over epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gradleak.errors import ArtifactError
from gradleak.plotting.style import BLUE, RED
from gradleak.runtime.artifacts import read_csv

# Style and label of a curve, by whether the network has a key-lock; as in the paper.
LOOKS: dict[bool, dict[str, Any]] = {
    # On top, so that coinciding curves remain visible.
    False: {"color": BLUE, "linestyle": (0, (4, 1.5)), "zorder": 2.5},
    True: {"color": RED, "linestyle": "-"},
}
NAMES = {False: "w/o KL", True: "w/ KL"}
PARTS = ("train", "validation", "test")
FEW = 15  # number of epochs up to which each has a marker


@dataclass(frozen=True)
class Curve:
    """Curves of one network under all its seeds."""

    epochs: pd.DataFrame  # one row per seed and epoch, as written by ``gradleak.training``
    summary: pd.DataFrame  # one row per seed
    lock: bool  # whether the network has a key-lock

    @property
    def tested(self) -> float:
        """Test accuracy, mean over seeds."""
        return float(self.summary["test_accuracy"].mean())

    def mean(self, metric: str) -> pd.Series:
        """Metric by epoch, mean over seeds."""
        return self.epochs.groupby("epoch")[metric].mean()

    def draw(self, axes: Axes, metric: str, factor: float = 1.0) -> None:
        """Draw a metric times `factor` over epochs: seeds as thin lines, their mean above."""
        look, mean = LOOKS[self.lock], factor * self.mean(metric)
        seeds = self.epochs.groupby("seed")
        if len(seeds) > 1:
            for _, one in seeds:
                axes.plot(one["epoch"], factor * one[metric], **look, alpha=0.35, linewidth=0.5)
        marker = "." if len(mean) <= FEW else ""
        axes.plot(mean.index, mean, **look, marker=marker, markersize=3)


def read(files: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Read each entry's network: ``model``, ``lock``, one of ``curves`` and of ``summaries``."""
    if not entries:
        raise ArtifactError(
            "Nothing to draw; name trainings and models of the figure in config.yaml."
        )
    each = zip(entries, files["curves"], files["summaries"], strict=True)
    return [
        Curve(_central(curve, entry["model"]), _central(summary, entry["model"]), entry["lock"])
        for entry, curve, summary in each
    ]


def _central(path: str, model: str) -> pd.DataFrame:
    """Rows of a network, without those of clients trained alone."""
    table = read_csv(path)
    if "client" in table:
        table = table[table["client"].isna()]
    found = table[table["model"] == model]
    if found.empty:
        raise ArtifactError(
            f"{path} has no rows of {model}; delete it and ask Snakemake for it again."
        )
    return found


def whole_epochs(axes: Axes, most: int = 4) -> None:
    """Set at most `most` ticks, at whole epochs."""
    axes.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


def describe(curves: Sequence[Curve]) -> str:
    """Describe the numbers of training, validation and test images."""

    def span(values: Sequence[int]) -> str:
        low, high = min(values), max(values)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    sizes = ", ".join(span([int(c.summary[part].iloc[0]) for c in curves]) for part in PARTS)
    seeds = [len(curve.summary) for curve in curves]
    draws = "one draw" if max(seeds) == 1 else f"means over {span(seeds)} draws"
    return f"{sizes} to train, choose the epoch and test; {draws} of the initial weights"
