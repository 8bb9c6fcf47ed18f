"""Convert a traced network into a `Chain`, which closed-form attacks need."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.errors import ConfigError, NotApplicable
from gradleak.models.activations import Activation
from gradleak.models.build import EPSILON, load
from gradleak.models.chain import (
    IDENTITY,
    SKIP,
    Chain,
    ConvSpec,
    LinearLayer,
    LinearSpec,
    PaddingMode,
)
from gradleak.models.pools import BLOCKS, GLOBAL, Kind, Window
from gradleak.reading.fx_graph import ACTIVATIONS, ADDITIONS, DIVISIONS, Layer, Reading
from gradleak.reading.gradients import passing
from gradleak.reading.layer_names import told
from gradleak.reading.layer_rows import Obstacle
from gradleak.reading.preprocessing import Preprocessing, is_given, preprocessing

# Largest difference of outputs, relative to their size, between a network and its chain.
TOLERANCE = 1e-4
ARRAYS = ("weight", "bias", "running_mean", "running_var")
Spec = ConvSpec | LinearSpec


@dataclass(frozen=True)
class Converted:
    """A chain equivalent to a module."""

    chain: Chain
    names: Mapping[str, str]  # parameter name in the module for each array of the chain
    layers: tuple[str, ...]  # module path of each layer of the chain, in order
    before: Preprocessing | None = None  # preprocessing of the image ahead of the chain

    def weights(self, module: nn.Module) -> dict[str, np.ndarray]:
        """Return the module's weights as float32 arrays of the chain."""
        state = ((name, value.detach().cpu()) for name, value in module.state_dict().items())
        return self.arrays({name: value.float().numpy() for name, value in state})

    def arrays(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return values by parameter of the module as arrays of the chain; others are left out."""
        rows = {f"{x.name}.weight" for x in self.chain.layers if isinstance(x, LinearLayer)}
        out = {own: values[name] for own, name in self.names.items() if name in values}
        return {own: v.reshape(len(v), -1) if own in rows else v for own, v in out.items()}


def convert(
    reading: Reading, module: nn.Module, name: str, loss: str = "cross_entropy"
) -> Converted:
    """Convert a network into a chain.

    Under cross-entropy a final log-softmax is dropped: the loss of log-probabilities equals that of
    the logits. Raises `NotApplicable`, naming the layer and the reason, if the network is not a
    chain of convolutions and fully connected layers.
    """
    walk = _Walk(reading, loss)
    for layer in reading.layers:
        walk.take(layer)
    chain = Chain(name, reading.input, walk.finish())
    own_names = tuple(parts[""] for parts in walk.modules)
    try:
        layers = chain.layers
    except ConfigError as error:
        raise NotApplicable(told(str(error), chain, own_names)) from error
    names = {
        f"{own.name}{part}.{kind}": f"{path}.{kind}"
        for own, parts in zip(layers, walk.modules, strict=True)
        for part, path in parts.items()
        for kind in module.get_submodule(path).state_dict()
        if kind in ARRAYS
    }
    found = Converted(chain, names, own_names, walk.before)
    _check_same(found, module, reading.layers[-1].kind == "log_softmax")
    return found


def obstacles(reading: Reading, loss: str = "cross_entropy") -> tuple[Obstacle, ...]:
    """Return all reasons why `convert` refuses a network that its layers give, each once.

    Behind a refused layer the walk goes on as if that layer passed on what it takes.
    """
    walk, found = _Walk(reading, loss), list[str]()
    for layer in reading.layers:
        try:
            walk.take(layer)
        except NotApplicable as error:
            found.append(str(error))
            walk.pass_on(layer)
    try:
        walk.finish()
    except NotApplicable as error:
        found.append(str(error))
    by_reason: dict[str, list[str]] = {}
    names = {layer.name: f"({layer.detail}) " for layer in reading.layers}
    for text in found:
        subject, _, rest = text.partition(" ")
        owner = [subject] if subject in names else []
        reason = rest.removeprefix(names[subject]) if owner else text
        own = by_reason.setdefault(reason, [])
        own += [name for name in owner if name not in own]
    return tuple(Obstacle(layers=tuple(own), reason=why) for why, own in by_reason.items())


def _check_same(found: Converted, module: nn.Module, logarithms: bool) -> None:
    """Refuse a chain whose outputs differ from the module's, log-softmax left out."""
    weights = found.weights(module)
    images = np.random.default_rng(0).random((2, *found.chain.input), dtype=np.float32)
    taken = images if found.before is None else found.before(images)
    with torch.no_grad(), passing(module, "evaluation"):
        ours = load(found.chain, weights, torch.float32)(torch.from_numpy(taken).float())
        theirs = module(torch.from_numpy(images).to(next(module.parameters()))).float().cpu()
    if logarithms:
        ours = functional.log_softmax(ours, 1)
    if not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * float(theirs.abs().max())):
        raise NotApplicable(
            "The network gives other outputs than the chain that was read from it, so one of its "
            "layers does more than its type says."
        )


