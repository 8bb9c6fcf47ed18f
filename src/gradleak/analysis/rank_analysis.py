"""R-GAP's rank analysis (section 4, appendices C and D): counts from the sizes of any chain."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.models.chain import Chain, ConvLayer, Layer
from gradleak.operators.shape import ConvShape


@dataclass(frozen=True)
class LayerCount:
    """Unknowns and constraints of one layer."""

    layer: str  # name in the chain
    unknowns: int  # |x|, the layer's input, with the inputs of the skips over it
    weights: int  # |W|, gradient constraints, with those of a projection that ends here; no biases
    outputs: int  # |z|, weight constraints, with the inputs of skips that go on behind the layer
    carried: int  # number of `unknowns` that are inputs of skips
    virtual: int  # |V|, left over by earlier layers; at least 0
    virtual_printed: int  # |V| as the paper prints the sum, which may be negative
    virtual_inside: int  # left over within the skips over the layer; 0 under none
    note: str = ""  # what the counts leave out, if anything

    @property
    def local(self) -> int:
        """|x| − |W| − |z|: the layer on its own."""
        return self.unknowns - self.weights - self.outputs

    @property
    def index(self) -> int:
        """RA-i = |x| − |W| − |z| − |V|."""
        return self.local - self.virtual

    @property
    def index_printed(self) -> int:
        """RA-i with |V| as printed."""
        return self.local - self.virtual_printed

    @property
    def alone(self) -> int:
        """RA-i with the skips over it, without |V| from before them (appendix D)."""
        return self.local - self.virtual_inside


def analyse(chain: Chain) -> tuple[LayerCount, ...]:
    """Count unknowns and constraints of every layer, first to last (docs/rank_analysis.md).

    RA-i = |x_i| − |W_i| − |z_i| − |V_i| (R-GAP section 4). Skips enter as in appendix D: under a
    skip over s > 1 layers each layer carries the skip's input along, W* = [W; I], ..., [W I], or
    [W P] with a projection P, whose gradient is a constraint too. Padding adds as many unknowns as
    rows and is left out.
    """
    tally = Tally()
    for i, layer in enumerate(chain.layers):
        inputs, weights, outputs = _sizes(layer)
        carried, leaving = _carried(chain, i), outputs + _carried(chain, i + 1)
        tally.count(layer.name, inputs + carried, weights, leaving, carried, _note(layer))
    return tuple(tally.rows)


class Tally:
    """Counts of layers in the order in which they run; each passes constraints on to the next."""

    def __init__(self) -> None:
        self.rows: list[LayerCount] = []
        self._virtual = self._printed = self._inside = 0

    def count(
        self, name: str, unknowns: int, weights: int, outputs: int, carried: int, note: str
    ) -> None:
        """Add a layer; arguments as of `LayerCount`."""
        inside = self._inside if carried else 0
        left = self._virtual, self._printed, inside
        row = LayerCount(name, unknowns, weights, outputs, carried, *left, note)
        self.rows.append(row)
        missing, surplus = max(row.local, 0), max(outputs - unknowns, 0)
        self._virtual = max(self._virtual - missing, 0) + surplus
        self._inside = max(inside - missing, 0) + surplus
        self._printed += surplus - missing

    def begin_anew(self) -> None:
        """Discard constraints left over by earlier layers."""
        self._virtual = self._printed = self._inside = 0


def critical(rows: Sequence[LayerCount]) -> LayerCount:
    """Layer of the largest RA-i, the first of several; its `index` is the network's RA-i."""
    return max(rows, key=lambda row: row.index)


def network_index(chain: Chain) -> int:
    """RA-i of a network: the largest of its layers'."""
    return critical(analyse(chain)).index


def largest_alone(rows: Sequence[LayerCount]) -> LayerCount:
    """Layer of the largest `alone`, the first of several."""
    return max(rows, key=lambda row: row.alone)


def _sizes(layer: Layer) -> tuple[int, int, int]:
    """Return |x|, |W| and |z| of one layer, without what skips carry past it."""
    if not isinstance(layer, ConvLayer):
        return layer.inputs, layer.inputs * layer.outputs, layer.outputs
    weights = _parameters(layer.shape)
    # Over one layer, dJ/dP repeats the part of dJ/dW where the kernel meets the same pixels.
    if layer.projection is not None and layer.skip > 1:
        weights += _parameters(layer.projection)
    return layer.shape.unknowns, weights, layer.output


def _parameters(shape: ConvShape) -> int:
    return shape.filters * shape.channels * shape.kernel[0] * shape.kernel[1]


def _carried(chain: Chain, position: int) -> int:
    """Inputs of skips from b to e with b < `position` <= e; those of one b are shared."""
    starts = {
        end + 1 - layer.skip
        for end, layer in enumerate(chain.layers)
        if isinstance(layer, ConvLayer) and end + 1 - layer.skip < position <= end
    }
    return sum(_sizes(chain.layers[start])[0] for start in starts)


def _note(layer: Layer) -> str:
    notes = []
    if isinstance(layer, ConvLayer):
        if unseen := layer.shape.unknowns - layer.shape.covered:
            notes.append(f"{unseen} inputs meet no window")
        if layer.skip:
            through = " with a projection" if layer.projection is not None else ""
            notes.append(f"a skip over {layer.skip}{through} ends here")
    if layer.activation.name == "relu":
        notes.append("each 0 of the ReLU removes a weight constraint")
    return "; ".join(notes)
