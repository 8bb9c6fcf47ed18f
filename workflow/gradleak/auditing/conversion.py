"""From a reading to a `Chain`, where the network is one: what the closed forms walk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional

from gradleak.auditing.reading import ACTIVATIONS, Layer, Reading
from gradleak.errors import ConfigError, NotApplicable
from gradleak.matching.branch_layers import EPSILON
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import IDENTITY, POOL, Chain, ConvSpec, LinearSpec
from gradleak.models.parts import SKIP

# Largest difference of outputs, relative to their size, between a network and its chain.
TOLERANCE = 1e-4
PARAMETERS = ("weight", "bias")
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Converted:
    """A chain that computes what a module computes.

    Attributes
    ----------
    chain
        The network, as attacks know it.
    names
        The module's name of each array of the chain: parameters, and running statistics of norms.
    layers
        The module's name of each layer of the chain, in order.
    """

    chain: Chain
    names: Mapping[str, str]
    layers: tuple[str, ...]

    def weights(self, module: nn.Module) -> dict[str, np.ndarray]:
        """Arrays of the chain, float32, as the module holds them."""
        state = module.state_dict()
        return {own: state[name].detach().cpu().float().numpy() for own, name in self.names.items()}


def convert(reading: Reading, module: nn.Module, name: str) -> Converted:
    """The chain of a network.

    Parameters
    ----------
    reading, module
        The network and its layers.
    name
        Of the chain.

    Raises
    ------
    NotApplicable
        If the network is no chain of convolutions and fully connected layers; names the layer and
        says why.
    """
    walk = _Walk(reading, module)
    for layer in reading.layers:
        walk.take(layer)
    specs = walk.finish()
    chain = Chain(name, reading.input, specs)
    try:
        layers = chain.layers
    except ConfigError as error:
        raise NotApplicable(str(error).removeprefix(f"models.{name}: ")) from error
    names: dict[str, str] = {}
    for own, parts in zip(layers, walk.modules, strict=True):
        for part, path in parts.items():
            names |= _arrays(module, f"{own.name}{part}", path)
    found = Converted(chain, names, tuple(parts[""] for parts in walk.modules))
    _check_same(found, module)
    return found


def _arrays(module: nn.Module, own: str, path: str) -> dict[str, str]:
    """Names of a part's arrays in the chain, and in the module."""
    state = module.get_submodule(path).state_dict()
    kinds = [kind for kind in (*PARAMETERS, *STATISTICS) if kind in state]
    return {f"{own}.{kind}": f"{path}.{kind}" for kind in kinds}


def _check_same(found: Converted, module: nn.Module) -> None:
    """Refuse a chain that does not compute what the module does."""
    weights = found.weights(module)
    images = torch.from_numpy(
        np.random.default_rng(0).random((2, *found.chain.input), dtype=np.float32)
    )
    parameter = next(module.parameters())
    training = module.training
    with torch.no_grad():
        ours = load(found.chain, weights, torch.float32)(images)
        theirs = module.eval()(images.to(parameter)).float().cpu()
    module.train(training)
    if not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * float(theirs.abs().max())):
        raise NotApplicable(
            f"{found.chain.name} gives other outputs than the chain that was read from it, so one "
            "of its layers does more than its type says."
        )


@dataclass
class _Pending:
    """A convolution or fully connected layer that has not met its activation yet."""

    source: int
    spec: ConvSpec | LinearSpec
    modules: dict[str, str]

    @property
    def kernel(self) -> tuple[int, int]:
        """Sides of a convolution's kernel."""
        return self.spec.kernel if isinstance(self.spec, ConvSpec) else (0, 0)


