"""Read a PyTorch network as a graph of layers with torch.fx."""

import operator
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from gradleak.errors import ConfigError
from gradleak.operators.shape import ConvShape
from gradleak.reading.gradients import PASSED, passing
from gradleak.reading.model_checks import Size, first_line, times

Shape = tuple[int, ...]


def _of(owner: Any, names: str) -> tuple[Any, ...]:
    return tuple(getattr(owner, name) for name in names.split())


def _methods(names: str) -> tuple[Any, ...]:
    return *_of(torch, names), *names.split()


ACTIVATIONS: dict[Any, str] = {
    key: name
    for name, keys in (
        ("relu", (nn.ReLU, *_of(functional, "relu relu_"), *_methods("relu relu_"))),
        ("leaky_relu", (nn.LeakyReLU, functional.leaky_relu)),
        ("tanh", (nn.Tanh, functional.tanh, *_methods("tanh"))),
        ("sigmoid", (nn.Sigmoid, functional.sigmoid, *_methods("sigmoid"))),
    )
    for key in keys
}
# Elementwise activations that no closed-form attack inverts.
OTHER_ACTIVATIONS = (
    *_of(nn, "GELU SiLU ELU CELU SELU Mish ReLU6 Hardswish Hardsigmoid Hardtanh Softplus PReLU"),
    *_of(functional, "gelu silu elu mish relu6 hardswish hardsigmoid softplus"),
)
ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
# a·x + b, or a difference of two values.
DIFFERENCES = (operator.sub, operator.isub, *_methods("sub subtract"), "sub_")
PRODUCTS = (operator.mul, operator.imul, *_methods("mul multiply"), "mul_")
QUOTIENTS = (operator.truediv, operator.itruediv, *_methods("div divide true_divide"), "div_")
NEGATIONS = (operator.neg, *_methods("neg negative"))
DIVISIONS = _methods("chunk split tensor_split unbind")
# Operations that only read or check sizes.
BOOKKEEPING = (getattr, torch._assert, operator.eq, operator.floordiv, "size", "dim")
LOG_SOFTMAX = (nn.LogSoftmax, functional.log_softmax, *_methods("log_softmax"))
# Kinds that do not depend on arguments.
KINDS: dict[Any, str] = {
    member: kind
    for kind, members in {
        "activation": (*ACTIVATIONS, *OTHER_ACTIVATIONS),
        "norm": (
            *_of(nn, "BatchNorm1d BatchNorm2d LayerNorm GroupNorm InstanceNorm2d"),
            *_of(functional, "layer_norm group_norm"),
        ),
        "pool": (
            *_of(nn, "MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d"),
            *_of(functional, "max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d"),
            torch.max_pool2d,
            *_methods("mean"),
        ),
        "reshape": (
            *(nn.Flatten, nn.Unflatten, "view", "contiguous", "expand"),
            *_methods("flatten reshape permute transpose squeeze unsqueeze"),
            *DIVISIONS,  # into pieces, each of which is then selected
        ),
        "dropout": (*_of(nn, "Dropout Dropout1d Dropout2d"), functional.dropout),
        "concat": (torch.cat, torch.concat),
        # Selection by position.
        "part": (operator.getitem, *_methods("select narrow")),
    }.items()
    for member in members
}


class Untraced(ConfigError):
    """A forward pass that torch.fx cannot trace, as one that branches on values."""


@dataclass(frozen=True)
class Layer:
    """One operation of a network's forward pass; its string has name and description."""

    node: fx.Node  # of torch.fx's graph
    module: nn.Module | None  # None for a function or method
    name: str  # module path (``layer1.0.conv1``), or torch.fx's name of the operation
    # conv, linear, add, offset, affine, concat, log_softmax, one of
    # `KINDS`, or other.
    kind: str
    detail: str  # as printed by PyTorch
    inputs: tuple[str, ...]  # names of layers it takes as inputs; ``input`` is the image
    input_shape: Shape  # of the first input, for one image
    output_shape: Shape
    weights: int = 0  # |W|: size of its weight, without biases
    parameters: int = 0
    # For convolutions with one group, and for fully connected layers applied at several positions,
    # which are 1x1 convolutions over them.
    shape: ConvShape | None = None
    groups: int = 1
    unreadable: str = ""  # why no linear system describes it, one sentence

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})"

    @property
    def what(self) -> Any:
        """Module class, function, or name of the method."""
        return self.node.target if self.module is None else type(self.module)

    def option(self, name: str, place: int, default: Any) -> Any:
        """Setting of its module, or argument of its call by name or place."""
        if self.module is not None:
            return getattr(self.module, name, default)
        args, named = self.node.args, self.node.kwargs
        return args[place] if len(args) > place else named.get(name, default)

    @property
    def is_linear(self) -> bool:
        """True if it has unknowns and constraints: a readable layer with weights."""
        return self.kind in ("conv", "linear") and not self.unreadable


