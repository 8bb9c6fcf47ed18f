"""What the structure of a network tells of a leak, layer by layer: ranks, counts, c(M)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np
from scipy import linalg
from torch import nn

from gradleak.auditing.conversion import Converted
from gradleak.auditing.counts import Count, counts
from gradleak.auditing.reading import Layer, Reading
from gradleak.models.chain import ConvLayer
from gradleak.operators.behind import Behind
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.gram import normal_matrix
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import rank_bound, structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.rank_analysis import analyse
from gradleak.security import behind, index_from_ranks, is_ordinary

# Unknowns up to which a condition number is computed, and a rank below the bound: some seconds a
# layer.
CONDITIONED, RANKED = 3_100, 1_600
# Eigenvalues of U^T U below this share of the largest, or below n times eps of it, are rounding.
ROUNDING = 1e-13
RankKind = Literal["exact", "measured", "at most", ""]
# The surest first.
KINDS: tuple[RankKind, ...] = ("exact", "measured", "at most")
# Where nothing is known of what follows a layer.
UNKNOWN = Behind(smooth=False)


@dataclass(frozen=True)
class LayerStructure:
    """One layer of the table.

    Attributes
    ----------
    layer, kind, detail
        As of `gradleak.auditing.reading.Layer`.
    input, output
        Shapes for one image.
    parameters
        All parameters of the layer.
    unknowns, weights, outputs, carried, virtual, index
        |x|, |W|, |z|, what is carried of it, |V| and RA-i; None where the layer has none.
    own_unknowns
        |x| of the layer alone: columns of U.
    rank, rank_kind
        rank U: ``exact`` (proved, for almost every weight and image), ``measured`` (of these
        weights, at a sample image) or ``at most`` (a bound).
    condition
        Largest over smallest non-zero singular value of U at a sample image; None where it was not
        computed.
    free
        Unknowns that U leaves free, at least: `own_unknowns` − `rank`.
    critical
        Whether its RA-i is the network's.
    note
        What the row leaves out; of an unreadable layer why it is one.
    """

    layer: str
    kind: str
    detail: str
    input: tuple[int, ...]
    output: tuple[int, ...]
    parameters: int
    unknowns: int | None = None
    own_unknowns: int | None = None
    weights: int | None = None
    outputs: int | None = None
    carried: int | None = None
    virtual: int | None = None
    index: int | None = None
    rank: int | None = None
    rank_kind: RankKind = ""
    condition: float | None = None
    critical: bool = False
    readable: bool = True
    note: str = ""

    @property
    def free(self) -> int | None:
        """See the class."""
        if self.rank is None or self.own_unknowns is None:
            return None
        return self.own_unknowns - self.rank


@dataclass(frozen=True)
class Structure:
    """A network's structure.

    Attributes
    ----------
    layers
        All layers with parameters, and all that are unreadable.
    index
        RA-i of the network, the largest of its layers'; None without a readable layer.
    critical
        Layer of that RA-i.
    security
        c(M), COPA's index; None where it is not defined.
    security_kind
        How the least sure of the ranks that it is made of is known; empty where it is not defined.
    security_note
        Why c(M) is not defined.
    chain
        Why the network is no chain that closed forms could walk; empty where it is one.
    """

    layers: tuple[LayerStructure, ...]
    index: int | None
    critical: str
    security: float | None
    security_kind: str
    security_note: str
    chain: str


def structure(
    reading: Reading,
    module: nn.Module,
    converted: Converted | None,
    why_no_chain: str,
    deltas: Mapping[str, np.ndarray],
) -> Structure:
    """Analyse every layer.

    Parameters
    ----------
    reading, module
        The network.
    converted, why_no_chain
        The chain that it is, or why it is none.
    deltas
        dJ/dZ of readable layers at a sample image.
    """
    rows = _counted(reading, converted)
    worst = max(rows.values(), key=lambda row: row.index) if rows else None
    follows = _behind(converted)
    layers = [
        _layer(
            layer,
            rows.get(layer.name),
            module,
            deltas.get(layer.name),
            worst,
            follows.get(layer.name, UNKNOWN),
        )
        for layer in reading.layers
        if layer.parameters or layer.unreadable
    ]
    value, kind, note = security(converted, why_no_chain, layers)
    return Structure(
        tuple(layers),
        worst.index if worst else None,
        worst.layer if worst else "",
        value,
        kind,
        note,
        why_no_chain,
    )


def security(
    converted: Converted | None, why_no_chain: str, layers: Sequence[LayerStructure]
) -> tuple[float | None, str, str]:
    """c(M), how its ranks are known, and where it is not defined why (COPA eq. 8)."""
    if converted is None:
        return None, "", f"c(M) is of a chain: {why_no_chain}"
    chain = converted.chain
    if not chain.convolutions:
        return None, "", "c(M) is a sum over convolutions, and there are none."
    if not (chain.is_sequential and chain.is_plain):
        return None, "", "c(M) is of chains without skips, norms and pools."
    rows = {row.layer: row for row in layers}
    found = [rows[name] for name in _behind(converted)]
    value = index_from_ranks(chain, (row.rank or 0 for row in found))
    return value, max((row.rank_kind for row in found), key=KINDS.index), ""


def _behind(converted: Converted | None) -> dict[str, Behind]:
    """What lies behind each convolution of a chain, by the module's name of it."""
    if converted is None:
        return {}
    chain = converted.chain
    named = zip(converted.layers, chain.layers, strict=True)
    return {name: behind(chain, layer) for name, layer in named if isinstance(layer, ConvLayer)}