@dataclass
class _Pending:
    """A convolution or fully connected layer whose activation has not been reached yet."""

    source: int  # number of the layer whose output is its input
    spec: Spec
    modules: dict[str, str]  # module paths of its parts


@dataclass
class _Walk:
    """Visits layers in order; each one gives the output of a finished layer, or a pending layer."""

    reading: Reading
    loss: str
    specs: list[Spec] = field(default_factory=list)
    modules: list[dict[str, str]] = field(default_factory=list)
    # By layer of the reading: the number of the finished layer whose output it gives (0 is the
    # image), or a pending layer.
    given: dict[str, int | _Pending] = field(default_factory=lambda: {"input": 0})
    before: Preprocessing | None = None

    def take(self, layer: Layer) -> None:
        """Process one layer."""
        step, why = getattr(self, f"_{layer.kind}", None), layer.unreadable
        if not why and layer.groups > 1:
            why = f"{layer.name} is a convolution in groups, which a chain does not have."
        if step is None or why:
            raise NotApplicable(
                why
                or f"{layer} cannot be a step of a chain: a chain has convolutions, fully "
                "connected layers, batch norms, activations, pools and skips."
            )
        self.given[layer.name] = step(layer)

    def pass_on(self, layer: Layer) -> None:
        """Take a refused layer for one that gives its input, or the last of several."""
        for name in layer.inputs:
            if len(layer.inputs) > 1:
                with suppress(NotApplicable):
                    self._finished(name)
        alone = len(layer.inputs) == 1
        self.given[layer.name] = self.given[layer.inputs[0]] if alone else len(self.specs)

    def finish(self) -> tuple[Spec, ...]:
        """Return all layers; the last must be fully connected, or an equivalent convolution."""
        self._finished(self.reading.layers[-1].name)
        for place in reversed(range(len(self.specs))):
            spec, shape = self.specs[place], self.reading.named(self.modules[place][""]).shape
            # One window that holds each value once makes a matrix.
            whole = shape is not None and (shape.kernel, shape.padding) == (shape.size, (0, 0))
            if not isinstance(spec, ConvSpec) or not whole or not _is_bare(spec):
                break
            self.specs[place] = LinearSpec(spec.filters, spec.bias, spec.activation)
        if self.specs and not isinstance(self.specs[-1], LinearSpec):
            last = self.modules[-1][""]
            how = "its pool follows it" if self.specs[-1].pool != "none" else "it is none"
            raise NotApplicable(
                f"{last} is the last layer with weights, where a chain has a fully connected one, "
                f"or a convolution whose kernel covers its whole input: {how}."
            )
        return tuple(self.specs)

    def _finished(self, name: str, activation: Activation = IDENTITY) -> int:
        """Return the number of the layer whose output is `name`, finishing it if pending."""
        value = self.given[name]
        if isinstance(value, int):
            return value
        if value.source != len(self.specs):
            raise NotApplicable(
                f"{name} is on a branch of its own: its input is not the output of the layer "
                "before it."
            )
        self.specs.append(replace(value.spec, activation=activation))
        self.modules.append(value.modules)
        number = len(self.specs)
        self.given |= {key: number for key, other in self.given.items() if other is value}
        return number

    def _pending(self, layer: Layer) -> _Pending:
        value = self.given[layer.inputs[0]]
        if not isinstance(value, _Pending):
            raise NotApplicable(
                f"{layer} does not follow a convolution or a fully connected layer directly."
            )
        self._check_sole(layer.inputs[0])
        return value

    def _check_sole(self, before: str) -> None:
        if len(takers := self._takers(before)) > 1:
            raise NotApplicable(
                f"{before} feeds both {takers[0]} and {takers[1]}, before its activation."
            )

    def _takers(self, name: str) -> list[str]:
        return [layer.name for layer in self.reading.layers if name in layer.inputs]

    def _conv(self, layer: Layer) -> _Pending:
        own, shape = layer.module, layer.shape
        assert isinstance(own, nn.Conv2d) and shape is not None
        padding: PaddingMode = "replicate" if own.padding_mode == "replicate" else "zeros"
        sizes = shape.filters, shape.kernel, shape.stride, shape.padding
        spec = ConvSpec(*sizes, bias=own.bias is not None, padding_mode=padding)
        return _Pending(self._finished(layer.inputs[0]), spec, {"": layer.name})

    def _linear(self, layer: Layer) -> _Pending:
        own = layer.module
        assert isinstance(own, nn.Linear)
        if layer.shape is not None:
            at = f"{layer.shape.size[0]} places of an image"
            raise NotApplicable(f"{layer.name} is a fully connected layer at {at}.")
        spec = LinearSpec(own.out_features, bias=own.bias is not None)
        return _Pending(self._finished(layer.inputs[0]), spec, {"": layer.name})

    def _norm(self, layer: Layer) -> _Pending:
        own, value = layer.module, self._pending(layer)
        if not isinstance(own, nn.BatchNorm2d) or not own.affine or own.eps != EPSILON:
            wanted = f"nn.BatchNorm2d with eps {EPSILON:g} and its own weights"
            raise NotApplicable(f"{layer} is not an {wanted}.")
        spec = value.spec
        if not isinstance(spec, ConvSpec) or not _is_bare(spec):
            raise NotApplicable(f"{layer.name} does not follow a convolution directly.")
        modules = {**value.modules, "_norm": layer.name}
        return _Pending(value.source, replace(spec, norm="batch"), modules)

    def _add(self, layer: Layer) -> _Pending:
        if len(layer.inputs) != 2:
            raise NotApplicable(f"{layer.name} adds {len(layer.inputs)} values, not two.")
        if layer.what not in ADDITIONS:
            raise NotApplicable(f"{layer.name} subtracts a value; skips of a chain are added.")
        values = [self.given[name] for name in layer.inputs]
        here, ends = len(self.specs), []
        for name, value in zip(layer.inputs, values, strict=True):
            if isinstance(value, _Pending):
                self._check_sole(name)
                end = value.spec
                bare = isinstance(end, ConvSpec) and (end.skip, end.pool) == (0, "none")
                if isinstance(end, ConvSpec) and bare and value.source == here:
                    ends.append((end.kernel, value, end))
        if not ends:
            raise NotApplicable(
                f"{layer.name} adds values none of which is a convolution's output before its "
                "activation, where a chain's skips end."
            )
        # Where both branches are convolutions of the same input, the 1x1 one is the projection.
        _, main, spec = max(ends, key=lambda end: end[0])
        (other,) = [value for value in values if value is not main]
        if not isinstance(other, _Pending):
            return _Pending(here, replace(spec, skip=here + 1 - other), dict(main.modules))
        side = other.spec
        narrow = isinstance(side, ConvSpec) and (side.kernel, side.padding) == ((1, 1), (0, 0))
        if not isinstance(side, ConvSpec) or not narrow or side.bias or side.norm != spec.norm:
            raise NotApplicable(
                f"{layer.name} adds a branch that is not a 1x1 convolution without bias, with a "
                "norm where the main branch has one."
            )
        parts = {f"{SKIP}{part}": path for part, path in other.modules.items()}
        spec = replace(spec, skip=here + 1 - other.source, projection=True)
        return _Pending(here, spec, main.modules | parts)

    def _activation(self, layer: Layer) -> int:
        if (name := ACTIVATIONS.get(layer.what)) is None:
            raise NotApplicable(f"{layer} is an activation that no closed form inverts.")
        slope = layer.option("negative_slope", 1, 0.01) if name == "leaky_relu" else 0.01
        self._pending(layer)
        return self._finished(layer.inputs[0], Activation(name, float(slope)))

    def _pool(self, layer: Layer) -> int | _Pending:
        before, kind = layer.inputs[0], _pool_kind(layer)
        value = self.given[before]
        if kind is None:
            return self._finished(before)

        def pooled(spec: Spec) -> ConvSpec:
            if not isinstance(spec, ConvSpec) or spec.pool != "none":
                raise NotApplicable(f"{layer.name} pools what is pooled already.")
            return replace(spec, pool=kind)

        if isinstance(value, _Pending) and kind.startswith("max"):
            # The maximum commutes with an activation, which may follow.
            return replace(value, spec=pooled(self._pending(layer).spec))
        number = self._finished(before)
        if number != len(self.specs) or not number:
            raise NotApplicable(f"{layer.name} pools something other than a convolution's output.")
        self._check_sole(before)
        self.specs[number - 1] = pooled(self.specs[number - 1])
        return number

    def _affine(self, layer: Layer) -> int:
        """Process a·x + b, which a chain allows only ahead of its first layer."""
        before = layer.inputs[0]
        alone = self.given[before] == 0 and len(self._takers(before)) == 1
        if alone and layer.output_shape == self.reading.input:
            traced = self.reading.module
            assert traced is not None
            if not is_given(traced, layer.node):
                raise NotApplicable(f"{layer} changes the image by weights.")
            self.before = preprocessing(traced, layer.node, self.reading.input)
            if self.before is not None:
                return 0
        raise NotApplicable(
            f"{layer} scales or shifts values, which a chain does with the whole image alone, "
            "before its first layer."
        )

    _offset = _affine

    def _log_softmax(self, layer: Layer) -> int:
        if self.loss != "cross_entropy":
            raise NotApplicable(
                f"{layer.name} is a log-softmax at the end, which belongs to the loss "
                "cross_entropy alone; with loss cross_entropy the gradient is that of nll_loss."
            )
        return self._finished(layer.inputs[0])

    def _reshape(self, layer: Layer) -> int:
        if (part := layer.kind == "part") or layer.what in DIVISIONS:
            does = "takes a part of the values" if part else "divides values into parts"
            raise NotApplicable(f"{layer} {does}, which no step of a chain does.")
        moves = layer.what in (torch.permute, torch.transpose, "permute", "transpose")
        if sum(side != 1 for side in layer.output_shape) > 1 or moves:
            raise NotApplicable(f"{layer} does more than flatten an image.")
        return self._finished(layer.inputs[0])

    _part = _reshape

    def _dropout(self, layer: Layer) -> int:
        # A function may be told to do nothing in either mode.
        idle = layer.module is None and not layer.option("training", 2, True)
        rate, number = layer.option("p", 1, 0.5), self._finished(layer.inputs[0])
        if idle or rate == 0:
            return number
        spec = self.specs[number - 1] if number else None
        if not isinstance(spec, LinearSpec) or number != len(self.specs):
            raise NotApplicable(
                f"{layer.name} drops values of something other than a fully connected layer."
            )
        self.specs[number - 1] = replace(spec, dropout=float(rate))
        return number


