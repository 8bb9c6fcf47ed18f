"""Derivatives of a loss in a network's outputs, for many members at once."""

import torch
from torch import Tensor

from gradleak.models.losses import OF_CLASSES, RAW


def output_gradient(
    loss: str, output: Tensor, labels: Tensor, scale: Tensor | None = None
) -> Tensor:
    """Return dℓ/d(output) (M, K, m), divided by K for the mean over the batch, times `scale` (M,).

    `output` (M, K, m) is that of the last activation; `labels` are integers (M, K) or dummy logits
    (M, K, m); `loss` is one of `gradleak.models.losses.LOSSES`.
    """
    dummy = labels.is_floating_point()
    if loss in OF_CLASSES:
        if dummy:
            truth = torch.softmax(labels, 2)
        else:
            # `one_hot` would ask the device for the largest label.
            classes = torch.arange(output.shape[2], device=output.device)
            truth = (labels.unsqueeze(2) == classes).to(output.dtype)
        guess = torch.softmax(output, 2) if loss != RAW else torch.zeros_like(output)
        found = guess - truth
    elif dummy:
        one = torch.sigmoid(labels) * _margin_derivative(loss, output)
        found = one - torch.sigmoid(-labels) * _margin_derivative(loss, -output)
    else:
        sign = labels.to(output.dtype).unsqueeze(2)
        found = sign * _margin_derivative(loss, sign * output)
    found = found / output.shape[1]
    return found if scale is None else found * scale[:, None, None]


def output_bend(
    loss: str, output: Tensor, labels: Tensor, scale: Tensor | None, moved: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Differentiate <dℓ/d(output), `moved`> in the output and in dummy logits, if any."""
    dummy = labels.is_floating_point()
    with torch.enable_grad():
        variables = [output.detach().requires_grad_()]
        if dummy:
            variables.append(labels.detach().requires_grad_())
        gradient = output_gradient(loss, variables[0], variables[1] if dummy else labels, scale)
        # The hinge loss has no curvature, and so no graph.
        inner = (gradient * moved).sum() + 0.0 * sum(v.sum() for v in variables)
        found = torch.autograd.grad(inner, variables)
    return found[0], found[1] if dummy else None


def told(logits: Tensor, loss: str) -> Tensor:
    """Convert dummy logits (M, K, m) to labels (M, K): classes, or −1 and 1."""
    if loss in OF_CLASSES:
        return logits.argmax(2)
    return torch.where(logits[:, :, 0] > 0, 1, -1)


def _margin_derivative(loss: str, mu: Tensor) -> Tensor:
    """Return dℓ/dμ, as `gradleak.models.losses.MarginLoss.derivative` in PyTorch."""
    if loss == "logistic":
        return -torch.sigmoid(-mu)
    if loss == "exponential":
        return -torch.exp(-mu)
    return -(mu < 1.0).to(mu.dtype)
