"""Key-locks for many members at once: γ, β and the gradients of their parameters (FedKL eq. 37).

γ = a(p), p = W k + b, so ∂ℓ/∂b = ∂ℓ/∂γ ∘ a'(p) and ∂ℓ/∂W = ∂ℓ/∂b kᵀ (FedKL eqs. 34, 35, where a
is the identity), and the tangent of γ is a'(p) ∘ (Ẇ k + ḃ). β likewise.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.attacks.optimization.engine.chain_gradients import activate, derivative_of
from gradleak.models.locks import KEY, Locked, names_of

Tensors = Mapping[str, Tensor]


def norm_part(layer: str, kind: str) -> str:
    """Name under which γ (``weight``) or β (``bias``) of a convolution is stored."""
    return f"{layer}_norm.{kind}"


def parameters_of(layer: Locked) -> tuple[str, ...]:
    """Names of the parameters of a convolution's lock."""
    return tuple(
        f"{name}.{part}" for name in names_of(layer.name).values() for part in ("weight", "bias")
    )


def held_by(layer: Locked) -> tuple[str, ...]:
    """Names of everything that `opened` takes: a key and a lock, or γ and β."""
    parts = (norm_part(layer.name, kind) for kind in ("weight", "bias"))
    return (f"{layer.name}{KEY}", *parameters_of(layer), *parts)


def opened(layer: Locked, weights: Tensors) -> dict[str, Tensor]:
    """Return γ and β for a batch norm (M or 1, O, 1, 1), slopes a'(p) (M or 1, O), and the key.

    `weights` holds lock weights and key by name, each shared or with a leading dimension of
    members. Alternatively it holds γ and β, (O,) or (M, O), named by `norm_part`, and no key.
    """
    given = [norm_part(layer.name, kind) for kind in ("weight", "bias")]
    if given[0] in weights:
        return {name: spread(weights[name]) for name in given}
    key = weights[f"{layer.name}{KEY}"].reshape(-1, layer.lock.key)
    out = {f"{layer.name}{KEY}": key}
    for kind, name in names_of(layer.name).items():
        matrix = weights[f"{name}.weight"].reshape(-1, layer.filters, layer.lock.key)
        bias = weights[f"{name}.bias"].reshape(-1, layer.filters)
        before = (matrix @ key[..., None]).squeeze(2) + bias
        value = activate(layer.lock.activation, before)
        slope = derivative_of(layer.lock.activation, before, value)
        out[norm_part(layer.name, kind)] = spread(value)
        out[f"{name}.slope"] = torch.ones_like(value) if slope is None else slope
    return out


def spread(value: Tensor) -> Tensor:
    """Reshape (O,) or (M, O) to scale images: (M or 1, O, 1, 1)."""
    return value.reshape(-1, value.shape[-1], 1, 1)


def gradients(layer: Locked, found: Tensors, weights: Tensors) -> dict[str, Tensor]:
    """Gradients of the lock's parameters, from those (M, O) in γ and β; `weights` of `opened`."""
    key, out = weights[f"{layer.name}{KEY}"], {}
    for kind, name in names_of(layer.name).items():
        bias = found[norm_part(layer.name, kind)] * weights[f"{name}.slope"]
        out[f"{name}.bias"] = bias
        out[f"{name}.weight"] = bias[:, :, None] * key[:, None, :]
    return out


def moves(layer: Locked, moving: Tensors, weights: Tensors) -> dict[str, Tensor]:
    """Tangents of γ and β (M, O, 1, 1) for tangents of the lock's parameters; 0 by default."""
    out = {}
    for kind, name in names_of(layer.name).items():
        part = norm_part(layer.name, kind)
        if f"{name}.weight" not in moving:
            out[part] = torch.zeros_like(weights[part])
            continue
        matrix, bias = moving[f"{name}.weight"], moving[f"{name}.bias"]
        move = (matrix @ weights[f"{layer.name}{KEY}"][..., None]).squeeze(2) + bias
        out[part] = spread(move * weights[f"{name}.slope"])
    return out