def _is_bare(spec: ConvSpec) -> bool:
    return (spec.norm, spec.skip, spec.pool) == ("none", 0, "none")


def _pool_kind(layer: Layer) -> str | None:
    """Return the chain's name for a pooling layer; None if it changes nothing."""
    adaptive = layer.what in (nn.AdaptiveAvgPool2d, functional.adaptive_avg_pool2d)
    if adaptive and layer.output_shape == layer.input_shape:
        return None
    if (adaptive or layer.what in ("mean", torch.mean)) and layer.output_shape[1:] in ((1, 1), ()):
        return GLOBAL
    if adaptive and (shared := _divided(layer)):
        return Window("average", shared, shared).pool
    means = layer.what in (nn.AvgPool2d, functional.avg_pool2d)
    if means or layer.what in (nn.MaxPool2d, functional.max_pool2d, torch.max_pool2d):
        settings = _settings(layer, means=means)
        if settings is not None:
            return _pool_name("average" if means else "max", settings, layer.input_shape[1:])
    raise NotApplicable(
        f"{layer} is no pool that a step can be: max or average over square windows, without "
        "dilation or ceil_mode, or the average of all."
    )


def _pool_name(kind: Kind, settings: tuple[int, int, int], size: tuple[int, ...]) -> str:
    side, stride, padding = settings
    if kind == "average" and settings[::2] == (size[0], 0) and size[0] == size[1]:
        return GLOBAL
    window = Window(kind, side, stride, padding)
    if window.pool in BLOCKS and any(window.loses(length) for length in size):
        return f"{kind}:{side}:{stride}:{padding}"  # not as blocks, which divide an image
    return window.pool


