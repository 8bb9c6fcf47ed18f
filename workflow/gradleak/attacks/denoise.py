"""Noise of a reconstruction: taken away by total variation (COPA), or measured (R-GAP)."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import uniform_filter
from skimage.restoration import denoise_tv_chambolle


def total_variation(image: np.ndarray, weight: float) -> np.ndarray:
    """Chambolle's total-variation denoising, scikit-image's.

    Parameters
    ----------
    image
        (C, H, W); scikit-image denoises each channel by itself.
    weight
        Strength, on the scale of the image's values; the paper takes 0.15.
    """
    return denoise_tv_chambolle(image, weight=weight, channel_axis=0)


def salt_and_pepper(images: np.ndarray) -> float:
    """||x − m(x)||, m the 3x3 average of each channel with edges repeated (R-GAP section 5).

    It tells a noisy reconstruction from a smooth one without the original.

    Parameters
    ----------
    images
        (K, C, H, W).
    """
    smooth = uniform_filter(images, size=(1, 1, 3, 3), mode="nearest")
    return float(np.linalg.norm(images - smooth))
