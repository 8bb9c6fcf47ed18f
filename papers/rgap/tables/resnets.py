"""R-GAP Figure 4 as numbers: RA-i, accuracy and reconstruction error of ResNets."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from gradleak.claims.statistics import bootstrap_mean, sd_within, wilson, z_value
from gradleak.runtime.tidy import NOTHING, Given, Row, cell, frame, read_all, working
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS

Labels = Mapping[str, str]
LEVEL = 0.95
ARCHITECTURE, ACCURACY = "Architecture", "Trained"
ERRORS = ("mse", "mse_input", "psnr", "ssim")


def table(
    scores: pd.DataFrame, trained: pd.DataFrame, rank: pd.DataFrame, words: Given, **case: str
) -> pd.DataFrame:
    """Tidy table: rows are networks, the first of which has all its skips.

    `words` has labels of ``networks`` and ``columns`` (experiments). In the column
    ``Architecture``: ``ra`` and ``ra_alone``, the largest RA-i of a layer with and without virtual
    constraints from before its block. In ``Trained``: ``accuracy`` on images used neither for
    training nor for choosing the epoch, mean over seeds, and ``accuracy_change`` against the first
    network; intervals are binomial (Wilson; of a difference, of independent shares). For each
    experiment: the mean of ``mse`` (in [0, 1]), ``mse_input`` (of the network's inputs), ``psnr``
    and ``ssim`` over images, with 95 % intervals (bootstrap over images, each the mean over
    draws of the weights); ``mse_sd`` within a draw, and ``mse_ratio`` and ``sd_ratio`` to the first
    network's; ``iterations`` of the attack. A failed run leaves no mean.
    """
    networks = words["networks"]
    rows = [*_counts(rank, networks), *_accuracies(trained, networks)]
    rows += _errors(working(scores), networks, words["columns"])
    return frame(rows, [*TABLE_COLUMNS, "model"], **case)


def _counts(rank: pd.DataFrame, networks: Labels) -> Iterator[Row]:
    for model, row in networks.items():
        own = rank[rank["model"] == model].iloc[0]
        head = {"row": row, "model": model, "column": ARCHITECTURE}
        alone = "RA-i without virtual constraints from before a layer or its block"
        yield cell(head, "ra", float(own["network_ra"]), "RA-i")
        yield cell(head, "ra_alone", float(own["network_ra_alone"]), alone)


def _accuracies(trained: pd.DataFrame, networks: Labels) -> Iterator[Row]:
    base: tuple[float, int] | None = None
    for model, row in networks.items():
        own = trained[trained["model"] == model]
        # All seeds are tested on the same images.
        accuracy, tested = float(own["test_accuracy"].mean()), int(own["test"].iloc[0])
        base = base or (accuracy, tested)
        head, counts = {"row": row, "model": model, "column": ACCURACY}, (len(own), len(own))
        told = f"{tested} test images, best epoch of {int(own['epochs'].iloc[0])}"
        told += f", mean over {len(own)} trainings" if len(own) > 1 else ""
        yield cell(head, "accuracy", accuracy, told, wilson(accuracy, tested), counts)
        variance = sum(p * (1 - p) / n for p, n in (base, (accuracy, tested)))
        width = z_value(LEVEL) * np.sqrt(variance)
        change, note = accuracy - base[0], f"against the first network; {told}"
        yield cell(head, "accuracy_change", change, note, (change - width, change + width), counts)


def _errors(scores: pd.DataFrame, networks: Labels, columns: Labels) -> Iterator[Row]:
    for result, column in columns.items():
        base: np.ndarray | None = None
        for model, row in networks.items():
            own = scores[(scores["result"] == result) & (scores["model"] == model)]
            head = {"row": row, "model": model, "column": column}
            spent = own.loc[own["metric"] == "evaluations", "value"]
            yield cell(head, "iterations", spent.max(), "gradients that a search computed")
            for metric in ERRORS:
                values = own[own["metric"] == metric].set_index(["index", "seed"])["value"]
                counts = len(values), int(values.notna().sum())
                # (images, draws)
                tried = values.unstack("seed").to_numpy() if counts[0] else np.full((1, 1), np.nan)
                if metric == "mse":
                    base = tried if base is None else base
                    for spread in _spreads(tried, base):
                        yield cell(head, *spread, counts=counts)
                whole = len(tried) > 1 and counts[0] == counts[1]
                interval = bootstrap_mean(tried.mean(axis=1), LEVEL) if whole else NOTHING
                yield cell(head, metric, float(tried.mean()), _over(tried), interval, counts)


def _over(tried: np.ndarray) -> str:
    """Say what a mean is over."""
    draws = tried.shape[1]
    return "mean over images" + (f" and {draws} draws of the weights" if draws > 1 else "")


def _spreads(tried: np.ndarray, base: np.ndarray) -> Iterator[tuple[str, float, str]]:
    """Spread of the errors, and ratios of mean and spread to another network's."""
    own, other = (np.array([each.mean(), sd_within(each)]) for each in (tried, base))
    within = " within each draw of the weights" if tried.shape[1] > 1 else ""
    yield "mse_sd", float(own[1]), f"standard deviation over images{within}"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, spreads = own / other
    yield "mse_ratio", float(ratio), "mean MSE over the first network's"
    yield "sd_ratio", float(spreads), "standard deviation over the first network's"


def make(files: Given, words: Given, case: Labels) -> pd.DataFrame:
    """Make the table from files: ``scores``, ``trained`` and ``rank``; `words` as in `table`."""
    scores, trained, rank = (read_all(files[k]) for k in ("scores", "trained", "rank"))
    return table(scores, trained, rank, words, **case)
