"""Structural analysis of leakage by layer: ranks, counts, c(M)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

import numpy as np
from scipy import linalg
from torch import nn

from gradleak.analysis.copa_index import behind, index_from_ranks, is_ordinary
from gradleak.analysis.rank_analysis import LayerCount, Tally, analyse, critical
from gradleak.models.chain import ConvLayer
from gradleak.operators.behind import Behind
from gradleak.operators.convolution import Convolution
from gradleak.operators.gradient import GradientConstraint
from gradleak.operators.gram import normal_matrix
from gradleak.operators.shape import ConvShape
from gradleak.operators.structure import rank_bound, structural_rank
from gradleak.operators.system import LayerSystem
from gradleak.reading.conversion import Converted, obstacles
from gradleak.reading.fx_graph import Layer, Reading
from gradleak.reading.layer_rows import LayerRow, Obstacle, StructurePart

# Unknowns up to which condition numbers, and ranks below the bound, are computed: some seconds a
# layer.
CONDITIONED, RANKED = 3_100, 1_600
# Eigenvalues of U^T U below this share of the largest, or below n times eps of it, count as 0.
ROUNDING = 1e-13
RankKind = Literal["exact", "measured", "at most", ""]
# Most reliable first.
KINDS: tuple[RankKind, ...] = ("exact", "measured", "at most")
# If the following layers are unknown.
UNKNOWN = Behind(smooth=False)
COUNTS = ("unknowns", "weights", "outputs", "carried", "virtual", "index")
# Rank of U, its kind, condition number, and notes.
Ranks = tuple[int, RankKind, float | None, str]
# Elementwise operations and reshapes: the output carries the same values as the input.
UNARY = ["norm", "activation", "pool", "offset", "affine", "reshape", "dropout", "log_softmax"]
END = 10**9
UNBRANCHED = "Take branches on values out of it for closed forms and for a table of its layers."


def structure(
    reading: Reading,
    converted: Converted | None,
    why_no_chain: str,
    deltas: Mapping[str, np.ndarray],
    loss: str = "cross_entropy",
) -> StructurePart:
    """Analyse layers with parameters and unreadable ones; `deltas` are dJ/dZ at one image."""
    counted = _counted(reading, converted)
    worst = critical(tuple(counted.values())) if counted else None
    follows = _behind(converted)
    layers = []
    for layer in reading.layers:
        if layer.parameters or layer.unreadable:
            delta, after = deltas.get(layer.name), follows.get(layer.name, UNKNOWN)
            ranks = _ranks(layer, delta, after) if layer.is_linear else None
            layers.append(_row(layer, counted.get(layer.name), ranks, worst))
    return StructurePart(
        layers=tuple(layers),
        index=worst.index if worst else None,
        critical=worst.layer if worst else "",
        **security(converted, layers),
        obstacles=_obstacles(reading, converted, why_no_chain, loss),
    )


def _obstacles(
    reading: Reading, converted: Converted | None, why_no_chain: str, loss: str
) -> tuple[Obstacle, ...]:
    if converted is not None:
        return ()
    found = () if reading.untraced else obstacles(reading, loss)
    why = f"{why_no_chain} {UNBRANCHED}" if reading.untraced else why_no_chain
    return found or (Obstacle(layers=(), reason=why),)


def security(converted: Converted | None, layers: Sequence[LayerRow]) -> dict[str, Any]:
    """Return c(M), how its ranks are known, and why it is undefined if it is (COPA eq. 8)."""
    value, kind = None, ""
    if converted is None:
        note = "c(M) is defined for chains, and this network is not one."
    elif not converted.chain.convolutions:
        note = "c(M) is a sum over convolutions, and there are none."
    elif not (converted.chain.is_sequential and converted.chain.is_plain):
        note = "c(M) is defined for chains without skips, norms and pools."
    else:
        rows, note = {row.layer: row for row in layers}, ""
        found = [rows[name] for name in _behind(converted)]
        value = index_from_ranks(converted.chain, (row.rank or 0 for row in found))
        kind = max((row.rank_kind for row in found), key=KINDS.index)
    return {"security": value, "security_kind": kind, "security_note": note}


def _behind(converted: Converted | None) -> dict[str, Behind]:
    if converted is None:
        return {}
    chain = converted.chain
    named = zip(converted.layers, chain.layers, strict=True)
    return {name: behind(chain, layer) for name, layer in named if isinstance(layer, ConvLayer)}


def _counted(reading: Reading, converted: Converted | None) -> dict[str, LayerCount]:
    """Counts by layer name; those of R-GAP's analysis for chains."""
    if converted is None:
        return {row.layer: row for row in counts(reading)}
    rows = zip(converted.layers, analyse(converted.chain), strict=True)
    return {name: replace(row, layer=name) for name, row in rows}


