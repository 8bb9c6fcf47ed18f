"""Speed of Inverting Gradients on residual networks against a straightforward loop."""

from functools import partial
from typing import Any

import torch

from benchmarks import searches
from benchmarks.runner import Facts
from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
from gradleak.attacks.optimization.inverting import FACTOR, MILESTONES, InvertingGradients
from gradleak.client.capture import DTYPES, pick_device

# Images at a time on an accelerator, which would take all.
MOST = 64


def attack(
    side: str, settings: searches.Settings, precision: str = "float32", device: str = "cpu"
) -> searches.RunMany:
    """Ours, all images at once, or the reference."""
    if side == "reference":
        where = (DTYPES[precision], pick_device(device))
        return searches.one_by_one(lambda view, _: plain(view, settings, *where))
    options = {**settings, "precision": precision, "device": device}
    options |= {"start": "reconstruction", "failure_loss": 10.0, "chunk": MOST}
    return InvertingGradients(**options).run_many


def plain(
    view: AttackerView, settings: searches.Settings, dtype: torch.dtype, device: torch.device
) -> Reconstruction:
    """Best image (1, C, H, W) of one run from the view's initialization."""
    assert view.starts is not None
    client = searches.PlainClient(view, dtype, device)
    label = torch.tensor(view.labels, device=device)
    x = torch.from_numpy(view.starts[0]).to(device, dtype).clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=settings["rate"])
    milestones = [int(share * settings["iterations"]) for share in MILESTONES]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, FACTOR)
    best, least = x.detach().clone(), float("inf")
    for _ in range(settings["iterations"]):
        value = _cosine(client.gradient(x, label), client.shared) + settings["tv"] * _variation(x)
        x.grad = torch.autograd.grad(value, x)[0].sign()
        if value.item() < least:
            best, least = x.detach().clone(), value.item()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(view.low, view.high)
    return Reconstruction(best.cpu().double().numpy(), "all steps", loss=least)


def _cosine(found: tuple[torch.Tensor, ...], shared: list[torch.Tensor]) -> torch.Tensor:
    inner = ours_ = theirs = torch.zeros((), device=found[0].device)
    for a, b in zip(found, shared, strict=True):
        inner = inner + (a * b).sum()
        ours_ = ours_ + a.square().sum()
        theirs = theirs + b.square().sum()
    return 1.0 - inner / (ours_.sqrt() * theirs.sqrt())


def _variation(x: torch.Tensor) -> torch.Tensor:
    down, across = x[:, :, 1:] - x[:, :, :-1], x[:, :, :, 1:] - x[:, :, :, :-1]
    return down.abs().mean() + across.abs().mean()


def inverting_row(given: searches.Settings, *, iterations: int, **options: Any) -> Facts:
    """Row for a model's first seed in evaluation mode; options are those of `iteration_row`."""
    words = (
        "all images at once and no graph against torch.autograd and torch.optim.Adam, one image "
        "after the other; initial weights with running statistics, evaluation mode"
    )
    options |= {"given": given, "settings": {"iterations": iterations, "rate": 0.1, "tv": 1e-4}}
    return searches.iteration_row("Inverting Gradients", "inverting:timed", words, **options)


def timed(side: str, given: searches.Settings, settings: searches.Settings, device: str) -> Facts:
    """One side in this process, as `searches.timed`, on images that are `stored`."""
    found, chosen = searches.stored(**given), pick_device(device)
    sent = (found.chain, found.weights, "cross_entropy")
    most = BranchGradients(*sent, mode="evaluation", device=chosen).at_once(1)
    case, deviation = found.case(min(MOST, most)), given["scale"][1]
    return searches.timed(partial(attack, side), case, settings, device, deviation)