def _counted(reading: Reading, converted: Converted | None) -> dict[str, Count]:
    """Counts by the layer's name; those of R-GAP's own analysis where the network is a chain."""
    found = {row.layer: row for row in counts(reading)}
    if converted is None:
        return found
    out = {}
    for name, row in zip(converted.layers, analyse(converted.chain), strict=True):
        out[name] = Count(
            name, row.unknowns, row.weights, row.outputs, row.carried, row.virtual, row.note
        )
    return out


def _layer(
    layer: Layer,
    count: Count | None,
    module: nn.Module,
    delta: np.ndarray | None,
    worst: Count | None,
    follows: Behind,
) -> LayerStructure:
    base = LayerStructure(
        layer.name,
        layer.kind,
        layer.detail,
        layer.input_shape,
        layer.output_shape,
        layer.parameters,
        readable=not layer.unreadable,
        note=layer.unreadable,
    )
    if not layer.is_linear:
        return base
    rank, kind, condition, note = _ranks(layer, module, delta, follows)
    notes = [note, count.note] if count else [note, "counted with the layer that its skip ends at"]
    fields = {
        "rank": rank,
        "rank_kind": kind,
        "condition": condition,
        "own_unknowns": prod(layer.input_shape),
        "weights": layer.weights,
        "note": "; ".join(part for part in notes if part),
    }
    if count is not None:
        fields |= {
            "unknowns": count.unknowns,
            "weights": count.weights,
            "outputs": count.outputs,
            "carried": count.carried,
            "virtual": count.virtual,
            "index": count.index,
            "critical": count is worst,
        }
    return LayerStructure(**{**base.__dict__, **fields})


