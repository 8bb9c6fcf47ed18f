"""Post-processing of a reconstruction by total variation (COPA section 3)."""

from __future__ import annotations

import numpy as np
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
