"""`gradleak.score`: reconstructions against originals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from gradleak.errors import ConfigError
from gradleak.scoring.metrics.image import assignment, mse, psnr, ssim

# Side of SSIM's window.
WINDOW = 7


def score(originals: Any, reconstructions: Any) -> pd.DataFrame:
    """Score each original against the reconstruction that is matched to it.

    Reconstructions of a batch come in any order, so they are assigned to the originals with the
    least sum of mean squared errors. Where one image is given for a batch, as R-GAP does, it is
    compared with every original.

    Parameters
    ----------
    originals
        Images (K, C, H, W) in [0, 1].
    reconstructions
        Images (K, C, H, W) or (1, C, H, W), or what `gradleak.invert` returns.

    Returns
    -------
    DataFrame
        A row for each original: ``image`` and ``reconstruction``, numbers from 0; ``mse``;
        ``psnr`` = 10·log10(1 / MSE) in dB, at most 300; ``ssim`` of clipped images, at most 1,
        NaN below 7x7 pixels.

    Raises
    ------
    ConfigError
        If the shapes do not fit or values are not finite.
    """
    true = _images("originals", originals)
    found = _images("reconstructions", getattr(reconstructions, "images", reconstructions))
    if found.shape[1:] != true.shape[1:] or len(found) not in (1, len(true)):
        raise ConfigError(
            f"reconstructions: their shape is {found.shape}, that of the originals {true.shape}; "
            "give as many, or one."
        )
    chosen = np.zeros(len(true), dtype=int) if len(found) == 1 else assignment(true, found)
    windowed = min(true.shape[2:]) >= WINDOW
    rows = []
    for number, (one, which) in enumerate(zip(true, chosen.tolist(), strict=True)):
        other = found[which]
        alike = ssim(one, np.clip(other, 0.0, 1.0)) if windowed else np.nan
        errors = {"mse": mse(one, other), "psnr": psnr(one, other), "ssim": alike}
        rows.append({"image": number, "reconstruction": which, **errors})
    return pd.DataFrame(rows)


def _images(what: str, values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: give images (K, C, H, W), not {type(values)}.") from error
    if found.ndim == 3:
        found = found[None]
    if found.ndim != 4 or not found.size:
        raise ConfigError(f"{what}: give images (K, C, H, W), not {found.shape}.")
    if not np.isfinite(found).all():
        raise ConfigError(f"{what}: they hold NaN or infinity, so there is nothing to score.")
    return found
