"""c(M), COPA's index of a network's security (eq. 8), layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.models.files import ModelFile
from gradleak.models.passes import deltas as true_deltas
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.structure import structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.targets import TargetSet

COLUMNS = [
    "model",
    "seed",
    "index",
    "layer",
    "unknowns",
    "rows",
    "rank",
    "rank_method",
    "bound",
    "exact",
    "domain",
    "numerical",
    "weight",
    "contribution",
    "kernel",
    "channels",
    "stride",
    "padding",
    "fc_inputs",
    "fc_outputs",
]


def structural_index(chain: Chain) -> tuple[float, bool]:
    """c(M) from the sizes of the layers alone, and whether it is exact.

    c(M) = sum over i = 1..d of (d − (i − 1))/d · (rank(U_i) − n_i)  (COPA eq. 8), with
    rank(U_i) replaced by the bound of docs/rank.md. Exact (for almost every weight and
    gradient) if every layer lies in the domain where the bound is the rank, else an upper bound.

    Returns
    -------
    tuple
        c(M), at most 0, and whether it is exact.
    """
    layers = chain.convolutions
    value, exact = 0.0, True
    for i, layer in enumerate(layers):
        found = structural_rank(layer.shape)
        value += discount(i, len(layers)) * (found.bound - layer.shape.unknowns)
        exact = exact and found.exact
    return value, exact


def discount(position: int, depth: int) -> float:
    """(d − (i − 1))/d for the convolution at `position` i − 1 of d (COPA eq. 8)."""
    return (depth - position) / depth


def layer_rows(
    chain: Chain,
    weights: dict[str, np.ndarray],
    deltas: dict[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Rank facts of every convolution of one network for one image.

    The rank reported is the structural one where it is exact, the numerical one elsewhere; both
    are in the row.
    """
    out = []
    first = next(layer for layer in chain.layers if isinstance(layer, LinearLayer))
    for i, layer in enumerate(chain.convolutions):
        system = layer_system(layer, weights, deltas)
        structure = structural_rank(layer.shape)
        exact = structure.exact and _generic(system)
        rank = structure.bound if exact else system.rank
        weight = discount(i, len(chain.convolutions))
        out.append(
            {
                "model": chain.name,
                "layer": layer.name,
                "unknowns": layer.shape.unknowns,
                "rows": system.shape[0],
                "rank": rank,
                "rank_method": "structural" if exact else "numerical",
                "bound": structure.bound,
                "exact": exact,
                "domain": structure.domain or "",
                "numerical": system.rank,
                "weight": weight,
                "contribution": weight * (rank - layer.shape.unknowns),
                "kernel": layer.shape.kernel[0],
                "channels": layer.shape.filters,
                "stride": layer.shape.stride[0],
                "padding": layer.shape.padding[0],
                "fc_inputs": first.inputs,
                "fc_outputs": chain.classes,
            }
        )
    return out


def _generic(system: LayerSystem) -> bool:
    """Whether no filter is dead: zero filters and zero deltas lie outside of the identity."""
    delta, weight = system.gradient.delta, system.convolution.weight
    return bool(delta.any(axis=1).all() and weight.any(axis=(1, 2, 3)).all())


def layer_system(
    layer: ConvLayer, weights: dict[str, np.ndarray], deltas: dict[str, np.ndarray]
) -> LayerSystem:
    """U of one layer from its weight and from dJ/dZ."""
    return LayerSystem(
        Convolution(weights[f"{layer.name}.weight"], layer.shape),
        GradientConstraint(deltas[layer.name], layer.shape),
    )


def index_table(models: ModelFile, targets: TargetSet, *, seeds: int) -> pd.DataFrame:
    """Rank facts of every chain, seed and layer, at the first target image."""
    rows = []
    for chain in models.chains:
        for seed in range(seeds):
            weights = models.of(chain, seed)
            deltas = true_deltas(chain, weights, targets.inputs(0)[0], int(targets.labels[0, 0]))
            for row in layer_rows(chain, weights, deltas):
                rows.append({"seed": seed, "index": int(targets.indices[0, 0]), **row})
    return pd.DataFrame(rows, columns=COLUMNS)
