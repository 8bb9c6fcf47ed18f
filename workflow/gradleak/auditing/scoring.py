"""How near an answer came: numbers, the nearest image of many, and whether a person reads it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradleak.metrics import image as metrics

# From here on an answer counts as read. Chosen, not measured on people: with SSIM of 0.5 outlines
# stand where they belong, and at 20 dB an error is a tenth of the range.
READABLE_SSIM = 0.5
READABLE_PSNR = 20.0
# A dull picture passes both beside one of its mean colour, and a digit beside the mean of all. So
# an answer also has to have at most these shares of the error, 1 − SSIM or MSE, of pictures that
# show nothing: the best one of one colour, and the mean of the pool. Digits that Inverting
# Gradients finds in LeNet, and that can be named, have 0.64 to 0.89 of the error of the latter.
OF_COLOUR, OF_MEAN = 0.5, 0.9
# Side of SSIM's window.
WINDOW = 7


@dataclass(frozen=True)
class Score:
    """Of the answer image that came nearest to one of the batch.

    Attributes
    ----------
    psnr, ssim
        Best over the batch's images; SSIM is None below 7x7.
    matched
        Whether an answer is nearest, by MSE, to an image of its own batch among all of the pool.
    readable
        Whether a person reads an image of the batch in an answer.
    picture
        The answer (C, H, W) with the best SSIM, or PSNR where there is none.
    """

    psnr: float
    ssim: float | None
    matched: bool
    readable: bool
    picture: np.ndarray

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Better answers have larger ones."""
        return self.readable, -1.0 if self.ssim is None else self.ssim, self.psnr


@dataclass(frozen=True)
class _Least:
    """PSNR, or SSIM, that an answer needs to be read; None below 7x7."""

    psnr: float
    ssim: float | None


class Judge:
    """Compares answers with originals.

    Parameters
    ----------
    pool
        Pixels in [0, 1] (P, C, H, W): all images under attack, and others.
    """

    def __init__(self, pool: np.ndarray) -> None:
        self.pool = pool
        self._known: dict[int, _Least] = {}

    @cached_property
    def _has_ssim(self) -> bool:
        return min(self.pool.shape[2:]) >= WINDOW

    def score(self, answers: np.ndarray, batch: np.ndarray) -> Score:
        """Score of answers (K', C, H, W) in [0, 1] to a batch of images with these numbers (K,)."""
        pairs = [(answer, int(number)) for answer in answers for number in batch]
        psnrs = [metrics.psnr(self.pool[number], answer) for answer, number in pairs]
        ssims = [self._ssim(number, answer) for answer, number in pairs]
        readable = [
            self._reads(number, psnr, ssim)
            for (_, number), psnr, ssim in zip(pairs, psnrs, ssims, strict=True)
        ]
        ranks = [
            (read, -1.0 if ssim is None else ssim, psnr)
            for read, ssim, psnr in zip(readable, ssims, psnrs, strict=True)
        ]
        best = max(range(len(pairs)), key=ranks.__getitem__)
        known = [ssim for ssim in ssims if ssim is not None]
        return Score(
            psnr=max(psnrs),
            ssim=max(known) if known else None,
            matched=any(self.nearest(answer) in batch for answer in answers),
            readable=any(readable),
            picture=pairs[best][0],
        )

    def nearest(self, answer: np.ndarray) -> int:
        """Number of the image of the pool with the least MSE to an answer (C, H, W)."""
        return int(np.argmin(((self.pool - answer) ** 2).mean((1, 2, 3))))

    def reads(self, number: int, answer: np.ndarray) -> bool:
        """Whether a person reads image `number` in an answer (C, H, W) in [0, 1]."""
        return self._reads(
            number, metrics.psnr(self.pool[number], answer), self._ssim(number, answer)
        )

    def _reads(self, number: int, psnr: float, ssim: float | None) -> bool:
        least = self._least(number)
        if ssim is None or least.ssim is None:
            return psnr >= least.psnr
        return psnr >= least.psnr or ssim >= least.ssim

    def _least(self, number: int) -> _Least:
        """From where on an answer to image `number` is read."""
        if number not in self._known:
            original = self.pool[number]
            flat = original.reshape(len(original), -1)
            ends = np.zeros(len(flat)), np.ones(len(flat))
            colours = (flat.mean(1), np.median(flat, axis=1), *ends)
            blank = [
                (np.broadcast_to(c[:, None, None], original.shape), OF_COLOUR) for c in colours
            ]
            blank.append((self.pool.mean(0), OF_MEAN))
            psnrs = [metrics.psnr(original, one) - 10.0 * np.log10(share) for one, share in blank]
            ssims = [
                1.0 - share * (1.0 - found)
                for one, share in blank
                if (found := self._ssim(number, one)) is not None
            ]
            self._known[number] = _Least(
                float(max(READABLE_PSNR, *psnrs)), max([READABLE_SSIM, *ssims]) if ssims else None
            )
        return self._known[number]

    def _ssim(self, number: int, answer: np.ndarray) -> float | None:
        return metrics.ssim(self.pool[number], answer) if self._has_ssim else None