@dataclass
class _Walk:
    """Takes layers in their order; what each gives is the output of a layer, or pending."""

    reading: Reading
    module: nn.Module
    specs: list[ConvSpec | LinearSpec] = field(default_factory=list)
    modules: list[dict[str, str]] = field(default_factory=list)
    # What each layer of the reading gives: the number of a finished layer (0 is the image), or a
    # pending one.
    given: dict[str, int | _Pending] = field(default_factory=lambda: {"input": 0})

    def take(self, layer: Layer) -> None:
        """Follow one layer."""
        if layer.unreadable:
            raise NotApplicable(layer.unreadable)
        if layer.groups > 1:
            raise NotApplicable(f"{layer.name} is a convolution in {layer.groups} groups.")
        step = getattr(self, f"_{layer.kind}", None)
        if step is None:
            raise NotApplicable(f"{layer.name} ({layer.detail}) is no step of a chain.")
        self.given[layer.name] = step(layer)

    def finish(self) -> tuple[ConvSpec | LinearSpec, ...]:
        """All layers; the last one must be fully connected."""
        last = self.reading.layers[-1]
        self._finished(last.name)
        if not isinstance(self.specs[-1], LinearSpec):
            raise NotApplicable(f"{last.name} is the last layer, but it is not fully connected.")
        return tuple(self.specs)

    def _finished(self, name: str, activation: Activation = IDENTITY) -> int:
        """Number of the layer whose output `name` is, which ends here if it is pending."""
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
        for key, other in self.given.items():
            if other is value:
                self.given[key] = number
        return number

    def _own(self, layer: Layer) -> nn.Module | None:
        """Module of a layer; None for a function."""
        node = self.reading.nodes[layer.name]
        return self.module.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _pending(self, layer: Layer) -> _Pending:
        """The convolution or fully connected layer that `layer` goes on with, and nothing else."""
        before = layer.inputs[0]
        value = self.given[before]
        if not isinstance(value, _Pending):
            raise NotApplicable(
                f"{layer.name} ({layer.detail}) does not follow a convolution or a fully connected "
                "layer directly."
            )
        self._check_sole(layer, before)
        return value

    def _check_sole(self, layer: Layer, before: str) -> None:
        others = [one.name for one in self.reading.layers if before in one.inputs]
        if len(others) > 1:
            raise NotApplicable(
                f"{before} is taken by {others[0]} and by {others[1]}, before its activation."
            )

    def _conv(self, layer: Layer) -> _Pending:
        own = self._own(layer)
        assert isinstance(own, nn.Conv2d) and layer.shape is not None
        source = self._finished(layer.inputs[0])
        shape = layer.shape
        spec = ConvSpec(
            shape.filters,
            shape.kernel,
            shape.stride,
            shape.padding,
            bias=own.bias is not None,
            padding_mode="replicate" if own.padding_mode == "replicate" else "zeros",
        )
        return _Pending(source, spec, {"": layer.name})

    def _linear(self, layer: Layer) -> _Pending:
        own = self._own(layer)
        assert isinstance(own, nn.Linear)
        if layer.shape is not None:
            raise NotApplicable(
                f"{layer.name} is fully connected at {layer.shape.size[0]} places of an image."
            )
        source = self._finished(layer.inputs[0])
        spec = LinearSpec(own.out_features, bias=own.bias is not None)
        return _Pending(source, spec, {"": layer.name})

    def _norm(self, layer: Layer) -> _Pending:
        own, value = self._own(layer), self._pending(layer)
        if not isinstance(own, nn.BatchNorm2d) or not own.affine or own.eps != EPSILON:
            raise NotApplicable(
                f"{layer.name} ({layer.detail}) is another norm than nn.BatchNorm2d with eps "
                f"{EPSILON:g} and weights of its own."
            )
        spec = value.spec
        if (
            not isinstance(spec, ConvSpec)
            or spec.norm != "none"
            or spec.skip
            or spec.pool != "none"
        ):
            raise NotApplicable(f"{layer.name} does not follow a convolution directly.")
        modules = {**value.modules, "_norm": layer.name}
        return _Pending(value.source, replace(spec, norm="batch"), modules)

    def _add(self, layer: Layer) -> _Pending:
        if len(layer.inputs) != 2:
            raise NotApplicable(f"{layer.name} adds {len(layer.inputs)} values, not two.")
        values = [self.given[name] for name in layer.inputs]
        here, ends = len(self.specs), []
        for name, value in zip(layer.inputs, values, strict=True):
            if not isinstance(value, _Pending):
                continue
            self._check_sole(layer, name)
            end = value.spec
            plain = isinstance(end, ConvSpec) and end.pool == "none" and not end.skip
            if plain and value.source == here:
                ends.append(value)
        if not ends:
            raise NotApplicable(f"{layer.name} adds something else than a skip to a convolution.")
        # Of two convolutions of one input the 1x1 is the projection.
        main = max(ends, key=lambda end: end.kernel)
        (other,) = [value for value in values if value is not main]
        assert isinstance(main.spec, ConvSpec)
        start = other.source if isinstance(other, _Pending) else other
        modules, spec = dict(main.modules), replace(main.spec, skip=here + 1 - start)
        if isinstance(other, _Pending):
            spec = self._projected(layer, spec, other)
            modules |= {f"{SKIP}{part}": path for part, path in other.modules.items()}
        return _Pending(here, spec, modules)

    def _projected(self, layer: Layer, spec: ConvSpec, other: _Pending) -> ConvSpec:
        skip = other.spec
        fits = (
            isinstance(skip, ConvSpec)
            and skip.kernel == (1, 1)
            and skip.padding == (0, 0)
            and not skip.bias
            and skip.norm == spec.norm
        )
        if not fits:
            raise NotApplicable(
                f"{layer.name} adds a branch that is no 1x1 convolution without bias, with a norm "
                "where the main branch has one."
            )
        return replace(spec, projection=True)

    def _activation(self, layer: Layer) -> int:
        own, node = self._own(layer), self.reading.nodes[layer.name]
        name = ACTIVATIONS.get(type(own) if own is not None else node.target)
        if name is None:
            raise NotApplicable(
                f"{layer.name} ({layer.detail}) is an activation that no closed form opens."
            )
        slope = own.negative_slope if isinstance(own, nn.LeakyReLU) else 0.01
        if own is None and name == "leaky_relu":
            slope = _argument(node, 1, "negative_slope", slope)
        self._pending(layer)
        return self._finished(layer.inputs[0], Activation(name, float(slope)))

    def _pool(self, layer: Layer) -> int | _Pending:
        before, kind = (
            layer.inputs[0],
            _pool_kind(layer, self.reading.nodes[layer.name], self._own(layer)),
        )
        value = self.given[before]
        if kind is None:
            return self._finished(before)
        if isinstance(value, _Pending) and kind.startswith("max"):
            # The largest value stays the largest behind an activation, which may follow.
            spec = self._pooled(layer, self._pending(layer).spec, kind)
            return _Pending(value.source, spec, value.modules)
        number = self._finished(before)
        if number != len(self.specs) or not number:
            raise NotApplicable(f"{layer.name} pools something else than a convolution's output.")
        self._check_sole(layer, before)
        self.specs[number - 1] = self._pooled(layer, self.specs[number - 1], kind)
        return number

    def _pooled(self, layer: Layer, spec: ConvSpec | LinearSpec, kind: str) -> ConvSpec:
        if not isinstance(spec, ConvSpec) or spec.pool != "none":
            raise NotApplicable(f"{layer.name} pools what is pooled already.")
        return replace(spec, pool=kind)

    def _reshape(self, layer: Layer) -> int:
        target = self.reading.nodes[layer.name].target
        moves = target in (torch.permute, torch.transpose, "permute", "transpose")
        if len(layer.output_shape) != 1 or moves:
            raise NotApplicable(f"{layer.name} ({layer.detail}) does more than flatten an image.")
        return self._finished(layer.inputs[0])

    def _dropout(self, layer: Layer) -> int:
        own, node = self._own(layer), self.reading.nodes[layer.name]
        rate = own.p if isinstance(own, nn.Dropout) else _argument(node, 1, "p", 0.5)
        if own is None and not _argument(node, 2, "training", True):
            rate = 0  # traced in evaluation mode
        number = self._finished(layer.inputs[0])
        spec = self.specs[number - 1] if number else None
        if rate == 0:
            return number
        if not isinstance(spec, LinearSpec) or number != len(self.specs):
            raise NotApplicable(
                f"{layer.name} drops values of something else than a fully connected layer."
            )
        self.specs[number - 1] = replace(spec, dropout=float(rate))
        return number


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    """An argument of a function's call."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _pool_kind(layer: Layer, node: fx.Node, own: nn.Module | None) -> str | None:
    """Which of a chain's pools a layer is; None if it changes nothing."""
    what = type(own) if own is not None else node.target
    adaptive = what in (nn.AdaptiveAvgPool2d, functional.adaptive_avg_pool2d)
    if adaptive and layer.output_shape == layer.input_shape:
        return None
    mean = adaptive or what in ("mean", torch.mean)
    if mean and layer.output_shape[1:] in ((1, 1), ()):
        return "global"
    averages = what in (nn.AvgPool2d, functional.avg_pool2d)
    if averages or what in (nn.MaxPool2d, functional.max_pool2d, torch.max_pool2d):
        settings = _settings(node, own)
        known = {(POOL, POOL, 0): "average" if averages else "max"}
        if averages:
            known[layer.input_shape[1], layer.input_shape[1], 0] = "global"
        else:
            known[3, POOL, 1] = "max3"
        if settings in known:
            return known[settings]
    raise NotApplicable(
        f"{layer.name} ({layer.detail}) is another pool than 2x2, the largest of 3x3 at stride 2 "
        "with padding 1, or the mean of all places."
    )


def _settings(node: fx.Node, own: nn.Module | None) -> tuple[int, int, int] | None:
    """Kernel, stride and padding of a pool; None if they differ by axis or it does more."""
    source: Any = own
    if own is None:
        kernel = _argument(node, 1, "kernel_size", None)
        stride = _argument(node, 2, "stride", None) or kernel
        found = kernel, stride, _argument(node, 3, "padding", 0)
        dilation = _argument(node, 4, "dilation", 1)
        more = dilation != 1 or _argument(node, 5, "ceil_mode", False)
    else:
        found = source.kernel_size, source.stride, source.padding
        more = source.ceil_mode or getattr(source, "dilation", 1) not in (1, (1, 1))
    sides = [value if isinstance(value, tuple) else (value, value) for value in found]
    if more or any(down != across for down, across in sides):
        return None
    kernel, stride, padding = (side[0] for side in sides)
    return kernel, stride, padding
