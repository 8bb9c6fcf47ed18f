"""MKOR's SSIM: a Gaussian window, in score files of MKOR only."""

import numpy as np
import pytest
from scipy.ndimage import correlate1d

from gradleak.scoring.metrics.image import METRICS, of_paper, ssim, ssim_gauss


def by_definition(x, y):
    """Wang et al. 2004, eq. 6 to 13, over windows of 11 x 11 that lie within the image."""
    window = np.exp(-0.5 * np.arange(-5, 6) ** 2 / 1.5**2)
    window /= window.sum()

    def mean(values):
        return correlate1d(correlate1d(values, window, 1), window, 2)[:, 5:-5, 5:-5]

    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    top, bottom = (2 * mx * my + c1) * (2 * cov + c2), (mx**2 + my**2 + c1) * (vx + vy + c2)
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
