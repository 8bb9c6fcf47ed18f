"""`gradleak.inspect`: signs of an attacker in the weights that a client received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import pandas as pd
import torch
from torch import nn

from gradleak.errors import ConfigError
from gradleak.library import batch_tests
from gradleak.library.network import read_network
from gradleak.library.tensors import image_batch, label_batch
from gradleak.library.weight_tests import (
    FRESH,
    SHAPED,
    TRAINED,
    Layer,
    initial,
    layer_of,
    reasons,
    replaced,
    statistics,
)
from gradleak.reading.model_checks import own_copy, times
from gradleak.settings.validation_messages import nearest

RATES = "inspect_rates.csv"


@dataclass(frozen=True)
class Inspection:
    """Verdict on received weights, by layer and as a whole."""

    verdict: str  # looks fresh, looks trained, or looks shaped
    findings: tuple[str, ...]  # a sentence for each layer that looks shaped
    layers: pd.DataFrame = field(repr=False)  # statistics and a verdict for each layer
    sureness: str = field(repr=False)  # recorded rates of false alarms and of detection

    def __str__(self) -> str:
        return "\n".join([f"The network {self.verdict}.", *self.findings, self.sureness])


def inspect(
    model: nn.Module,
    state: Mapping[str, Any] | None = None,
    *,
    previous: Mapping[str, Any] | None = None,
    images: Any = None,
    labels: Any = None,
    loss: str = "cross_entropy",
) -> Inspection:
    """Tell whether a client received fresh or trained weights, or weights that an attacker shaped.

    For every layer, W (m, n) has a row w_i for each output. Limits are in
    `gradleak.library.weight_tests` and `batch_tests`. A layer looks shaped if

    - ``zeros``, the share of weights below 10⁻³ of their root mean square, is high (naive
      parameters, class fishing);
    - ``passing`` rows have max_j w_ij² / ‖w_i‖² near 1, or several have it far above what
      Beta(1/2, (n − 1)/2), the law of a random direction, allows: kernels that pass images on
      (MKOR eq. 20, LOKI);
    - ``parallel`` rows have abs(cos(w_i, w_j)) near 1 (MKOR eq. 10, imprint layers);
    - ``dependent``, min(m, n) − rank W, is above 1, since training takes at most one from a last
      layer;
    - ``size``, the median ‖w_i‖ of rows that are not 0, is large (fishing by a scaled layer), or
      ``row_norm``, max_i ‖w_i‖ over it, or ``bias``, max_i abs(b_i) over it;
    - ``regular``, √m sup_t abs(F_m(t) − F(t)) of the biases, is smaller than random ones have it:
      they are quantiles of F, bins of an imprint layer;
    - ``mirrored`` rows have weights in pairs x and −s x of one s (trap weights);
    - ``replaced`` rows have a cosine below 1/2 to those of the previous round, while the median row
      of some layer is above 0.99.

    Otherwise it looks fresh if its weights pass a Kolmogorov-Smirnov test against a usual
    initialization, named ``initial``, and trained if not. Small layers pass easily.

    Parameters
    ----------
    model
        The network; it is not modified.
    state
        The weights received, a state dict; by default, the network's own.
    previous
        Those of the round before.
    images, labels
        A batch of the client's own, (K, C, H, W) and (K,), of at least four images. The gradient
        g_k of each, in evaluation mode, gives for each layer ``dsnr``, the disaggregation
        signal-to-noise ratio max_k ‖g_k‖ / (Σ_k ‖g_k‖ − max_k ‖g_k‖); ``alone``, the share of
        rows that learn from one image only; ``silent``, the share that learn from none;
        ``vanishing``, the share of images with a loss above log 2, but hardly a gradient. The last
        is a reason, the others are shown: honest networks have any value of them.
    loss
        As in `gradleak.capture`.

    Returns
    -------
    Inspection
        A verdict and a table of layers; ``str`` has findings, and how sure they are.

    Raises
    ------
    ConfigError
        If network, weights and images do not fit together, or weights are not finite.

    Notes
    -----
    MKOR: Wang, Velipasalar, Gursoy (2024). Class fishing: Wen et al. (ICML 2022). Imprint layers:
    Fowl et al. (ICLR 2022). Trap weights: Boenisch et al. (EuroS&P 2023). LOKI: Zhao et al. (S&P
    2024). D-SNR: Garov et al. (ICLR 2024). That clients can detect such weights: Carletti et al.
    (S&P 2026). The tests are ours. Weights that were trained to leak (SEER) or that avoid these
    patterns are not detected (docs/received.md).
    """
    module = _loaded(model, state, "state")
    layers = _layers(module)
    if not layers:
        kind = type(model).__name__
        raise ConfigError(f"network: {kind} has no layer with a matrix of weights to inspect.")
    old = () if previous is None else _layers(_loaded(model, previous, "previous"))
    before = {layer.name: layer for layer in old}
    seen = None
    if images is not None or labels is not None:
        seen = _batch(module, images, labels, loss)
    return summary(layers, before, seen)


def summary(
    layers: list[Layer],
    before: Mapping[str, Layer] | None = None,
    seen: Mapping[str, Mapping[str, float]] | None = None,
) -> Inspection:
    """Judge layers, given those of the round before and statistics of a batch by name."""
    rows, findings = [], []
    turned = replaced(layers, before) if before else {}
    for layer in layers:
        found = statistics(layer)
        found |= {"replaced": turned[layer.name]} if turned else {}
        own = dict((seen or {}).get(layer.name, {}))
        named, p = initial(layer)
        why = [*reasons(found, len(layer.weight)), *batch_tests.reasons(own)]
        verdict = SHAPED if why else FRESH if named else TRAINED
        size = {"rows": len(layer.weight), "inputs": layer.weight.shape[1]}
        told = {"initial": named, "ks_p": p, "verdict": verdict, "why": "; ".join(why)}
        rows.append({"layer": layer.name, **size, **found, **own, **told})
        findings += [f"{layer.name}: {'; '.join(why)}."] if why else []
    table = pd.DataFrame(rows)
    kinds = set(table["verdict"])
    look = "batch" if seen is not None else "previous" if before else "weights"
    verdict = SHAPED if SHAPED in kinds else FRESH if kinds == {FRESH} else TRAINED
    return Inspection(verdict, tuple(findings), table, _sureness(look))


def _loaded(model: nn.Module, state: Mapping[str, Any] | None, key: str) -> nn.Module:
    """Copy a network and give it the weights of a state dict; `ConfigError` if they do not fit."""
    module, _ = own_copy(model)
    own, kind = module.state_dict(), type(model).__name__
    if state is None:
        state, key = own, "network"
    if not isinstance(state, Mapping):
        raise ConfigError(f"{key}: give a state dict, tensors by name, not {type(state).__name__}.")
    # Running statistics are optional: no verdict on weights needs them.
    given = [name for name, _ in module.named_buffers() if name in own and name in state]
    for name in [*(name for name, _ in module.named_parameters()), *given]:
        if name not in state:
            others = [str(one) for one in state if one not in own]
            raise ConfigError(
                f"{key}: {name} of {kind} is missing{nearest(name, others)}; give the weights of "
                "this network."
            )
        try:
            value = torch.as_tensor(state[name])
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{key}: {name} is not a tensor; give a state dict.") from error
        if value.shape != own[name].shape:
            raise ConfigError(
                f"{key}: {name} is of shape {times(value.shape)}, but {kind} has "
                f"{times(own[name].shape)}; give the network that the weights are of."
            )
        if not bool(value.isfinite().all()):
            raise ConfigError(
                f"{key}: {name} of {kind} is not finite; such weights reveal nothing to inspect."
            )
        own[name].copy_(value)
    return module


def _layers(module: nn.Module) -> list[Layer]:
    """Matrices of weights, with the bias beside them."""
    values = {name: value.detach().cpu().numpy() for name, value in module.named_parameters()}
    out = []
    for path, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            continue
        for name, _ in part.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            if full not in values or values[full].ndim < 2 or "weight" not in name:
                continue
            weight = values[full]
            if isinstance(part, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
                weight = weight.swapaxes(0, 1)
            bias = values.get(full.removesuffix(name) + name.replace("weight", "bias"))
            own = bias if bias is not None and bias.shape == weight.shape[:1] else None
            out.append(layer_of(full.removesuffix(".weight"), weight, own))
    return out


def _batch(module: nn.Module, images: Any, labels: Any, loss: str) -> dict[str, dict[str, float]]:
    """Statistics of the gradients of single images, by layer."""
    shape = getattr(images, "shape", ())
    if len(shape) != 4:
        raise ConfigError("images: give a batch (K, C, H, W), as a tensor or an array.")
    if labels is None:
        raise ConfigError("labels: give the class of each image, which its gradient depends on.")
    network = read_network(module, shape[1:], loss=loss, mode="evaluation")
    batch = image_batch(images, network)
    if len(batch) < batch_tests.LEAST:
        raise ConfigError(
            f"images: {len(batch)} tell too little; give {batch_tests.LEAST} or more."
        )
    return batch_tests.statistics(network, batch, label_batch(labels, network, len(batch)))


def _sureness(look: str) -> str:
    """Recorded rates of a way of looking, in words (benchmarks/received.py)."""
    with files("gradleak.library").joinpath(RATES).open(encoding="utf-8") as file:
        rates = pd.read_csv(file).dropna(subset=[look])
    total = rates["case"] == "all"
    ends = rates[total].set_index("group").loc["honest", [f"{look}_low", f"{look}_high"]]
    counts = rates[~total].assign(flagged=rates[look] * rates["n"]).groupby("group").sum()
    wrong, right = counts.loc["honest"], counts.loc["attacker"]
    return (
        f"On record, {wrong['flagged']:.0f} of {wrong['n']} honest networks looked shaped (95 % "
        f"interval {ends.iloc[0]:.1%} to {ends.iloc[1]:.1%}), and {right['flagged']:.0f} of "
        f"{right['n']} of known attackers. Weights that avoid these patterns look honest."
    )
