"""Distances between gradients, with their derivatives in the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# Gradients (M, ...) of all parameters, which may be overwritten -> distances (M,), and a list r
# and a factor (M,) whose product is the distances' derivative in the gradients.
Distance = Callable[[list[torch.Tensor]], tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]]


# Number of products held at once.
PART = 2**17


class Squared:
    """Σ ||g − t||² of each member, over all parameters t (M, ...) (DLG; R-GAP eq. 1)."""

    def __init__(self, targets: Sequence[torch.Tensor]) -> None:
        self._targets = targets

    def __call__(
        self, found: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """See `Distance`: r = g − t, with the factor 2."""
        residuals = [g.sub_(t) for g, t in zip(found, self._targets, strict=True)]
        norms = [torch.linalg.vector_norm(r.flatten(1), dim=1) for r in residuals]
        value = torch.stack(norms).square().sum(0)
        return value, residuals, torch.full_like(value, 2.0)


class Cosine:
    """1 − <g, t> / |g| of each member, over all `compared` parameters (Geiping et al. 2020).

    `targets` are t, (M, ...) of each parameter, of norm 1 over all of them.
    """

    def __init__(self, targets: Sequence[torch.Tensor], compared: Sequence[bool]) -> None:
        self._targets = [
            target if used else None for target, used in zip(targets, compared, strict=True)
        ]

    def __call__(
        self, found: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """See `Distance`: r = t − g <g, t> / |g|², with the factor −1/|g|."""
        pairs = [
            (g.flatten(1), t.flatten(1))
            for g, t in zip(found, self._targets, strict=True)
            if t is not None
        ]
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

    def __init__(
        self, targets: Sequence[torch.Tensor], norm: torch.Tensor, transport: torch.Tensor
    ) -> None:
        self._plain = Squared(targets)
        self._norm, self._transport = norm, transport
        self._sorted = [target.flatten(1).sort(1).values for target in targets]
        if not transport.any():
            self._sorted = []
        self.squared = torch.full_like(norm, torch.nan)

    def __call__(
        self, found: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
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


def _transported(found: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return W1 (M,) to sorted values (M, n), and n times its derivative (M, n)."""
    values, places = found.flatten(1).sort(1)
    offset = values - target
    sign = torch.empty_like(offset).scatter_(1, places, offset.sign())
    return offset.abs().mean(1), sign


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner products (M,) of rows (M, n)."""
    if a.device.type != "cpu":
        return torch.linalg.vecdot(a, b)
    # In parts, since it stores all products: 5 ms an image for ResNet-18, else 1.
    size = max(1, PART // len(a))
    parts = [slice(first, first + size) for first in range(0, a.shape[1], size)]
    return torch.stack([torch.linalg.vecdot(a[:, part], b[:, part]) for part in parts]).sum(0)
