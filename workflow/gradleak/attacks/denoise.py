"""Post-processing of a reconstruction by total variation (COPA section 3)."""

from __future__ import annotations

import numpy as np
from skimage.restoration import denoise_tv_chambolle


def total_variation(image: np.ndarray, weight: float) -> np.ndarray:
    """Chambolle's total-variation denoising, scikit-image's.

    Parameters
    ----------
    image
        (C, H, W); channels are denoised together.
    weight
        Strength; the paper takes 0.15. It is relative to the image's own range of values.
    """
    return denoise_tv_chambolle(image, weight=weight, channel_axis=0)