def _ranks(
    layer: Layer, module: nn.Module, delta: np.ndarray | None, follows: Behind
) -> tuple[int, RankKind, float | None, str]:
    """Rank U, how it is known, condition number, and what to note."""
    unknowns = prod(layer.input_shape)
    if layer.shape is None and delta is not None and not delta.any():
        bound = min(unknowns, layer.weights // unknowns)
        return bound, "at most", None, "its dJ/dZ is 0: its gradient tells nothing of its input"
    if layer.shape is None:
        # dJ/dW = δ xᵀ gives x wherever a δ is not 0 (COPA eq. 9, 10).
        return unknowns, "exact", None, "its gradient gives its input directly"
    found = structural_rank(layer.shape, follows)
    kind: RankKind = "exact" if found.exact else "at most"
    if delta is None or layer.groups > 1:
        why = f"{layer.groups} groups, each counted" if delta is not None else "dJ/dZ is not known"
        return layer.groups * found.bound, kind, None, f"{why}; no condition number"
    return _measured(layer.shape, *_as_convolution(layer, module, delta, layer.shape), follows)


def _measured(
    shape: ConvShape, weight: np.ndarray, delta: np.ndarray, follows: Behind
) -> tuple[int, RankKind, float | None, str]:
    """Rank U of these weights at this dJ/dZ, as far as it is computed; as `_ranks`.

    An eigenvalue of U^T U above rounding confirms the bound, and so does the rank.
    """
    found, gradient = structural_rank(shape, follows), GradientConstraint(delta, shape)
    rank = min(found.bound, rank_bound(shape, gradient.seen))
    proved = found.exact and is_ordinary(weight, gradient.delta, follows.seen(shape))
    kind: RankKind = "exact" if proved else "at most"
    notes = _zeros(weight, gradient.delta)
    met = without_gaps(shape)
    # VGG-16's at 224x224 would take 30 GB.
    if met.unknowns > CONDITIONED:
        notes.append(f"no condition number above {CONDITIONED} unknowns")
        return rank, kind, None, "; ".join(notes)
    # Where no proof makes the bound likely, one large matrix more would seldom confirm it.
    if met.unknowns > RANKED and found.domain is None:
        notes.append("no condition number: the rank is only bounded")
        return rank, kind, None, "; ".join(notes)
    system = LayerSystem(Convolution(weight, met), GradientConstraint(delta, met))
    condition = _condition(system, rank)
    if condition is None and met.unknowns <= RANKED:
        measured = system.rank
        if measured < rank or kind != "exact":
            kind = "measured"
        if measured < rank:
            rank, condition = measured, _condition(system, measured)
    elif condition is not None and kind == "at most":
        kind = "measured"
    if condition is None:
        why = "the smallest singular value is lost in rounding" if rank else "U is 0"
        why = "the rank is only bounded" if kind == "at most" else why
        notes.append(f"no condition number: {why}")
    return rank, kind, condition, "; ".join(notes)


def _zeros(weight: np.ndarray, delta: np.ndarray) -> list[str]:
    """Note filters without weight or dJ/dZ, and positions without dJ/dZ."""
    notes = []
    if not (delta.any(axis=1).all() and weight.any(axis=(1, 2, 3)).all()):
        notes.append("a filter or its dJ/dZ is 0")
    unseen = int(np.sum(~delta.any(axis=0)))
    if 0 < unseen < delta.shape[1]:
        notes.append(f"dJ/dZ is 0 at {unseen} of {delta.shape[1]} positions")
    return notes


def without_gaps(shape: ConvShape) -> ConvShape:
    """The convolution without pixels that no window meets, along axes without padding.

    Their columns of U are 0, so its rank and non-zero singular values stay as they are, and so do
    weight, dJ/dZ and output. A 1x1 convolution of stride 2 meets one pixel of four.
    """
    strides, sizes = [], []
    for axis in shape.axes:
        stride = axis.stride if axis.padding else min(axis.stride, axis.kernel)
        met = (axis.positions - 1) * stride + axis.kernel
        strides.append(stride)
        sizes.append(axis.size if axis.padding else met)
    return replace(shape, stride=(strides[0], strides[1]), size=(sizes[0], sizes[1]))


def _condition(system: LayerSystem, rank: int) -> float | None:
    """Largest over `rank`-th singular value of U, from U^T U; None where rounding hides the latter.

    `LayerSystem.condition` gets further, but takes ten times as long.
    """
    if not rank:
        return None
    values = linalg.eigvalsh(
        normal_matrix(system.convolution, system.gradient), overwrite_a=True, check_finite=False
    )
    least = values[len(values) - rank]
    rounding = max(ROUNDING, len(values) * np.finfo(float).eps) * values[-1]
    return float(np.sqrt(values[-1] / least)) if least > rounding else None


def _as_convolution(
    layer: Layer, module: nn.Module, delta: np.ndarray, shape: ConvShape
) -> tuple[np.ndarray, np.ndarray]:
    """Weight (O, C, kh, kw) and dJ/dZ (O, height, width) of a layer."""
    own = module.get_submodule(layer.name)
    assert isinstance(own, nn.Conv2d | nn.Linear)
    weight = own.weight.detach().double().cpu().numpy()
    if isinstance(own, nn.Linear):
        # Places of an image are the positions of a 1x1 convolution.
        weight, delta = weight[:, :, None, None], delta.reshape(-1, delta.shape[-1]).T
    return weight, delta.reshape(shape.filters, *shape.output)
