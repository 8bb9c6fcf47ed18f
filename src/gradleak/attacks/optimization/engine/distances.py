"""Distances between gradients, with their derivatives in the gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Gradients (M, ...) of all parameters, which may be overwritten -> distances (M,), and a list r
# and a factor (M,) whose product is the distances' derivative in the gradients.
Found = tuple[Tensor, list[Tensor], Tensor]
Distance = Callable[[list[Tensor]], Found]


# Number of products held at once.
PART = 2**17


class Squared:
    """Σ ||g − t||² of each member, over all parameters t (M, ...) (DLG; R-GAP eq. 1)."""

    def __init__(self, targets: Sequence[Tensor]) -> None:
        self._targets = targets

    def __call__(self, found: list[Tensor]) -> Found:
        """See `Distance`: r = g − t, with the factor 2."""
        residuals = [g.sub_(t) for g, t in zip(found, self._targets, strict=True)]
        norms = [torch.linalg.vector_norm(r.flatten(1), dim=1) for r in residuals]
        value = torch.stack(norms).square().sum(0)
        return value, residuals, torch.full_like(value, 2.0)


class Cosine:
    """1 − <g, t> / |g| over `compared` parameters, t (M, ...) of norm 1 (Geiping et al. 2020)."""

    def __init__(self, targets: Sequence[Tensor], compared: Sequence[bool]) -> None:
        pairs = zip(targets, compared, strict=True)
        self._targets = [target if used else None for target, used in pairs]

    def __call__(self, found: list[Tensor]) -> Found:
        """See `Distance`: r = t − g <g, t> / |g|², with the factor −1/|g|."""
        every = zip(found, self._targets, strict=True)
        pairs = [(g.flatten(1), t.flatten(1)) for g, t in every if t is not None]
        inner = torch.stack([_dot(g, t) for g, t in pairs]).sum(0)
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(g, dim=1) for g, _ in pairs]), dim=0
        )
        share = inner / norm.square()
        residuals = [
            # One pass over each, without new memory.
            g.zero_()
            if t is None
            else torch.addcmul(t, g, share.view(-1, *[1] * (g.ndim - 1)), value=-1.0, out=g)
            for g, t in zip(found, self._targets, strict=True)
        ]
        return 1.0 - inner / norm, residuals, -1.0 / norm


class Regressed:
    """|g − t|² + norm · |g − t| + transport · Σ_p W1(g_p, t_p) of each member (Ren et al. 2022).

    W1(a, b) = mean |sort(a) − sort(b)| is the 1-D Wasserstein distance between the values of one
    parameter's gradients; |·| is over all parameters. `targets` are t, (M, ...) of each parameter,
    and the weights `norm` and `transport` are (M,). `squared` holds |g − t|² (M,) of the last call.
    """

    def __init__(self, targets: Sequence[Tensor], norm: Tensor, transport: Tensor) -> None:
        self._plain = Squared(targets)
        self._norm, self._transport = norm, transport
        self._sorted = [target.flatten(1).sort(1).values for target in targets]
        if not transport.any():
            self._sorted = []
        self.squared = torch.full_like(norm, torch.nan)

    def __call__(self, found: list[Tensor]) -> Found:
        """See `Distance`; where g = t the norm's derivative is taken as 0."""
        moved = [_transported(g, t) for g, t in zip(found, self._sorted, strict=False)]
        self.squared, residuals, factor = self._plain(found)
        length = self.squared.sqrt()
        factor = factor + self._norm / length.clamp(min=torch.finfo(length.dtype).tiny)
        value = self.squared + self._norm * length
        for r, (distance, sign) in zip(residuals, moved, strict=False):
            value = value + self._transport * distance
            share = self._transport / (factor * sign.shape[1])
            r.add_((sign * share.unsqueeze(1)).view(r.shape))
        return value, residuals, factor


def _transported(found: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return W1 (M,) to sorted values (M, n), and n times its derivative (M, n)."""
    values, places = found.flatten(1).sort(1)
    offset = values - target
    sign = torch.empty_like(offset).scatter_(1, places, offset.sign())
    return offset.abs().mean(1), sign


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (M,) of rows (M, n)."""
    if a.device.type != "cpu":
        return torch.linalg.vecdot(a, b)
    # In parts, since it stores all products: 5 ms an image for ResNet-18, else 1.
    size = max(1, PART // len(a))
    parts = [slice(first, first + size) for first in range(0, a.shape[1], size)]
    return torch.stack([torch.linalg.vecdot(a[:, part], b[:, part]) for part in parts]).sum(0)
