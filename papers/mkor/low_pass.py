"""Best approximation of a photo by an image of few numbers: MKOR's 91x91 remark."""

import numpy as np
import pandas as pd
from scipy.fft import dctn, idctn

from gradleak.data.targets import read
from gradleak.runtime.tidy import Given
from gradleak.scoring.metrics.image import psnr, ssim_gauss

COLUMNS = ["bound", "metric", "value", "n"]
# 7·7·512 features can hold 3·91² numbers at most; I = 3 shifts reach 56² a channel.
SIDES = (91, 56)


def low_pass(image: np.ndarray, side: int) -> np.ndarray:
    """Least-squares approximation of `image` (C, H, W) by side² numbers a channel.

    It keeps the lowest side x side cosine frequencies; no filter of that size does better in mean
    squared error.
    """
    spectrum = dctn(image, axes=(1, 2), norm="ortho")
    spectrum[:, side:] = 0.0
    spectrum[:, :, side:] = 0.0
    return np.asarray(idctn(spectrum, axes=(1, 2), norm="ortho"))


def make(files: Given, words: Given, case: Given) -> pd.DataFrame:
    """Mean and largest PSNR and SSIM of low-passed photos, which are files ``targets``."""
    targets, rows = read(files["targets"]), []
    # A photo may be in several batches.
    places = np.unique(targets.indices, return_index=True)[1]
    for side in SIDES:
        values = []
        for batch, k in (divmod(place, targets.size) for place in places.tolist()):
            image = targets.pixels(targets.inputs(batch, slice(k, k + 1))[0])
            found = low_pass(image, side)
            values.append((psnr(image, found), ssim_gauss(image, np.clip(found, 0.0, 1.0))))
        for metric, each in zip(("psnr", "ssim"), zip(*values, strict=True), strict=True):
            for how, value in (("mean", np.mean(each)), ("max", np.max(each))):
                rows.append((f"dct{side}", f"{metric}_{how}", float(value), len(each)))
    return pd.DataFrame(rows, columns=COLUMNS)