def _divided(layer: Layer) -> int:
    """Side of the blocks of an adaptive pool; 0 if they differ or overlap."""
    (height, width), (down, across) = layer.input_shape[1:], layer.output_shape[1:]
    same = height % down == width % across == 0 and height // down == width // across
    return height // down if same else 0


def _both(value: Any) -> tuple[int, int]:
    """Sizes along both axes, as PyTorch takes them: a number, or a list or tuple of one or two."""
    sizes = tuple(value) if isinstance(value, list | tuple) else (value,)
    return sizes[0], sizes[-1]


def _settings(layer: Layer, *, means: bool) -> tuple[int, int, int] | None:
    """Kernel, stride and padding of a pool; None if it is anisotropic or has other options."""
    kernel = layer.option("kernel_size", 1, None)
    found = kernel, layer.option("stride", 2, None) or kernel, layer.option("padding", 3, 0)
    sides = [_both(value) for value in found]
    if means:
        more = layer.option("ceil_mode", 4, False) or layer.option("divisor_override", 6, None)
        counts_zeros = layer.option("count_include_pad", 5, True)
        more = more or not (counts_zeros or sides[2] == (0, 0))
    else:
        more = _both(layer.option("dilation", 4, 1)) != (1, 1)
        more = more or layer.option("ceil_mode", 5, False)
    if more or any(down != across for down, across in sides):
        return None
    kernel, stride, padding = (side[0] for side in sides)
    return kernel, stride, padding
