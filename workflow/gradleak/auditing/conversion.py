"""From a reading to a `Chain`, where the network is one: what the closed forms walk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gradleak.auditing.client import passing
from gradleak.auditing.kinds import ACTIVATIONS, ADDITIONS, DIVISIONS
from gradleak.auditing.pools import argument, pool_kind
from gradleak.auditing.preprocessing import Preprocessing, is_given, preprocessing
from gradleak.auditing.reading import Layer, Reading
from gradleak.auditing.telling import told
from gradleak.errors import ConfigError, NotApplicable
from gradleak.matching.branch_layers import EPSILON
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import IDENTITY, Chain, ConvSpec, LinearLayer, LinearSpec
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
    before
        What the module does to the image before the chain's first layer; None for nothing.
    """

    chain: Chain
    names: Mapping[str, str]
    layers: tuple[str, ...]
    before: Preprocessing | None = None

    def weights(self, module: nn.Module) -> dict[str, np.ndarray]:
        """Arrays of the chain, float32, as the module holds them.

        A convolution that became a fully connected layer has its filters as rows.
        """
        state = module.state_dict()
        rows = {f"{x.name}.weight" for x in self.chain.layers if isinstance(x, LinearLayer)}
        out = {own: state[name].detach().cpu().float().numpy() for own, name in self.names.items()}
        return {own: v.reshape(len(v), -1) if own in rows else v for own, v in out.items()}


def convert(
    reading: Reading, module: nn.Module, name: str, loss: str = "cross_entropy"
) -> Converted:
    """The chain of a network.

    Parameters
    ----------
    reading, module
        The network and its layers.
    name
        Of the chain.
    loss
        One of `gradleak.losses.LOSSES`. Cross-entropy of log-probabilities is that of the scores
        they were made of, so a log-softmax at the end is left out under it.

    Raises
    ------
    NotApplicable
        If the network is no chain of convolutions and fully connected layers; names the layer and
        says why.
    """
    walk = _Walk(reading, module, loss)
    for layer in reading.layers:
        walk.take(layer)
    specs = walk.finish()
    chain = Chain(name, reading.input, specs)
    own_names = tuple(parts[""] for parts in walk.modules)
    try:
        layers = chain.layers
    except ConfigError as error:
        raise NotApplicable(told(str(error), chain, own_names)) from error
    names: dict[str, str] = {}
    for own, parts in zip(layers, walk.modules, strict=True):
        for part, path in parts.items():
            names |= _arrays(module, f"{own.name}{part}", path)
    found = Converted(chain, names, own_names, walk.before)
    _check_same(found, module, reading.layers[-1].kind == "log_softmax")
    return found


def _arrays(module: nn.Module, own: str, path: str) -> dict[str, str]:
    """Names of a part's arrays in the chain, and in the module."""
    state = module.get_submodule(path).state_dict()
    kinds = [kind for kind in (*PARAMETERS, *STATISTICS) if kind in state]
    return {f"{own}.{kind}": f"{path}.{kind}" for kind in kinds}