@dataclass(frozen=True)
class Reading:
    """Layers of a network in running order."""

    input: Size  # (C, H, W) of one image
    classes: int
    layers: tuple[Layer, ...]
    module: fx.GraphModule | None  # the traced network
    untraced: str = ""  # why there are no layers and no traced network, one sentence
    counted: int = 0  # multiply-adds where there are no layers

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of convolutions and fully connected layers in one image's forward pass."""
        linear = [layer for layer in self.layers if layer.is_linear]
        found = sum(x.weights * (1 if x.shape is None else x.shape.positions) for x in linear)
        return found or self.counted

    def named(self, name: str) -> Layer:
        """Return the layer with that name."""
        return next(layer for layer in self.layers if layer.name == name)


def read(model: nn.Module, size: Size) -> Reading:
    """Trace a network and describe its layers; the network is not modified.

    Raises `ConfigError`, naming module and reason, if an image of this size (C, H, W) does not
    pass or the output is not one row of numbers per image, and `Untraced` if the forward pass
    cannot be traced.
    """
    classes, images = outputs(model, size), sample_images(model, size)
    # A function that receives `self.training`, as dropout does, keeps the value of tracing.
    traced, out = _graph(model, "training"), None
    # Auxiliary outputs may need larger images.
    with suppress(Exception):
        out, shapes = _shapes(traced, images)
    if not isinstance(out, torch.Tensor) or out.shape != (PASSED, classes):
        traced = _graph(model, "evaluation")
        _, shapes = _shapes(traced, images)
    return Reading(size, classes, _layers(traced, shapes), traced)


def outputs(model: nn.Module, size: Size) -> int:
    """Number of outputs for an image (C, H, W); `ConfigError` if there is no row of them."""
    name = type(model).__name__
    if next(model.parameters(), None) is None:
        raise ConfigError(
            f"{name} has no parameters, so it has no gradient to share; give another network."
        )
    try:
        with torch.no_grad(), passing(model, "evaluation"):
            found = model(sample_images(model, size))
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name} does not take an image of {times(size)} ({first_line(error)}); correct input: "
            "[C, H, W]."
        ) from error
    if not isinstance(found, torch.Tensor) or found.shape[:1] != (PASSED,) or found.ndim != 2:
        given = times(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{name} gives {given} for {PASSED} images, not {PASSED} rows of class scores; wrap it "
            "in a module that returns those alone."
        )
    return int(found.shape[1])


