"""A network that we did not write, read as a graph of layers with torch.fx."""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx, nn

from gradleak.auditing.client import passing
from gradleak.auditing.intake import first_line
from gradleak.auditing.kinds import (
    ACTIVATIONS,
    ADDITIONS,
    BOOKKEEPING,
    DIFFERENCES,
    DIVISIONS,
    DROPOUTS,
    LOG_SOFTMAX,
    NEGATIONS,
    NORMS,
    OTHER_ACTIVATIONS,
    PARTS,
    POOLS,
    PRODUCTS,
    QUOTIENTS,
    RESHAPES,
    Kind,
)
from gradleak.errors import ConfigError
from gradleak.operators.shape import ConvShape

Shape = tuple[int, ...]
# Images that pass to learn the shapes; norms in training need more than one.
BATCH = 2


@dataclass(frozen=True)
class Layer:
    """One step of a network's forward pass.

    Attributes
    ----------
    name
        Path of its module (``layer1.0.conv1``), or the name that torch.fx gave the step.
    kind
        What sort of step it is; ``other`` is one that nothing here describes.
    detail
        The step in words, as PyTorch prints it.
    inputs
        Names of the layers whose outputs it takes; ``input`` is the image.
    input_shape, output_shape
        Of its first input and of its output, for one image.
    weights
        |W|: numbers in its weight; biases do not count.
    parameters
        All its parameters.
    shape
        Of a convolution, or of a fully connected layer that meets several places of one image,
        which is a 1x1 convolution over them; None elsewhere.
    groups
        Parts of a convolution that share no channel; `shape` is that of one.
    unreadable
        Why there is no linear system for it, one sentence; empty where one does or none is needed.
    """

    name: str
    kind: Kind
    detail: str
    inputs: tuple[str, ...]
    input_shape: Shape
    output_shape: Shape
    weights: int = 0
    parameters: int = 0
    shape: ConvShape | None = None
    groups: int = 1
    unreadable: str = ""

    @property
    def is_linear(self) -> bool:
        """Whether it has unknowns and constraints of its own: a readable layer with weights."""
        return self.kind in ("conv", "linear") and not self.unreadable


@dataclass(frozen=True)
class Reading:
    """A network's layers, in the order in which they run.

    Attributes
    ----------
    input
        (C, H, W) of one image.
    classes
        Outputs for one image.
    layers
        Its steps.
    module
        The traced network, for what goes on from here; its nodes are named as the layers in
        `nodes`.
    nodes
        torch.fx's node of each layer, by the layer's name.
    """

    input: tuple[int, int, int]
    classes: int
    layers: tuple[Layer, ...]
    module: fx.GraphModule
    nodes: dict[str, fx.Node]

    @property
    def unreadable(self) -> tuple[Layer, ...]:
        """Layers that there is no linear system for."""
        return tuple(layer for layer in self.layers if layer.unreadable)

    def named(self, name: str) -> Layer:
        """Layer of that name."""
        return next(layer for layer in self.layers if layer.name == name)


def read(model: nn.Module, size: tuple[int, int, int]) -> Reading:
    """Trace a network and name its layers.

    Parameters
    ----------
    model
        Any network that torch.fx can trace, in any mode; it is left as it was.
    size
        (C, H, W) of one image.

    Raises
    ------
    ConfigError
        If an image of this size does not pass, the output is not one row of numbers for each
        image, or the forward pass cannot be written as a graph; with the module and the reason.
    """
    classes = outputs(model, size)
    traced, shapes = _traced(model, _images(model, size), classes)
    return Reading(size, classes, *_layers(traced, shapes))


def _traced(
    model: nn.Module, images: torch.Tensor, classes: int
) -> tuple[fx.GraphModule, dict[fx.Node, Shape]]:
    """The graph of a pass in training and its shapes; of evaluation, where training gives more."""
    # A function that is told `self.training`, as dropout is, keeps what it was in the tracing.
    traced = _graph(model, "training")
    try:
        out, shapes = _shapes(traced, images)
    except Exception:
        # Answers beside the scores may need larger images than these do.
        out = None
    if not isinstance(out, torch.Tensor) or out.shape != (BATCH, classes):
        traced = _graph(model, "evaluation")
        _, shapes = _shapes(traced, images)
    return traced, shapes


def _graph(model: nn.Module, mode: str) -> fx.GraphModule:
    try:
        with passing(model, mode):
            return fx.symbolic_trace(model)
    except Exception as error:
        raise ConfigError(
            f"{type(model).__name__}.forward cannot be read as a graph ({_where(error)}"
            f"{first_line(error)}); take branches on values out of it, or put them into a "
            "module of their own."
        ) from error


