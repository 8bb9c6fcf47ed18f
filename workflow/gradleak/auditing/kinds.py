"""What sort of step each module, function and method of PyTorch is to an audit."""

from __future__ import annotations

import operator
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

Kind = Literal[
    "conv",
    "linear",
    "norm",
    "activation",
    "pool",
    "add",
    "concat",
    "offset",
    "affine",
    "part",
    "log_softmax",
    "reshape",
    "dropout",
    "other",
]

ACTIVATIONS: dict[Any, str] = {
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    functional.relu: "relu",
    functional.relu_: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    functional.leaky_relu: "leaky_relu",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    "relu": "relu",
    "relu_": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
# Activations that act on each value, but that no closed form opens.
OTHER_ACTIVATIONS = (
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.Mish,
    nn.ReLU6,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.Softplus,
    nn.PReLU,
    functional.gelu,
    functional.silu,
    functional.elu,
    functional.mish,
    functional.relu6,
    functional.hardswish,
    functional.hardsigmoid,
    functional.softplus,
)
NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.InstanceNorm2d,
    functional.layer_norm,
    functional.group_norm,
)
POOLS = (
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    functional.max_pool2d,
    functional.avg_pool2d,
    functional.adaptive_avg_pool2d,
    functional.adaptive_max_pool2d,
    torch.max_pool2d,
    "mean",
    torch.mean,
)
ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
# a·x + b, or a difference of two values.
DIFFERENCES = (operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "subtract")
PRODUCTS = (operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply")
QUOTIENTS = (
    operator.truediv,
    operator.itruediv,
    torch.div,
    torch.divide,
    torch.true_divide,
    "div",
    "div_",
    "divide",
    "true_divide",
)
NEGATIONS = (operator.neg, torch.neg, torch.negative, "neg", "negative")
DIVISIONS = (
    torch.chunk,
    torch.split,
    torch.tensor_split,
    torch.unbind,
    "chunk",
    "split",
    "tensor_split",
    "unbind",
)
RESHAPES = (
    nn.Flatten,
    nn.Unflatten,
    torch.flatten,
    torch.reshape,
    torch.permute,
    torch.transpose,
    torch.squeeze,
    torch.unsqueeze,
    "flatten",
    "view",
    "reshape",
    "permute",
    "transpose",
    "squeeze",
    "unsqueeze",
    "contiguous",
    "expand",
    # In pieces, each of which is then taken by itself.
    *DIVISIONS,
)
# Some of what a step takes, chosen by place.
PARTS = (operator.getitem, torch.select, torch.narrow, "select", "narrow")
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, functional.dropout)
# Steps that only ask for sizes or check them.
BOOKKEEPING = (getattr, torch._assert, operator.eq, operator.floordiv, "size", "dim")
LOG_SOFTMAX = (nn.LogSoftmax, functional.log_softmax, torch.log_softmax, "log_softmax")