def run_graph(
    traced: fx.GraphModule, images: torch.Tensor, show: Callable[[fx.Node, Any], None]
) -> Any:
    """Return a graph's output in evaluation mode, calling `show` with each node and its value."""

    class Shown(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            out = super().run_node(n)
            show(n, out)
            return out

    # Dropout may consume random numbers, and a functional norm may update its statistics.
    with torch.no_grad(), passing(traced, "evaluation"), torch.random.fork_rng(devices=[]):
        return Shown(traced).run(images)


def _graph(model: nn.Module, mode: str) -> fx.GraphModule:
    try:
        with passing(model, mode):
            return fx.symbolic_trace(model)
    except Exception as error:
        raise Untraced(
            f"{type(model).__name__}.forward cannot be read as a graph ({_where(error)}"
            f"{first_line(error)})."
        ) from error


def sample_images(model: nn.Module, size: Size) -> torch.Tensor:
    """Two images (2, C, H, W) that networks are run with, always the same."""
    # Of a generator of its own: reading a network must not advance the global random state.
    chance = torch.Generator().manual_seed(0)
    return torch.rand(PASSED, *size, generator=chance).to(next(model.parameters()))


def _shapes(traced: fx.GraphModule, images: torch.Tensor) -> tuple[Any, dict[fx.Node, Shape]]:
    """Return a graph's output for images, and the shape of each node for one image.

    The shape is that of the first of several tensors, or of the whole for pieces. `ShapeProp` of
    torch.fx handles neither, and prints where a pass fails.
    """
    shapes: dict[fx.Node, Shape] = {}

    def keep(node: fx.Node, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) and out else out
        if node.target in DIVISIONS and node.all_input_nodes[0] in shapes:
            shapes[node] = shapes[node.all_input_nodes[0]]
        elif isinstance(first, torch.Tensor):
            shapes[node] = tuple(first.shape[1:])

    return run_graph(traced, images, keep), shapes


def _layers(traced: fx.GraphModule, shapes: dict[fx.Node, Shape]) -> tuple[Layer, ...]:
    uses = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    names: dict[fx.Node, str] = {}
    layers = []
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = "input"
        elif node.op != "output" and (layer := _layer(node, traced, shapes, names, uses)):
            names[node] = layer.name
            layers.append(layer)
        elif inputs := [names[given] for given in node.all_input_nodes if given in names]:
            # An operation without effect takes the name of its input.
            names[node] = inputs[0]
    return tuple(layers)


def _layer(
    node: fx.Node,
    traced: fx.GraphModule,
    shapes: dict[fx.Node, Shape],
    names: dict[fx.Node, str],
    uses: Mapping[str, int],
) -> Layer | None:
    """Return the layer of one node; None if it only forwards values or reads sizes."""
    inputs = tuple(given for given in node.all_input_nodes if given in names and given in shapes)
    if node not in shapes or node.op == "get_attr" or not inputs:
        return None
    module = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    # Selecting positions (a class token) is an operation; selecting one of several results is not.
    same = node.target is operator.getitem and shapes[node] == shapes[inputs[0]]
    if same or isinstance(module, nn.Identity) or node.target in BOOKKEEPING:
        return None
    name = str(node.target) if module is not None else node.name
    repeated = uses.get(name, 0) > 1
    if repeated:
        name = f"{name} ({node.name})"
    layer = Layer(
        node,
        module,
        name,
        kind="other",
        detail=_words(node, module),
        inputs=tuple(dict.fromkeys(names[given] for given in inputs)),
        input_shape=shapes[inputs[0]],
        output_shape=shapes[node],
        parameters=sum(p.numel() for p in module.parameters()) if module is not None else 0,
    )
    if not isinstance(module, nn.Conv2d | nn.Linear):
        kind = _kind(layer, names)
        return replace(layer, kind=kind, unreadable=_why_not(layer) if kind == "other" else "")
    if repeated and layer.parameters:
        why = f"{node.target} runs more than once, and its gradient is the sum of all its uses."
    elif "weight" not in module._parameters:
        why = f"{name} computes its weight from other parameters, whose gradients are shared."
    else:
        layer = replace(layer, weights=module.weight.numel())
        return _linear(layer, module) if isinstance(module, nn.Linear) else _conv(layer, module)
    return replace(layer, unreadable=why)


def _conv(layer: Layer, module: nn.Conv2d) -> Layer:
    why, layer = "", replace(layer, kind="conv")
    if any(step != 1 for step in module.dilation):
        why = f"{layer.name} is dilated, and its taps lie apart; use dilation 1."
    elif isinstance(module.padding, str):
        why = f"{layer.name} has padding '{module.padding}'; write the padding as a number."
    elif module.padding_mode not in ("zeros", "replicate"):
        why = f"{layer.name} pads by '{module.padding_mode}'; use zeros or replicate."
    if why:
        return replace(layer, unreadable=why)
    kernel, stride, padding = map(_pair, (module.kernel_size, module.stride, module.padding))
    channels, filters = (n // module.groups for n in (module.in_channels, module.out_channels))
    _, height, width = layer.input_shape
    shape = ConvShape(channels, filters, kernel, stride, padding, (height, width))
    return replace(layer, shape=shape, groups=module.groups)


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, tuple) else (value, value)
    return int(first), int(second)


def _linear(layer: Layer, module: nn.Linear) -> Layer:
    shape: ConvShape | None = None
    if (places := prod(layer.input_shape[:-1])) != 1:
        sizes = module.in_features, module.out_features, (1, 1), (1, 1), (0, 0), (places, 1)
        shape = ConvShape(*sizes)
    return replace(layer, kind="linear", shape=shape)


def _kind(layer: Layer, names: Mapping[fx.Node, str]) -> str:
    """Kind of a layer that has no weights known here."""
    what, several = layer.what, len(layer.inputs) > 1
    if what in KINDS:
        return KINDS[what]
    if what in ADDITIONS or (several and what in DIFFERENCES):
        return "add" if several else "offset"
    if _is_affine(what, layer.node, names):
        return "affine"
    ends = all(user.op == "output" for user in layer.node.users)
    return "log_softmax" if ends and what in LOG_SOFTMAX else "other"


def _is_affine(what: Any, node: fx.Node, names: Mapping[fx.Node, str]) -> bool:
    """True if a node is a·x + b with a and b independent of the image."""
    if what in NEGATIONS:
        return True
    divides = what in QUOTIENTS
    if not (divides or what in (*DIFFERENCES, *PRODUCTS)) or len(node.args) < 2:
        return False
    first, second = (isinstance(given, fx.Node) and given in names for given in node.args[:2])
    return first != second and (first or not divides)


def _why_not(layer: Layer) -> str:
    what, name = layer.what, layer.name
    if what is nn.MultiheadAttention:
        does = "it multiplies values made of its input with each other"
        return f"{name} is attention: {does}, which no linear system describes."
    called = f"{name} ({getattr(what, '__name__', what)})"
    if layer.parameters:
        return f"{called} is neither a two-dimensional convolution nor fully connected."
    if what in LOG_SOFTMAX:
        return f"{called} is not the last step, where it would belong to the loss."
    step = "step" if layer.module is None else "layer"
    return f"{called} is a {step} that gradleak has no linear system for."


def _words(node: fx.Node, module: nn.Module | None) -> str:
    if module is None:
        return str(getattr(node.target, "__name__", node.target))
    first = str(module).splitlines()[0]
    return first if first.endswith(")") else type(module).__name__


def _where(error: Exception) -> str:
    """File and line in the network's own code that an error came from, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and "gradleak" not in f.filename]
    return f"line {own[-1].lineno} of {own[-1].filename.rsplit('/', 1)[-1]}: " if own else ""
