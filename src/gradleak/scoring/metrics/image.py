"""MSE, PSNR and SSIM of one image, matching of reconstructions to originals, visible errors."""

from collections.abc import Callable
from typing import Any

import numpy as np

# An exact reconstruction has an MSE of 0 and an infinite PSNR, which makes means infinite. Float64
# rounding of values near 1 gives about 1e-32, so a floor of 1e-30 caps PSNR at 300 dB.
MSE_FLOOR = 1e-30
# The MSE up to which no difference is visible, 10^-3.5: an order of magnitude of 1e-4 or less
# (R-GAP Table 3). Twins may be dark, so for them it is the distance relative to their norm:
# 10^-1.75, the root of that MSE, in an image whose root mean square is about 0.5. The claims of
# R-GAP state the same numbers.
INVISIBLE = 3.2e-4
AT_TWIN = 0.036


def mse(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return the mean squared error over all values, on the scale of the network's input."""
    return float(np.mean((original - reconstruction) ** 2))


def psnr(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return 10·log10(1 / MSE) in dB, peak 1; at most 300."""
    return float(-10.0 * np.log10(max(mse(original, reconstruction), MSE_FLOOR)))


def psnr_255(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return 10·log10(255² / MSE) in dB, 48.13 above `psnr`: COPA's convention."""
    return psnr(original, reconstruction) + float(20.0 * np.log10(255.0))


def overflowed(image: np.ndarray) -> np.ndarray:
    """Convert pixels of [0, 1] to 0..255 as in FedKL's files, but without rounding.

    In the authors' cast to 8 bits a value out of range by a unit or more wraps around modulo 256,
    so that normal noise becomes uniform noise; one out of range by less becomes 0 or 255.
    """
    scaled = 255.0 * image.astype(np.float64)
    outside = (scaled <= -1.0) | (scaled >= 256.0)
    return np.where(outside, np.mod(np.trunc(scaled), 256.0), np.clip(scaled, 0.0, 255.0))


def rmse_255(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return √(mean((x − y)²)) of `overflowed` pixels, called MSE in FedKL's Table VI."""
    return float(np.sqrt(mse(overflowed(original), overflowed(reconstruction))))


def psnr_rmse(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return 10·log10(255² / RMSE) in dB with `rmse_255`, called PSNR in FedKL's Table VI.

    The RMSE replaces its square: a true PSNR of p dB is here p/2 + 24.07 dB, at most 174.07.
    """
    least = 255.0 * np.sqrt(MSE_FLOOR)
    return float(10.0 * np.log10(255.0**2 / max(rmse_255(original, reconstruction), least)))


def ssim(original: np.ndarray, reconstruction: np.ndarray, **options: Any) -> float:
    """Return the structural similarity of two images (C, H, W) in [0, 1], scikit-image's."""
    # Imported here: it takes a quarter of a second that figures need not pay.
    from skimage.metrics import structural_similarity

    options = {"data_range": 1.0, "channel_axis": 0, **options}
    return float(structural_similarity(original, reconstruction, **options))


def ssim_gauss(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return the structural similarity with a Gaussian window (σ = 1.5, 11x11): MKOR's SSIM.

    As in the authors' code (torchmetrics' default) and in Wang et al. (IEEE TIP 2004): weighted
    moments, no sample covariance. Pixels in [0, 1] (C, H, W), at least 11x11.
    """
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return ssim(original, reconstruction, **options)


def ssim_255(original: np.ndarray, reconstruction: np.ndarray) -> float:
    """Return `ssim` of the `overflowed` pixels, as in FedKL's files (Table VI's SSIM).

    If an attack ends far out of [0, 1], clipping leaves a picture of few values that may look like
    the original; the authors' cast leaves noise.
    """
    return ssim(overflowed(original) / 255.0, overflowed(reconstruction) / 255.0)


def combination(images: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, float]:
    """Return least-squares weights of `images` (K, C, H, W) in `found` (C, H, W), and their R².

    R² = 1 − ||found − Σ w_k image_k||² / ||found − mean(found)||².
    """
    basis = images.reshape(len(images), -1).T
    weights = np.linalg.lstsq(basis, found.ravel(), rcond=None)[0]
    rest = found.ravel() - basis @ weights
    spread = found.ravel() - found.mean()
    return weights, float(1.0 - (rest @ rest) / max(spread @ spread, MSE_FLOOR))


def assignment(originals: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the index (K,) in `found` (K, C, H, W) of each original, for the least sum of MSEs."""
    if len(originals) == 1:
        return np.zeros(1, dtype=int)
    cost = np.array([[mse(original, one) for one in found] for original in originals])
    # Imported here: it takes a third of a second that every job would pay.
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(cost)[1])


Metrics = dict[str, Callable[[np.ndarray, np.ndarray], float]]
METRICS: Metrics = {"mse": mse, "psnr": psnr, "psnr_255": psnr_255, "ssim": ssim}
# Metrics of pixels clipped to [0, 1].
CLIPPED = ("ssim", "ssim_gauss")
# FedKL's MSE, PSNR and SSIM; of pixels in [0, 1], or out of it.
FEDKL: Metrics = {"rmse_255": rmse_255, "psnr_rmse": psnr_rmse, "ssim_255": ssim_255}


def of_paper(paper: str) -> Metrics:
    """Return the metrics of every score file of a paper: `METRICS`, and MKOR's SSIM."""
    return METRICS | {"ssim_gauss": ssim_gauss} if paper == "mkor" else METRICS