def _images(model: nn.Module, size: tuple[int, int, int]) -> torch.Tensor:
    """Images to learn shapes from."""
    return torch.rand(BATCH, *size).to(next(model.parameters()))


def outputs(model: nn.Module, size: tuple[int, int, int]) -> int:
    """Numbers that the network gives for one image (C, H, W) in evaluation mode.

    Raises
    ------
    ConfigError
        If an image does not pass, or the output is not one row of numbers for each image.
    """
    if next(model.parameters(), None) is None:
        raise ConfigError(
            f"{type(model).__name__} has no parameters, so it has no gradient to share; give "
            "another network."
        )
    images = _images(model, size)
    try:
        with torch.no_grad(), passing(model, "evaluation"):
            found = model(images)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{type(model).__name__} does not take an image of {_times(size)} "
            f"({first_line(error)}); correct input: [C, H, W]."
        ) from error
    if not isinstance(found, torch.Tensor) or found.shape[:1] != (BATCH,) or found.ndim != 2:
        given = _times(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"{type(model).__name__} gives {given} for {BATCH} images, not {BATCH} rows of class "
            "scores; wrap it in a module that returns those alone."
        )
    return int(found.shape[1])


def _shapes(
    traced: fx.GraphModule, images: torch.Tensor
) -> tuple[torch.Tensor, dict[fx.Node, Shape]]:
    """What a graph gives for images, and the shape of each of its steps for one image."""
    shapes = _Shapes(traced)
    # Dropout may draw, and a norm that is a function may update its statistics.
    with torch.no_grad(), passing(traced, "evaluation"), torch.random.fork_rng(devices=[]):
        return shapes.run(images), shapes.found


