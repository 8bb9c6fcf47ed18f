"""MKOR's SSIM: a Gaussian window, in score files of MKOR only."""

import numpy as np
import pytest
from scipy.ndimage import correlate1d

from gradleak.scoring.metrics.image import METRICS, of_paper, ssim, ssim_gauss

SIGMA, SIDE = 1.5, 11
C1, C2 = 0.01**2, 0.03**2


def by_definition(x, y):
    """Wang et al. 2004, eq. 6 to 13, over windows that lie within the image."""
    window = np.exp(-0.5 * (np.arange(SIDE) - SIDE // 2) ** 2 / SIGMA**2)
    window /= window.sum()

    def mean(values):
        for axis in (1, 2):
            values = correlate1d(values, window, axis)
        edge = SIDE // 2
        return values[:, edge:-edge, edge:-edge]

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    top, bottom = (2 * mx * my + C1) * (2 * cov + C2), (mx**2 + my**2 + C1) * (vx + vy + C2)
    return float((top / bottom).mean())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 16)])
def test_it_is_wang_s_definition(shape):
    random = np.random.default_rng(0)
    x = random.random(shape)
    y = np.clip(x + 0.3 * random.standard_normal(shape), 0, 1)
    assert ssim_gauss(x, y) == pytest.approx(by_definition(x, y), abs=1e-12)
    assert ssim_gauss(x, x) == pytest.approx(1.0)
    assert abs(ssim_gauss(x, y) - ssim(x, y)) > 1e-3


def test_only_mkor_s_scores_have_it():
    assert set(of_paper("mkor")) - set(METRICS) == {"ssim_gauss"}
    assert {tuple(of_paper(name)) for name in ("copa", "rgap", "fedkl")} == {tuple(METRICS)}