def _check_same(found: Converted, module: nn.Module, logarithms: bool) -> None:
    """Refuse a chain that does not compute what the module does, log-softmax left out."""
    weights = found.weights(module)
    images = torch.from_numpy(
        np.random.default_rng(0).random((2, *found.chain.input), dtype=np.float32)
    )
    taken = images
    if found.before is not None:
        taken = torch.from_numpy(found.before(images.numpy())).float()
    with torch.no_grad(), passing(module, "evaluation"):
        ours = load(found.chain, weights, torch.float32)(taken)
        theirs = module(images.to(next(module.parameters()))).float().cpu()
    if logarithms:
        ours = functional.log_softmax(ours, 1)
    if not torch.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * float(theirs.abs().max())):
        raise NotApplicable(
            "The network gives other outputs than the chain that was read from it, so one of its "
            "layers does more than its type says."
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
    loss: str
    specs: list[ConvSpec | LinearSpec] = field(default_factory=list)
    modules: list[dict[str, str]] = field(default_factory=list)
    # What each layer of the reading gives: the number of a finished layer (0 is the image), or a
    # pending one.
    given: dict[str, int | _Pending] = field(default_factory=lambda: {"input": 0})
    before: Preprocessing | None = None

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
        """All layers; the last one must be fully connected, or a convolution that is."""
        self._finished(self.reading.layers[-1].name)
        for place in reversed(range(len(self.specs))):
            spec = self.specs[place]
            if not isinstance(spec, ConvSpec) or not self._covers(place, spec):
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

    def _covers(self, place: int, spec: ConvSpec) -> bool:
        """Whether a convolution is a matrix: one window, which holds each value once."""
        shape = self.reading.named(self.modules[place][""]).shape
        assert shape is not None
        whole = shape.kernel == shape.size and shape.padding == (0, 0)
        return whole and (spec.pool, spec.norm, spec.skip) == ("none", "none", 0)

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
        if self.reading.nodes[layer.name].target not in ADDITIONS:
            raise NotApplicable(f"{layer.name} subtracts a value; skips of a chain are added.")
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
            slope = argument(node, 1, "negative_slope", slope)
        self._pending(layer)
        return self._finished(layer.inputs[0], Activation(name, float(slope)))

    def _pool(self, layer: Layer) -> int | _Pending:
        before, kind = (
            layer.inputs[0],
            pool_kind(layer, self.reading.nodes[layer.name], self._own(layer)),
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

    def _offset(self, layer: Layer) -> int:
        return self._affine(layer)

    def _affine(self, layer: Layer) -> int:
        """A linear step: a chain has a place for it before its first layer alone."""
        before, node = layer.inputs[0], self.reading.nodes[layer.name]
        users = [one for one in self.reading.layers if before in one.inputs]
        alone = self.given[before] == 0 and len(users) == 1
        if alone and layer.output_shape == self.reading.input:
            if not is_given(self.reading.module, node):
                raise NotApplicable(f"{layer.name} ({layer.detail}) changes the image by weights.")
            self.before = preprocessing(self.reading.module, node, self.reading.input)
            if self.before is not None:
                return 0
        raise NotApplicable(
            f"{layer.name} ({layer.detail}) scales or shifts values, which is linear but which "
            "this reader follows on the whole image alone, before the first layer."
        )

    def _part(self, layer: Layer) -> int:
        raise NotApplicable(
            f"{layer.name} ({layer.detail}) takes a part of the values, which is linear but which "
            "a chain of whole layers does not do."
        )

    def _log_softmax(self, layer: Layer) -> int:
        if self.loss != "cross_entropy":
            raise NotApplicable(
                f"{layer.name} is a log-softmax at the end, which is a part of the loss "
                "cross_entropy alone; with loss cross_entropy the gradient is that of nll_loss."
            )
        return self._finished(layer.inputs[0])

    def _reshape(self, layer: Layer) -> int:
        target = self.reading.nodes[layer.name].target
        moves = target in (torch.permute, torch.transpose, "permute", "transpose")
        if target in DIVISIONS:
            raise NotApplicable(
                f"{layer.name} ({layer.detail}) divides values into parts, which is linear but "
                "which a chain of whole layers does not do."
            )
        if sum(side != 1 for side in layer.output_shape) > 1 or moves:
            raise NotApplicable(f"{layer.name} ({layer.detail}) does more than flatten an image.")
        return self._finished(layer.inputs[0])

    def _dropout(self, layer: Layer) -> int:
        own, node = self._own(layer), self.reading.nodes[layer.name]
        rate = getattr(own, "p", 0.5) if own is not None else argument(node, 1, "p", 0.5)
        if own is None and not argument(node, 2, "training", True):
            rate = 0  # whatever the mode
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
