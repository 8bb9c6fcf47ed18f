"""R-GAP's rank analysis of any graph of layers: unknowns and constraints, skips and branches too.

`gradleak.rank_analysis` counts chains. Here the order is that in which layers run, and what a skip
or a branch needs later is carried along beside each layer until then, as in R-GAP's appendix D:
W* = [W 0; 0 I]. Both give the same numbers for a chain whose skips have no projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from gradleak.auditing.reading import Reading

# Steps that act on one value: what leaves them is the same value, in another form or size.
UNARY = (
    "norm",
    "activation",
    "pool",
    "offset",
    "affine",
    "reshape",
    "dropout",
    "log_softmax",
)
END = 10**9


@dataclass(frozen=True)
class Count:
    """Unknowns and constraints of one readable layer; attributes as of R-GAP's rank analysis.

    Attributes
    ----------
    layer
        Its name.
    unknowns
        |x|, with the values that are carried past the layer.
    weights
        |W|.
    outputs
        |z|, with the values that are carried on behind it.
    carried
        How many of `unknowns` are carried.
    virtual
        |V|, what earlier layers leave over; at least 0.
    note
        What the counts leave out.
    """

    layer: str
    unknowns: int
    weights: int
    outputs: int
    carried: int
    virtual: int
    note: str = ""

    @property
    def index(self) -> int:
        """RA-i = |x| − |W| − |z| − |V|  (R-GAP section 4)."""
        return self.unknowns - self.weights - self.outputs - self.virtual


@dataclass
class _Value:
    """What one layer gives: when it is there, what takes it and when, in which sizes."""

    made: int
    sizes: dict[str, int]
    uses: list[tuple[int, str]] = field(default_factory=list)

    def size(self) -> int:
        """Its size as it is taken; the smallest, as the others follow from it or lie before."""
        return min(self.sizes[name] for _, name in self.uses) if self.uses else 0

    def lasts(self, time: int) -> bool:
        """Whether something after `time` needs it."""
        return any(use > time for use, _ in self.uses)


def counts(reading: Reading) -> tuple[Count, ...]:
    """Count unknowns and constraints of every readable layer, in the order in which they run.

    Behind a layer that no linear system describes |V| begins at 0 again.
    """
    order = [layer.name for layer in reading.layers if layer.is_linear]
    values, value_of = _values(reading, {name: time for time, name in enumerate(order)})
    rows, virtual, notes = [], 0, _notes(reading)
    for time, name in enumerate(order):
        layer = reading.named(name)
        own = value_of[layer.inputs[0]]
        if name in notes:
            virtual = 0
        carried = sum(
            value.size()
            for value in values
            if value is not own and value.made < time and value.lasts(time - 1)
        )
        unknowns = prod(layer.input_shape) + carried
        outputs = sum(v.size() for v in values if v.made <= time and v.lasts(time))
        row = Count(name, unknowns, layer.weights, outputs, carried, virtual, notes.get(name, ""))
        rows.append(row)
        missing = max(unknowns - layer.weights - outputs, 0)
        virtual = max(virtual - missing, 0) + max(outputs - unknowns, 0)
    return tuple(rows)


def critical(rows: Sequence[Count]) -> Count:
    """Layer of the largest RA-i, the first of several; its `index` is the network's RA-i."""
    return max(rows, key=lambda row: row.index)


def _values(reading: Reading, times: Mapping[str, int]) -> tuple[list[_Value], dict[str, _Value]]:
    """All values, and the one that each layer gives."""
    image = _Value(-1, {"input": prod(reading.input)})
    values, value_of = [image], {"input": image}
    for layer in reading.layers:
        size = prod(layer.output_shape)
        if layer.kind in UNARY and not layer.unreadable:
            value = value_of[layer.inputs[0]]
            value.sizes[layer.name] = size
            value_of[layer.name] = value
            continue
        if layer.name in times:
            time = times[layer.name]
            value_of[layer.inputs[0]].uses.append((time, layer.inputs[0]))
        else:
            time = max(value_of[given].made for given in layer.inputs)
            for given in layer.inputs:
                value_of[given].uses.append((time, given))
        value_of[layer.name] = _Value(time, {layer.name: size})
        values.append(value_of[layer.name])
    last = reading.layers[-1].name
    value_of[last].uses.append((END, last))
    return values, value_of


def _notes(reading: Reading) -> dict[str, str]:
    """Layers before which something unreadable was met, and a sentence on it."""
    out, met = {}, ""
    for layer in reading.layers:
        if layer.unreadable:
            met = layer.name
        elif layer.is_linear and met:
            out[layer.name] = f"counts begin anew behind {met}"
            met = ""
    return out