def _row(
    layer: Layer, count: LayerCount | None, ranks: Ranks | None, worst: LayerCount | None
) -> LayerRow:
    own: dict[str, Any] = dict.fromkeys((*COUNTS, "own_unknowns", "rank", "free", "condition"))
    own |= {"rank_kind": "", "critical": False, "note": layer.unreadable}
    own |= {key: getattr(layer, key) for key in ("kind", "detail", "parameters")}
    if ranks is not None:
        own["rank"], own["rank_kind"], own["condition"], note = ranks
        more = count.note if count else "counted with the layer that its skip ends at"
        own["note"] = "; ".join(part for part in (note, more) if part)
        own["own_unknowns"], own["weights"] = prod(layer.input_shape), layer.weights
        own["free"] = own["own_unknowns"] - own["rank"]
        if count is not None:
            own |= {key: getattr(count, key) for key in COUNTS} | {"critical": count is worst}
    own |= {"input": layer.input_shape, "output": layer.output_shape}
    return LayerRow(layer=layer.name, readable=not layer.unreadable, **own)


def _ranks(layer: Layer, delta: np.ndarray | None, follows: Behind) -> Ranks:
    if layer.shape is None:
        unknowns = prod(layer.input_shape)
        if delta is not None and not delta.any():
            bound = min(unknowns, layer.weights // unknowns)
            return bound, "at most", None, "its dJ/dZ is 0: its gradient tells nothing of its input"
        # dJ/dW = δ xᵀ gives x wherever δ is not 0 (COPA eq. 9, 10).
        return unknowns, "exact", None, "its gradient gives its input directly"
    found = structural_rank(layer.shape, follows)
    kind: RankKind = "exact" if found.exact else "at most"
    if delta is None or layer.groups > 1:
        why = f"{layer.groups} groups, each counted" if delta is not None else "dJ/dZ is not known"
        return layer.groups * found.bound, kind, None, f"{why}; no condition number"
    return _measured(layer.shape, *_as_convolution(layer, delta, layer.shape), follows)


def _measured(shape: ConvShape, weight: np.ndarray, delta: np.ndarray, follows: Behind) -> Ranks:
    """Ranks at these weights and dJ/dZ; an eigenvalue of U^T U or the rank confirms the bound."""
    found, gradient = structural_rank(shape, follows), GradientConstraint(delta, shape)
    rank = min(found.bound, rank_bound(shape, gradient.seen))
    proved = found.exact and is_ordinary(weight, gradient.delta, follows.seen(shape))
    kind: RankKind = "exact" if proved else "at most"
    notes, condition = _zeros(weight, gradient.delta), None
    met, bounded = without_gaps(shape), "no condition number: the rank is only bounded"
    # VGG-16 at 224x224 would take 30 GB.
    if met.unknowns > CONDITIONED:
        notes.append(f"no condition number above {CONDITIONED} unknowns")
    # Without a proof that the bound is likely, another large matrix would rarely confirm it.
    elif met.unknowns > RANKED and found.domain is None:
        notes.append(bounded)
    else:
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
            notes.append(bounded if kind == "at most" else f"no condition number: {why}")
    return rank, kind, condition, "; ".join(notes)


def _zeros(weight: np.ndarray, delta: np.ndarray) -> list[str]:
    notes = []
    if not (delta.any(axis=1).all() and weight.any(axis=(1, 2, 3)).all()):
        notes.append("a filter, or the gradient of its output, is 0")
    unseen = int(np.sum(~delta.any(axis=0)))
    if 0 < unseen < delta.shape[1]:
        notes.append(f"the gradient of the output is 0 at {unseen} of {delta.shape[1]} positions")
    return notes


def without_gaps(shape: ConvShape) -> ConvShape:
    """Crop pixels that no window covers, along axes without padding.

    Their columns of U are 0, so rank and non-zero singular values of U, weight, dJ/dZ and output
    are unchanged. A 1x1 convolution with stride 2 covers one pixel of four.
    """
    kept = [(axis.stride, axis.size) for axis in shape.axes]
    for k, axis in enumerate(shape.axes):
        if not axis.padding:
            stride = min(axis.stride, axis.kernel)
            kept[k] = stride, (axis.positions - 1) * stride + axis.kernel
    (down, height), (across, width) = kept
    return replace(shape, stride=(down, across), size=(height, width))


def _condition(system: LayerSystem, rank: int) -> float | None:
    """Ratio of the largest to the `rank`-th singular value of U; None if lost in rounding."""
    if not rank:
        return None
    matrix = normal_matrix(system.convolution, system.gradient)
    values = linalg.eigvalsh(matrix, overwrite_a=True, check_finite=False)
    least = values[len(values) - rank]
    rounding = max(ROUNDING, len(values) * np.finfo(float).eps) * values[-1]
    return float(np.sqrt(values[-1] / least)) if least > rounding else None


def _as_convolution(
    layer: Layer, delta: np.ndarray, shape: ConvShape
) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (O, C, kh, kw) and dJ/dZ (O, height, width) of a layer."""
    own = layer.module
    assert isinstance(own, nn.Conv2d | nn.Linear)
    weight = own.weight.detach().double().cpu().numpy()
    if isinstance(own, nn.Linear):
        # Positions of a fully connected layer are those of a 1x1 convolution.
        weight, delta = weight[:, :, None, None], delta.reshape(-1, delta.shape[-1]).T
    return weight, delta.reshape(shape.filters, *shape.output)


@dataclass
class _Value:
    made: int
    sizes: dict[str, int]
    uses: list[tuple[int, str]] = field(default_factory=list)

    def size(self) -> int:
        """Size at its uses; the smallest, from which the others follow."""
        return min(self.sizes[name] for _, name in self.uses) if self.uses else 0

    def lasts(self, time: int) -> bool:
        """True if a layer after `time` uses it."""
        return any(use > time for use, _ in self.uses)


def counts(reading: Reading) -> tuple[LayerCount, ...]:
    """Count unknowns and constraints in running order; |V| restarts behind unreadable layers."""
    if not reading.layers:
        return ()
    order = [layer.name for layer in reading.layers if layer.is_linear]
    values, value_of = _values(reading, {name: time for time, name in enumerate(order)})
    tally, note = Tally(), ""
    for layer in reading.layers:
        if layer.unreadable:
            note = f"counts begin anew behind {layer.name}"
            tally.begin_anew()
        if layer.is_linear:
            time, own = len(tally.rows), value_of[layer.inputs[0]]
            past = (v for v in values if v is not own and v.made < time and v.lasts(time - 1))
            carried = sum(value.size() for value in past)
            unknowns = prod(layer.input_shape) + carried
            outputs = sum(v.size() for v in values if v.made <= time and v.lasts(time))
            tally.count(layer.name, unknowns, layer.weights, outputs, carried, note)
            note = ""
    return tuple(tally.rows)


def _values(reading: Reading, times: Mapping[str, int]) -> tuple[list[_Value], dict[str, _Value]]:
    image = _Value(-1, {"input": prod(reading.input)})
    values, value_of = [image], {"input": image}
    for layer in reading.layers:
        size = prod(layer.output_shape)
        if layer.kind in UNARY and not layer.unreadable:
            value = value_of[layer.name] = value_of[layer.inputs[0]]
            value.sizes[layer.name] = size
            continue
        linear = layer.name in times
        inputs = layer.inputs[:1] if linear else layer.inputs
        time = times[layer.name] if linear else max(value_of[given].made for given in inputs)
        for given in inputs:
            value_of[given].uses.append((time, given))
        value_of[layer.name] = _Value(time, {layer.name: size})
        values.append(value_of[layer.name])
    last = reading.layers[-1].name
    value_of[last].uses.append((END, last))
    return values, value_of
