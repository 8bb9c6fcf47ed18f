"""A network as a chain of linear layers and activations, the form that layer-wise attacks need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal

from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.locks import Lock, Locked
from gradleak.models.pools import BLOCKS, POOL, window_of
from gradleak.operators.shape import ConvShape

IDENTITY = Activation("identity")
SKIP = "_skip"  # suffix of the name of a skip's projection, after that of the layer where it ends
PaddingMode = Literal["zeros", "replicate"]
SIZES = ("filters", "kernel", "stride", "padding")  # of a `ConvSpec`; a layer's are in its `shape`


@dataclass(frozen=True)
class ConvPart:
    """A convolution of a layer, its own or its skip's projection, and the batch norm behind it."""

    name: str  # of its parameters: the layer's, or with `SKIP` appended
    back: int  # its input is that of the layer `back` − 1 places before; 1 for its own layer's
    shape: ConvShape
    bias: bool = False
    gain: float = 1.0
    padding_mode: PaddingMode = "zeros"
    normed: bool = False  # true if a batch norm follows
    lock: Lock | None = None  # source of its scale and shift; None if they are parameters

    @property
    def norm(self) -> str:
        """Name of the batch norm."""
        return f"{self.name}_norm"

    @property
    def size(self) -> tuple[int, ...]:
        """Shape (O, C, kH, kW) of its weights."""
        return (self.shape.filters, self.shape.channels, *self.shape.kernel)

    @property
    def parameters(self) -> int:
        """Number of weights and biases, including those of the batch norm or of its lock."""
        own = prod(self.size) + self.shape.filters * self.bias
        if self.lock is not None:
            return own + self.lock.parameters(self.shape.filters)
        return own + 2 * self.shape.filters * self.normed


@dataclass(frozen=True)
class ConvLayer:
    """Convolution followed by an activation; `shape` carries all sizes.

    With `skip` = s > 0 the input of the layer s − 1 places before this one is added to this
    layer's linear output: a(W x + b + x_skip). A skip of 1 adds the layer's own input. If both
    differ in size, `projection` is the skip's 1x1 convolution ``{name}_skip``, with its own batch
    norm. `pool` (``none``, ``max`` or ``average``) takes 2x2 blocks of the activation's output,
    ``max3`` the largest of 3x3 windows at stride 2, padded by 1, ``global`` the mean of all
    positions, ``max:3:3:0`` windows of that side, stride and padding (`gradleak.models.pools`).
    `norm` is ``none`` or ``batch``: the linear output is normalised, then scaled and shifted by
    ``{name}_norm``, with the batch's statistics in training and the running ones in evaluation.
    With a `lock`, scale and shift come from a client's key instead, with a `skip_lock` those of the
    projection's batch norm; a locked convolution has a batch norm whatever `norm` is.
    """

    name: str
    shape: ConvShape
    bias: bool
    activation: Activation
    skip: int = 0
    gain: float = 1.0
    pool: str = "none"
    padding_mode: PaddingMode = "zeros"
    norm: str = "none"
    projection: ConvShape | None = None
    lock: Lock | None = None
    skip_lock: Lock | None = None

    @cached_property
    def parts(self) -> tuple[ConvPart, ...]:
        """Its own convolution, then its projection."""
        bias, gain, padding = self.bias, self.gain, self.padding_mode
        own = ConvPart(self.name, 1, self.shape, bias, gain, padding, self.normed, self.lock)
        if self.projection is None:
            return (own,)
        lock, normed = self.skip_lock, self.norm != "none" or self.skip_lock is not None
        name = f"{self.name}{SKIP}"
        return own, ConvPart(name, self.skip, self.projection, normed=normed, lock=lock)

    @property
    def normed(self) -> bool:
        """True if a batch norm follows its own convolution."""
        return self.norm != "none" or self.lock is not None

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) of the layer's output, after the pool."""
        height, width = self.shape.output
        if self.pool == "global":
            return 1, 1
        window = window_of(self.pool)
        return (height, width) if window is None else (window.count(height), window.count(width))

    @property
    def output(self) -> int:
        """Number of values in the layer's output."""
        return self.shape.filters * prod(self.grid)

    @property
    def is_plain(self) -> bool:
        """True if `shape` says all: no pool, batch norm, projection or replicated padding."""
        usual = self.pool == "none" and self.padding_mode == "zeros"
        return usual and not self.normed and self.projection is None


