"""Effect of the loss on MKOR: raw logits, cross-entropy, and output biases of several sizes."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from gradleak.models.files import ModelFile, read, select
from gradleak.runtime.artifacts import read_csv
from gradleak.runtime.tidy import Given

FACTS = ["loss", "output_bias", "attack", "model"]
PSNR = ["psnr_mean", "psnr_median", "psnr_min", "psnr_max"]
COLUMNS = [*FACTS, *PSNR, "psnr_scaled_mean", "ssim_mean", "n", "n_ok", "largest_bias", "ks_p"]


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Make the table: a row for each file of ``scores`` and network in ``models``, as sent.

    ``cases`` of `words` have the ``loss`` and ``output_bias`` of each. PSNR in dB and SSIM are over
    all `n` images of all batches, 0 for those not reconstructed; `n_ok` were. `psnr_scaled` ignores
    a wrong brightness, which a network without biases leaves undetermined. `largest_bias` is the
    largest bias of the last layer over its initialization range 1/sqrt(inputs), `ks_p` the p-value
    of a Kolmogorov-Smirnov test of these biases against that range: what a client could notice.
    """
    rows = []
    for entry, scores, sent in zip(words["cases"], files["scores"], files["models"], strict=True):
        frame = read_csv(scores, ["model", "answer", "status", "metric", "value"])
        models = read(sent)
        for chain in models.chains:
            own = frame[(frame["model"] == chain.name) & (frame["answer"] == 0)]
            ok = own["status"] == "ok"
            # As in the paper's tables beside ours, an image not reconstructed counts as 0.
            values, metric = own["value"].where(ok, 0.0).astype(float), own["metric"]
            psnr, scaled, ssim = (
                values[metric == m] for m in ("psnr", "psnr_scaled", "ssim_gauss")
            )
            facts = [entry["loss"], entry["output_bias"], Path(scores).stem, chain.name]
            means = [*psnr.agg(["mean", "median", "min", "max"]), scaled.mean(), ssim.mean()]
            counts = [len(psnr), int(ok[psnr.index].sum())]
            noticed = _noticed(models, chain.name, chain.layers[-1].name)
            rows.append([*facts, *means, *counts, *noticed])
    return pd.DataFrame(rows, columns=COLUMNS)


def _noticed(models: ModelFile, chain: str, last: str) -> tuple[float, float]:
    """Largest bias of the last layer and the test's p-value, under the first seed."""
    weights = select(models.weights, chain, 0)
    if f"{last}.bias" not in weights:
        return np.nan, np.nan
    scaled = weights[f"{last}.bias"].astype(np.float64)
    scaled *= np.sqrt(weights[f"{last}.weight"].shape[1])
    test = stats.kstest(scaled, stats.uniform(-1.0, 2.0).cdf)
    return float(np.abs(scaled).max()), float(test.pvalue)