def _layers(
    traced: fx.GraphModule, shapes: dict[fx.Node, Shape]
) -> tuple[tuple[Layer, ...], fx.GraphModule, dict[str, fx.Node]]:
    uses: dict[str, int] = {}
    for node in traced.graph.nodes:
        if node.op == "call_module":
            uses[str(node.target)] = uses.get(str(node.target), 0) + 1
    names: dict[fx.Node, str] = {}
    layers, nodes = [], {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = "input"
            continue
        layer = None if node.op == "output" else _layer(node, traced, shapes, names, uses)
        if layer is None:
            # What passes values on unchanged is known by the name of what it passes on.
            inputs = [names[given] for given in node.all_input_nodes if given in names]
            if inputs:
                names[node] = inputs[0]
            continue
        names[node] = layer.name
        layers.append(layer)
        nodes[layer.name] = node
    return tuple(layers), traced, nodes


class _Shapes(fx.Interpreter):
    """Runs a graph and keeps the shape of each step's output for one image."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, Shape] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Keep the shape; of several tensors that of the first, of pieces that of the whole."""
        out = super().run_node(n)
        if n.target in DIVISIONS and n.all_input_nodes[0] in self.found:
            self.found[n] = self.found[n.all_input_nodes[0]]
            return out
        first = out[0] if isinstance(out, tuple) and out else out
        if isinstance(first, torch.Tensor):
            self.found[n] = tuple(first.shape[1:])
        return out


def _layer(
    node: fx.Node,
    traced: fx.GraphModule,
    shapes: dict[fx.Node, Shape],
    names: dict[fx.Node, str],
    uses: dict[str, int],
) -> Layer | None:
    """The layer of one node; None if it only passes values on or asks for sizes."""
    inputs = tuple(given for given in node.all_input_nodes if given in names and given in shapes)
    if node not in shapes or node.op == "get_attr" or not inputs:
        return None
    module = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    # A choice of places (a class token) is a step; one among several results is not.
    same = node.target is operator.getitem and shapes[node] == shapes[inputs[0]]
    if same or isinstance(module, nn.Identity) or node.target in BOOKKEEPING:
        return None
    what: Any = type(module) if module is not None else node.target
    name = str(node.target) if module is not None else node.name
    if uses.get(name, 0) > 1:
        name = f"{name} ({node.name})"
    own: dict[str, Any] = {
        "name": name,
        "detail": _words(node, module),
        "inputs": tuple(dict.fromkeys(names[given] for given in inputs)),
        "input_shape": shapes[inputs[0]],
        "output_shape": shapes[node],
        "parameters": sum(p.numel() for p in module.parameters()) if module is not None else 0,
    }
    repeated = module is not None and uses[str(node.target)] > 1 and bool(own["parameters"])
    if isinstance(module, nn.Conv2d | nn.Linear) and repeated:
        why = f"{node.target} runs more than once, and its gradient is the sum of all its uses."
        return Layer(kind="other", unreadable=why, **own)
    if isinstance(module, nn.Conv2d | nn.Linear) and "weight" not in module._parameters:
        why = (
            f"{own['name']} computes its weight from other parameters, whose gradients are shared."
        )
        return Layer(kind="other", unreadable=why, **own)
    if isinstance(module, nn.Conv2d):
        return _convolution(module, own)
    if isinstance(module, nn.Linear):
        return _linear(module, own)
    return _plain(what, node, own, names)


def _convolution(module: nn.Conv2d, own: dict[str, Any]) -> Layer:
    own["weights"] = module.weight.numel()
    why = ""
    if any(step != 1 for step in module.dilation):
        why = f"{own['name']} is dilated, and its taps lie apart; use dilation 1."
    elif isinstance(module.padding, str):
        why = f"{own['name']} has padding '{module.padding}'; write the padding as a number."
    elif module.padding_mode not in ("zeros", "replicate"):
        why = f"{own['name']} pads by '{module.padding_mode}'; use zeros or replicate."
    if why:
        return Layer(kind="conv", unreadable=why, **own)
    height, width = own["input_shape"][1:]
    shape = ConvShape(
        module.in_channels // module.groups,
        module.out_channels // module.groups,
        _pair(module.kernel_size),
        _pair(module.stride),
        _pair(module.padding),
        (height, width),
    )
    return Layer(kind="conv", shape=shape, groups=module.groups, **own)


def _linear(module: nn.Linear, own: dict[str, Any]) -> Layer:
    own["weights"] = module.weight.numel()
    places = prod(own["input_shape"][:-1])
    if places == 1:
        return Layer(kind="linear", **own)
    shape = ConvShape(module.in_features, module.out_features, (1, 1), (1, 1), (0, 0), (places, 1))
    return Layer(kind="linear", shape=shape, **own)


def _plain(what: Any, node: fx.Node, own: dict[str, Any], names: Mapping[fx.Node, str]) -> Layer:
    """A layer that is no convolution and not fully connected."""
    known: tuple[tuple[Kind, Any], ...] = (
        ("activation", (*ACTIVATIONS, *OTHER_ACTIVATIONS)),
        ("norm", NORMS),
        ("pool", POOLS),
        ("reshape", RESHAPES),
        ("dropout", DROPOUTS),
        ("part", PARTS),
    )
    for kind, members in known:
        if what in members:
            return Layer(kind=kind, **own)
    several = len(own["inputs"]) > 1
    if what in ADDITIONS:
        return Layer(kind="add" if several else "offset", **own)
    if what in DIFFERENCES and several:
        return Layer(kind="add", **own)
    if _is_affine(what, node, names):
        return Layer(kind="affine", **own)
    if what in (torch.cat, torch.concat):
        return Layer(kind="concat", **own)
    if what in LOG_SOFTMAX and all(user.op == "output" for user in node.users):
        return Layer(kind="log_softmax", **own)
    return Layer(kind="other", unreadable=_why_unreadable(what, node, own), **own)


def _is_affine(what: Any, node: fx.Node, names: Mapping[fx.Node, str]) -> bool:
    """Whether a step is a·x + b, with a and b numbers or tensors that no image changes."""
    if what in NEGATIONS:
        return True
    if what not in (*DIFFERENCES, *PRODUCTS, *QUOTIENTS) or len(node.args) < 2:
        return False
    first, second = (isinstance(given, fx.Node) and given in names for given in node.args[:2])
    return first != second and (first or what not in QUOTIENTS)


def _why_unreadable(what: Any, node: fx.Node, own: dict[str, Any]) -> str:
    if what is nn.MultiheadAttention:
        return (
            f"{own['name']} is attention: it multiplies values made of its input with each other, "
            "which no linear system describes."
        )
    called = getattr(what, "__name__", str(what))
    if own["parameters"]:
        return (
            f"{own['name']} ({called}) is no convolution of two dimensions and not fully connected."
        )
    if what in LOG_SOFTMAX:
        return f"{own['name']} ({called}) is not the last step, where it would belong to the loss."
    step = "layer" if node.op == "call_module" else "step"
    return f"{own['name']} ({called}) is a {step} that this reader has no linear system for."


def _words(node: fx.Node, module: nn.Module | None) -> str:
    if module is None:
        called: Callable[..., Any] | str = node.target
        return called if isinstance(called, str) else getattr(called, "__name__", str(called))
    first = str(module).splitlines()[0]
    return first if first.endswith(")") else type(module).__name__


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, tuple) else (value, value)
    return int(first), int(second)


def _times(size: tuple[int, ...] | torch.Size) -> str:
    return "x".join(str(side) for side in size)


def _where(error: Exception) -> str:
    """File and line of the network's own code that the error came from, where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and "gradleak" not in f.filename]
    return f"line {own[-1].lineno} of {own[-1].filename.rsplit('/', 1)[-1]}: " if own else ""
