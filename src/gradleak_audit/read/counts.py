"""R-GAP's rank analysis for any graph of layers, with skips and branches.

`gradleak.analysis.rank_analysis` counts chains. Here layers count in the order in which they run,
and values that skips or branches need later are carried along beside each layer, as in R-GAP's
appendix D: W* = [W 0; 0 I]. Both agree for chains whose skips have no projection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from gradleak.analysis.rank_analysis import LayerCount, Tally
from gradleak_audit.read.fx_graph import Reading

# Elementwise operations and reshapes: the output carries the same values as the input.
UNARY = ["norm", "activation", "pool", "offset", "affine", "reshape", "dropout", "log_softmax"]
END = 10**9


@dataclass
class _Value:
    """Output of one layer: when it is made, and its uses with their times and sizes."""

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
    """Return all values, and the value each layer gives."""
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
