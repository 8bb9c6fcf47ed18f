"""Score reconstructions: quality, nearest image in the pool, and readability."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from gradleak.scoring.metrics import image as metrics
from gradleak_audit.result import rank

# Thresholds for readability. Chosen, not measured on people: at an SSIM of 0.5 outlines are in
# place, and at 20 dB the error is a tenth of the range.
READABLE_SSIM = 0.5
READABLE_PSNR = 20.0
# A dull image passes both when compared with its mean colour, and a digit when compared with the
# mean of all. So the error (1 − SSIM or MSE) must also be at most these shares of the error of
# uninformative images: the best uniform colour, and the mean of the pool. Digits recognisably
# reconstructed by Inverting Gradients in LeNet have 0.64 to 0.89 of the error of the latter.
OF_COLOUR, OF_MEAN = 0.5, 0.9
# Side of SSIM's window.
WINDOW = 7


@dataclass(frozen=True)
class Score:
    """Score of the reconstructed image that is closest to an image of the batch."""

    psnr: float  # best over the batch's images, dB
    ssim: float | None  # likewise; None below 7x7
    matched: bool  # whether, by MSE, its nearest image in the pool is one of the batch
    readable: bool  # whether it passes the thresholds for some image of the batch
    picture: np.ndarray  # reconstruction (C, H, W) with the best SSIM, or PSNR where there is none

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sort key, larger for better reconstructions."""
        return rank(self.readable, self.ssim, self.psnr)


class Judge:
    """Scores reconstructions against a `pool` (P, C, H, W) in [0, 1] of images."""

    def __init__(self, pool: np.ndarray) -> None:
        self.pool = pool
        self._least = cache(self._find_least)

    def score(self, answers: np.ndarray, batch: np.ndarray) -> Score:
        """Score reconstructions (K', C, H, W) in [0, 1] of a batch with image numbers (K,)."""
        pairs = [(answer, int(number)) for answer in answers for number in batch]
        psnrs = [metrics.psnr(self.pool[number], answer) for answer, number in pairs]
        ssims = [self._ssim(number, answer) for answer, number in pairs]
        readable = []
        for (_, number), psnr, ssim in zip(pairs, psnrs, ssims, strict=True):
            least_psnr, least_ssim = self._least(number)
            readable.append(psnr >= least_psnr or (ssim is not None and ssim >= least_ssim))
        ranks = [rank(*one) for one in zip(readable, ssims, psnrs, strict=True)]
        best = max(range(len(pairs)), key=ranks.__getitem__)
        nearest = [np.argmin(((self.pool - answer) ** 2).mean((1, 2, 3))) for answer in answers]
        known = max((ssim for ssim in ssims if ssim is not None), default=None)
        matched = any(number in batch for number in nearest)
        return Score(max(psnrs), known, matched, any(readable), pairs[best][0])

    def _find_least(self, number: int) -> tuple[float, float]:
        """Thresholds of PSNR and SSIM for reconstructions of image `number`."""
        original = self.pool[number]
        flat = original.reshape(len(original), -1)
        ends = np.zeros(len(flat)), np.ones(len(flat))
        colours = (flat.mean(1), np.median(flat, axis=1), *ends)
        blank = [(np.broadcast_to(c[:, None, None], original.shape), OF_COLOUR) for c in colours]
        blank.append((self.pool.mean(0), OF_MEAN))
        psnr, ssim = READABLE_PSNR, READABLE_SSIM
        for one, share in blank:
            psnr = max(psnr, metrics.psnr(original, one) - 10.0 * np.log10(share))
            if (found := self._ssim(number, one)) is not None:
                ssim = max(ssim, 1.0 - share * (1.0 - found))
        return float(psnr), ssim

    def _ssim(self, number: int, answer: np.ndarray) -> float | None:
        has_window = min(self.pool.shape[2:]) >= WINDOW
        return metrics.ssim(self.pool[number], answer) if has_window else None
