"""DLG and Inverting Gradients as anybody writes them, in PyTorch alone, for a given CPU time."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

# Of DLG's optimiser: inner steps and pairs kept; smallest gain of one call, relative, to go on.
INNER, HISTORY, GAIN = 20, 100, 1e-4
# Of Inverting Gradients: initial rate, weight of total variation, steps that are timed.
RATE, TV, TIMED = 0.1, 1e-4, 3

Shape = tuple[int, ...]


def _shared(model: nn.Module, images: Tensor, label: Tensor) -> list[Tensor]:
    loss = nn.functional.cross_entropy(model(images), label)
    weights = [*model.parameters()]
    # Some may be without use.
    return [*torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)]


def dlg(
    model: nn.Module, target: list[Tensor], label: Tensor, shape: Shape, seconds: float
) -> Tensor:
    """Image (1, C, H, W) by L-BFGS with Wolfe's line search, begun anew where it gains no more.

    The label is known. Of all starts, the image whose gradient is nearest counts.
    """
    end, least, best = time.process_time() + seconds, torch.inf, torch.rand(1, *shape)
    scale = sum(g.square().sum() for g in target)
    while time.process_time() < end:
        x, before = torch.rand(1, *shape).requires_grad_(), torch.inf
        optimiser = torch.optim.LBFGS(
            [x], max_iter=INNER, history_size=HISTORY, line_search_fn="strong_wolfe"
        )

        def distance(x: Tensor = x) -> Tensor:
            pairs = zip(_shared(model, x, label), target, strict=True)
            value: Tensor = sum(((a - b).square().sum() for a, b in pairs), torch.zeros(())) / scale
            x.grad = torch.autograd.grad(value, x)[0].contiguous()
            return value.detach()

        with sdpa_kernel(SDPBackend.MATH):
            while time.process_time() < end:
                optimiser.step(distance)
                value = float(distance())
                if value < least:
                    least, best = value, x.detach().clone()
                if not value < (1.0 - GAIN) * before:
                    break
                before = value
    return best


def inverting(
    model: nn.Module, target: list[Tensor], label: Tensor, shape: Shape, seconds: float
) -> Tensor:
    """Image (1, C, H, W) by Adam along the sign of cosine distance and total variation."""
    begin, x = time.process_time(), torch.randn(1, *shape).requires_grad_()
    optimiser = torch.optim.Adam([x], RATE)
    norm = sum(g.square().sum() for g in target) ** 0.5
    steps, step, plan = TIMED, 0, None
    with sdpa_kernel(SDPBackend.MATH):
        while step < steps:
            found = _shared(model, x, label)
            inner = sum((a * b).sum() for a, b in zip(found, target, strict=True))
            cosine = 1.0 - inner / sum(a.square().sum() for a in found) ** 0.5 / norm
            rough = (x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()) * TV
            x.grad = torch.autograd.grad(cosine + rough, x)[0].sign()
            optimiser.step()
            with torch.no_grad():
                x.clamp_(0.0, 1.0)
            step += 1
            if step == TIMED:
                steps = max(TIMED, int(seconds * TIMED / (time.process_time() - begin)))
                places = [int(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)]
                plan = torch.optim.lr_scheduler.MultiStepLR(optimiser, places)
            elif plan:
                plan.step()
    return x.detach()


ATTACKS: dict[str, Callable[..., Tensor]] = {"dlg": dlg, "inverting": inverting}
