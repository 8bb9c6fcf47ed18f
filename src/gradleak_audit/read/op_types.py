"""Classification of PyTorch modules, functions and methods that an audit knows."""

import operator
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _of(owner: Any, names: str) -> tuple[Any, ...]:
    return tuple(getattr(owner, name) for name in names.split())


def _methods(names: str) -> tuple[Any, ...]:
    """Functions of torch and methods with the same names."""
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
        # Selection by position.
        "part": (operator.getitem, *_methods("select narrow")),
    }.items()
    for member in members
}
