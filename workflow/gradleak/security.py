"""c(M), COPA's index of a network's security (eq. 8), layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.models.files import ModelFile, runs
from gradleak.models.passes import deltas as true_deltas
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.structure import StructuralRank, structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.progress import progress
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


def index_from_ranks(chain: Chain, ranks: Iterable[int]) -> float:
    """c(M) = sum over i = 1..d of (d − (i − 1))/d · (rank(U_i) − n_i)  (COPA eq. 8).

    Parameters
    ----------
    chain
        The network, whose convolution i has n_i unknowns.
    ranks
        rank(U_i) of its convolutions, first to last.

    Returns
    -------
    float
        c(M), at most 0.
    """
    layers = chain.convolutions
    return sum(
        discount(i, len(layers)) * (rank - layer.shape.unknowns)
        for i, (layer, rank) in enumerate(zip(layers, ranks, strict=True))
    )


def structural_index(chain: Chain) -> tuple[float, bool]:
    """c(M) from the sizes of the layers alone, and whether it is exact.

    rank(U_i) of `index_from_ranks` is replaced by the bound of docs/rank.md. Exact (for almost
    every weight and gradient) if every layer lies in the domain where the bound is the rank,
    else an upper bound.

    Returns
    -------
    tuple
        c(M), at most 0, and whether it is exact.
    """
    found = [structural_rank(layer.shape) for layer in chain.convolutions]
    value = index_from_ranks(chain, (rank.bound for rank in found))
    return value, all(rank.exact for rank in found)


def discount(position: int, depth: int) -> float:
    """(d − (i − 1))/d for the convolution at `position` i − 1 of d (COPA eq. 8)."""
    return (depth - position) / depth


def reported_rank(system: LayerSystem) -> tuple[int, str, StructuralRank]:
    """Rank of U that c(M) is made of: the structural one where it is exact, else the numerical.

    The structural rank holds for almost every weight and gradient; a dead filter (all weights or
    all of dJ/dZ zero) is one of the exceptions. The numerical rank is computed only if it is
    the one reported.

    Returns
    -------
    tuple
        The rank, ``structural`` or ``numerical``, and what the sizes say.
    """
    structure = structural_rank(system.convolution.conv_shape)
    if structure.exact and _generic(system):
        return structure.bound, "structural", structure
    return system.rank, "numerical", structure


def layer_rows(
    chain: Chain,
    weights: dict[str, np.ndarray],
    deltas: dict[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Rank facts of every convolution of one network for one image.

    The row holds the rank of `reported_rank`, and the numerical one beside it.
    """
    out = []
    first = next(layer for layer in chain.layers if isinstance(layer, LinearLayer))
    for i, layer in enumerate(progress(chain.convolutions, "layers")):
        system = layer_system(layer, weights, deltas)
        rank, method, structure = reported_rank(system)
        weight = discount(i, len(chain.convolutions))
        out.append(
            {
                "model": chain.name,
                "layer": layer.name,
                "unknowns": layer.shape.unknowns,
                "rows": system.shape[0],
                "rank": rank,
                "rank_method": method,
                "bound": structure.bound,
                "exact": method == "structural",
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
    for chain, seed, image in progress(list(runs(models.chains, seeds, 1)), "networks"):
        weights = models.of(chain, seed)
        label = int(targets.labels[image, 0])
        deltas = true_deltas(chain, weights, targets.inputs(image)[0], label)
        for row in layer_rows(chain, weights, deltas):
            rows.append({"seed": seed, "index": int(targets.indices[image, 0]), **row})
    return pd.DataFrame(rows, columns=COLUMNS)