@dataclass(frozen=True)
class LinearLayer:
    """Fully connected layer (inputs -> outputs), an activation, and `dropout` in training."""

    name: str
    inputs: int
    outputs: int
    bias: bool
    activation: Activation
    gain: float = 1.0
    dropout: float = 0.0

    @property
    def size(self) -> tuple[int, ...]:
        """Shape (outputs, inputs) of its weights."""
        return self.outputs, self.inputs


Layer = ConvLayer | LinearLayer


@dataclass(frozen=True)
class ConvSpec:
    """A convolution's entry in config; sizes follow from the layer before.

    `gain` multiplies the initial weights. `projection` puts a 1x1 convolution into the skip,
    `skip_lock` a lock behind that. The other fields are those of `ConvLayer`.
    """

    filters: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    bias: bool = False
    activation: Activation = IDENTITY
    skip: int = 0
    gain: float = 1.0
    pool: str = "none"
    padding_mode: PaddingMode = "zeros"
    norm: str = "none"
    projection: bool = False
    lock: Lock | None = None
    skip_lock: Lock | None = None


@dataclass(frozen=True)
class LinearSpec:
    """A fully connected layer's entry in config; `inputs`, if given, is checked."""

    outputs: int
    bias: bool = True
    activation: Activation = IDENTITY
    inputs: int | None = None
    gain: float = 1.0
    dropout: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Convolutions, then fully connected layers."""

    name: str  # id used in tables
    input: tuple[int, int, int]  # (C, H, W) of one image
    specs: tuple[ConvSpec | LinearSpec, ...]  # layers from first to last
    # Initialization range: initial weights and biases are uniform in ±spread; None for
    # ±1/sqrt(fan_in) of each layer.
    spread: float | None = None

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Layers with all sizes filled in, named ``conv1`` ... and ``fc1`` ...

        Raises `ConfigError` if sizes do not fit, a convolution follows a fully connected layer, or
        the last layer is not fully connected.
        """
        out: list[Layer] = []
        sizes = [self.input]
        features: int | None = None
        for spec in self.specs:
            if isinstance(spec, ConvSpec):
                if features is not None:
                    raise self._error(
                        f"convolution {len(sizes)} follows a fully connected layer; put the "
                        "convolutions first"
                    )
                layer = self._convolution(spec, sizes)
                out.append(layer)
                sizes.append((spec.filters, *layer.grid))
            else:
                inputs = prod(sizes[-1]) if features is None else features
                out.append(self._linear(spec, len(out) - len(sizes) + 2, inputs))
                features = spec.outputs
        if not out or not isinstance(out[-1], LinearLayer):
            raise self._error("the last layer must be fully connected (fc: classes)")
        return tuple(out)

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"models.{self.name}: {what}.")

    def _convolution(self, spec: ConvSpec, sizes: list[tuple[int, int, int]]) -> ConvLayer:
        """The next convolution; `sizes` are the inputs (C, H, W) of all layers up to it."""
        name, own = f"conv{len(sizes)}", vars(spec).copy()
        taken = {key: own.pop(key) for key in SIZES}
        try:
            shape = ConvShape(channels=sizes[-1][0], size=sizes[-1][1:], **taken)
        except ConfigError as error:
            reason = str(error).removeprefix("convolution: ")
            raise self._error(f"convolution {len(sizes)}: {reason}") from error
        height, width = shape.output
        if spec.pool in BLOCKS and (height % POOL or width % POOL):
            raise self._error(
                f"{name} gives {height}x{width}, which a pool of {POOL}x{POOL} does not divide; "
                "choose another image size, stride or padding"
            )
        own["projection"] = self._skip(name, spec, (spec.filters, height, width), sizes)
        return ConvLayer(name, shape, **own)

    def _linear(self, spec: LinearSpec, number: int, inputs: int) -> LinearLayer:
        if spec.inputs is not None and spec.inputs != inputs:
            raise self._error(
                f"fully connected layer {number} says inputs: {spec.inputs}, but the layers before "
                f"it give {inputs}; correct one of them"
            )
        return LinearLayer(f"fc{number}", **{**vars(spec), "inputs": inputs})

    def _skip(
        self,
        name: str,
        spec: ConvSpec,
        output: tuple[int, int, int],
        sizes: list[tuple[int, int, int]],
    ) -> ConvShape | None:
        """Projection of a skip to the linear `output`; raises if the skip's ends do not fit."""
        if spec.skip_lock is not None and not spec.projection:
            raise self._error(
                f"{name} has a lock in its skip but no projection; give it projection: true"
            )
        if spec.projection and not spec.skip:
            raise self._error(f"{name} has a projection but no skip; give it skip: n")
        if spec.skip > len(sizes):
            raise self._error(
                f"{name} has skip: {spec.skip}, but only {len(sizes)} layers end there; lower it"
            )
        start = sizes[-spec.skip] if spec.skip else output
        if not spec.projection:
            if output != start:
                raise self._error(
                    f"{name} has skip: {spec.skip}, which adds {start} to {output}; a skip needs "
                    "equal sizes, or projection: true"
                )
            return None
        stride = -(-start[1] // output[1])
        shape = ConvShape(start[0], output[0], (1, 1), (stride, stride), (0, 0), start[1:])
        if shape.output != output[1:]:
            raise self._error(
                f"{name} has a projection from {start} to {output}, which no stride of a 1x1 "
                "convolution gives; change strides or padding"
            )
        return shape

    def describe(self) -> dict[str, Any]:
        """Return the chain as a dict for JSON; `from_description` reads it back."""
        layers = [
            {"kind": "conv" if isinstance(spec, ConvSpec) else "fc", **asdict(spec)}
            for spec in self.specs
        ]
        for entry in layers:
            # Omitted if unused, as in descriptions from before skips could be locked.
            if entry.get("skip_lock") is None:
                entry.pop("skip_lock", None)
        own = {"name": self.name, "input": list(self.input)}
        return {**own, "layers": layers, "spread": self.spread}

    @staticmethod
    def from_description(content: dict[str, Any]) -> Chain:
        """Build a chain from the result of `describe`."""
        specs: list[ConvSpec | LinearSpec] = []
        for entry in content["layers"]:
            fields = {**entry, "activation": Activation(**entry["activation"])}
            if fields.pop("kind") != "conv":
                specs.append(LinearSpec(**fields))
                continue
            fields |= {key: tuple(fields[key]) for key in ("kernel", "stride", "padding")}
            for key in ("lock", "skip_lock"):
                if lock := fields.get(key):
                    fields[key] = Lock(lock["key"], Activation(**lock["activation"]))
            specs.append(ConvSpec(**fields))
        channels, height, width = content["input"]
        return Chain(content["name"], (channels, height, width), tuple(specs), content["spread"])

    @property
    def convolutions(self) -> tuple[ConvLayer, ...]:
        """The convolutional layers, first to last."""
        return tuple(layer for layer in self.layers if isinstance(layer, ConvLayer))

    @property
    def is_sequential(self) -> bool:
        """True without skip connections."""
        return not any(layer.skip for layer in self.convolutions)

    @property
    def is_plain(self) -> bool:
        """True without pools and replicated padding: each layer is a `ConvShape` or a matrix."""
        return all(layer.is_plain for layer in self.convolutions)

    @property
    def is_normalised(self) -> bool:
        """True if a layer's output depends on the other images of the batch."""
        return any(part.normed for part in self.parts)

    @property
    def parts(self) -> tuple[ConvPart, ...]:
        """The convolutions of all layers, each followed by its layer's projection."""
        return tuple(part for layer in self.convolutions for part in layer.parts)

    @property
    def locked(self) -> tuple[Locked, ...]:
        """The convolutions whose batch norm has scale and shift from a key."""
        return tuple(
            Locked(part.name, part.shape.filters, part.lock)
            for part in self.parts
            if part.lock is not None
        )

    @property
    def has_dropout(self) -> bool:
        """True if a client's forward pass is random."""
        return any(isinstance(layer, LinearLayer) and layer.dropout for layer in self.layers)

    @property
    def is_homogeneous(self) -> bool:
        """True if f(s·x) = s·f(x) for s > 0: no biases, and piecewise linear activations."""
        return not self.is_normalised and all(
            a.activation.is_homogeneous and not a.bias for a in self.layers
        )

    @property
    def is_kinked(self) -> bool:
        """True if an activation has a kink, where gradients jump."""
        return any(layer.activation.is_kinked for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Number of weights and biases of all layers."""
        linear = (layer for layer in self.layers if isinstance(layer, LinearLayer))
        own = sum(layer.outputs * (layer.inputs + layer.bias) for layer in linear)
        return own + sum(part.parameters for part in self.parts)

    @property
    def classes(self) -> int:
        """Number of outputs of the last layer."""
        last = self.layers[-1]
        assert isinstance(last, LinearLayer)
        return last.outputs
