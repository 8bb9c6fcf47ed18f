"""Effect of the loss on MKOR: raw logits, cross-entropy, and output biases of several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from gradleak.models import files
from gradleak.runtime.artifacts import read_csv

FACTS = ["loss", "output_bias", "attack", "model"]
PSNR = ["psnr_mean", "psnr_median", "psnr_min", "psnr_max"]
COLUMNS = [*FACTS, *PSNR, "psnr_scaled_mean", "ssim_mean", "n", "n_ok", "largest_bias", "ks_p"]


def table(cases: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return one row for each score file and network.

    Parameters
    ----------
    cases
        For each: ``scores``, ``model`` (as sent by the server), ``loss`` and ``output_bias``.

    Returns
    -------
    pandas.DataFrame
        PSNR in dB and SSIM over all `n` images of all batches, 0 for those not reconstructed;
        `n_ok` were. `psnr_scaled` ignores a wrong brightness, which a network without biases leaves
        undetermined. `largest_bias` is the largest bias of the last layer over its initialization
        range 1/sqrt(inputs), `ks_p` the p-value of a Kolmogorov-Smirnov test of these biases
        against that range: what a client could notice.
    """
    rows = []
    for case in cases:
        frame = read_csv(case["scores"], ["model", "answer", "status", "metric", "value"])
        models = files.read(case["model"])
        for chain in models.chains:
            own = frame[(frame["model"] == chain.name) & (frame["answer"] == 0)]
            ok = own["status"] == "ok"
            # As in the paper's tables beside ours, an image not reconstructed counts as 0.
            values = own["value"].where(ok, 0.0).astype(float)
            psnr, scaled, ssim = (
                values[own["metric"] == name] for name in ("psnr", "psnr_scaled", "ssim_gauss")
            )
            facts = [case["loss"], case["output_bias"], Path(case["scores"]).stem, chain.name]
            means = [*psnr.agg(["mean", "median", "min", "max"]), scaled.mean(), ssim.mean()]
            counts = [len(psnr), int(ok[psnr.index].sum())]
            noticed = _noticed(models, chain.name, chain.layers[-1].name)
            rows.append([*facts, *means, *counts, *noticed])
    return pd.DataFrame(rows, columns=COLUMNS)


def _noticed(models: files.ModelFile, chain: str, last: str) -> tuple[float, float]:
    """Largest bias of the last layer and the test's p-value, under the first seed."""
    weights = files.select(models.weights, chain, 0)
    bias = weights.get(f"{last}.bias")
    if bias is None:
        return np.nan, np.nan
    scaled = bias.astype(np.float64) * np.sqrt(weights[f"{last}.weight"].shape[1])
    test = stats.kstest(scaled, stats.uniform(-1.0, 2.0).cdf)
    return float(np.abs(scaled).max()), float(test.pvalue)


def make(
    files: Mapping[str, Any], words: Mapping[str, Any], case: Mapping[str, str]
) -> pd.DataFrame:
    """Make the table from files: ``scores`` and ``models`` for each of ``cases`` of `words`."""
    each = zip(files["scores"], files["models"], words["cases"], strict=True)
    return table([{"scores": scores, "model": model, **entry} for scores, model, entry in each])
