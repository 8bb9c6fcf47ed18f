"""c(M), COPA's index of a network's security (eq. 8), layer by layer."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from gradleak.data.targets import TargetSet
from gradleak.models.chain import Chain, ConvLayer, LinearLayer
from gradleak.models.files import ModelFile, runs
from gradleak.models.numpy_autodiff import Weights
from gradleak.models.numpy_autodiff import deltas as true_deltas
from gradleak.operators.behind import Behind
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.shape import Seen
from gradleak.operators.structure import StructuralRank, structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.runtime.progress import progress

COLUMNS = [
    *("model", "seed", "index", "layer", "unknowns", "rows", "rank", "rank_method", "bound"),
    *("exact", "domain", "numerical", "weight", "contribution", "kernel", "channels", "stride"),
    *("padding", "fc_inputs", "fc_outputs"),
]


def index_from_ranks(chain: Chain, ranks: Iterable[int]) -> float:
    """c(M) = sum over i = 1..d of (d − (i − 1))/d · (rank(U_i) − n_i)  (COPA eq. 8), at most 0.

    Convolution i of `chain` has n_i unknowns; `ranks` are rank(U_i), first to last.
    """
    layers = chain.convolutions
    return sum(
        discount(i, len(layers)) * (rank - layer.shape.unknowns)
        for i, (layer, rank) in enumerate(zip(layers, ranks, strict=True))
    )


def structural_index(chain: Chain) -> tuple[float, bool]:
    """c(M) from the sizes of the layers alone (at most 0), and whether it is exact.

    With the bound of docs/rank.md for rank(U_i). Exact (for almost every weight and image) if
    every layer lies in the domain where the bound is the rank, and the layers behind it let dJ/dZ
    satisfy its assumptions; else an upper bound.
    """
    found = [structural_rank(layer.shape, behind(chain, layer)) for layer in chain.convolutions]
    value = index_from_ranks(chain, (rank.bound for rank in found))
    return value, all(rank.exact for rank in found)


def behind(chain: Chain, layer: ConvLayer) -> Behind:
    """Layers between a layer's linear output and the loss.

    Behind pools, norms and skips nothing is assumed about dJ/dZ; behind slopes of 0 and dropout,
    only where it is 0 in any case.
    """
    rest = chain.layers[chain.layers.index(layer) :]
    convolutions = [other for other in rest if isinstance(other, ConvLayer)]
    if not all(other.is_plain and not other.skip for other in convolutions):
        return Behind(smooth=False)
    smooth = all(
        other.activation.is_sloped and not (isinstance(other, LinearLayer) and other.dropout)
        for other in rest
    )
    return Behind(tuple(other.shape for other in convolutions[1:]), smooth)


def discount(position: int, depth: int) -> float:
    """(d − (i − 1))/d for the convolution at `position` i − 1 of d (COPA eq. 8)."""
    return (depth - position) / depth


def reported_rank(system: LayerSystem, follows: Behind) -> tuple[int, str, StructuralRank]:
    """Rank of U (`system`) for c(M): the structural one where it is exact, else the numerical.

    The structural rank holds for almost every weight and image, if the layers behind are known
    (`follows`) and neither weight nor dJ/dZ is an exception. Elsewhere the numerical rank decides,
    and confirms the structural one if both agree. Returns the rank, ``structural`` or
    ``numerical``, and the structural rank of the sizes.
    """
    weight, shape = system.convolution.weight, system.convolution.conv_shape
    structure = structural_rank(shape, follows)
    if structure.exact and is_ordinary(weight, system.gradient.delta, follows.seen(shape)):
        return structure.bound, "structural", structure
    return *_confirmed(system, structure), structure


def _confirmed(system: LayerSystem, structure: StructuralRank) -> tuple[int, str]:
    """Numerical rank, at most the bound; structural if it equals the rank that sizes prove."""
    rank = system.rank
    alive = _is_alive(system.convolution.weight, system.gradient.delta)
    if alive and structure.domain is not None and rank == structure.bound:
        return rank, "structural"
    return min(rank, structure.bound), "numerical"


def is_ordinary(weight: np.ndarray, delta: np.ndarray, seen: Seen) -> bool:
    """Return whether weight (O, C, kh, kw) and dJ/dZ (O, P) meet the assumptions of the proofs.

    As matrices both have full rank, no filter is 0, and no position `seen` by the layers behind has
    a dJ/dZ of 0 in all filters.
    """
    taps = weight.reshape(weight.shape[0], -1)
    places = delta[:, np.outer(*seen).ravel()]
    if not (_is_alive(weight, delta) and places.any(axis=0).all()):
        return False
    return all(np.linalg.matrix_rank(one) == min(one.shape) for one in (taps, places))


def _is_alive(weight: np.ndarray, delta: np.ndarray) -> bool:
    """Return whether no filter has a weight or a dJ/dZ of 0."""
    return bool(delta.any(axis=1).all() and weight.any(axis=(1, 2, 3)).all())


def layer_rows(chain: Chain, weights: Weights, deltas: Weights) -> list[dict[str, Any]]:
    """Rank facts of every convolution for one image; the numerical rank decides if two differ."""
    out = []
    first = next(layer for layer in chain.layers if isinstance(layer, LinearLayer))
    for i, layer in enumerate(progress(chain.convolutions, "layers")):
        system = layer_system(layer, weights, deltas)
        structure = structural_rank(layer.shape, behind(chain, layer))
        rank, method = _confirmed(system, structure)
        shape, weight = layer.shape, discount(i, len(chain.convolutions))
        out.append(
            {"model": chain.name, "layer": layer.name, "unknowns": shape.unknowns}
            | {"rows": system.shape[0], "rank": rank, "rank_method": method}
            | {"bound": structure.bound, "exact": method == "structural"}
            | {"domain": structure.domain or "", "numerical": system.rank}
            | {"weight": weight, "contribution": weight * (rank - shape.unknowns)}
            | {"kernel": shape.kernel[0], "channels": shape.filters, "stride": shape.stride[0]}
            | {"padding": shape.padding[0], "fc_inputs": first.inputs, "fc_outputs": chain.classes}
        )
    return out


def layer_system(layer: ConvLayer, weights: Weights, deltas: Weights) -> LayerSystem:
    """U of one layer from its weight and from dJ/dZ."""
    return LayerSystem(
        Convolution(weights[f"{layer.name}.weight"], layer.shape),
        GradientConstraint(deltas[layer.name], layer.shape),
    )


def index_table(models: ModelFile, targets: TargetSet, *, seeds: int) -> pd.DataFrame:
    """Rank facts of every chain, seed and layer, at the first target image."""
    rows = []
    for chain, seed, image in progress(list(runs(models.chains, seeds, 1)), "networks"):
        weights, label = models.of(chain, seed), int(targets.labels[image, 0])
        deltas = true_deltas(chain, weights, targets.inputs(image)[0], label)
        head = {"seed": seed, "index": int(targets.indices[image, 0])}
        rows += [head | row for row in layer_rows(chain, weights, deltas)]
    return pd.DataFrame(rows, columns=COLUMNS)
