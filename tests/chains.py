"""Small networks for tests, and the obvious dense form of a layer system."""

import numpy as np
import torch

from gradleak.attacks.base import AttackerView
from gradleak.gradients import capture
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights


def conv(filters, kernel, stride=1, padding=0, bias=False, activation="tanh", slope=0.01):
    return ConvSpec(
        filters,
        (kernel, kernel),
        (stride, stride),
        (padding, padding),
        bias,
        Activation(activation, slope),
    )


def chain(*convolutions, side=8, channels=2, classes=4, bias=True, last="tanh", name="small"):
    last_layer = LinearSpec(classes, bias, Activation(last))
    return Chain(name, (channels, side, side), (*convolutions, last_layer))


def image(network, seed=0):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, network.input)


def view(network, target, label=1, seed=0, precision="float64", granted=True):
    weights = initial_weights(network, seed)
    shared = capture(
        network, weights, target, label, precision=precision, device=torch.device("cpu")
    )
    return AttackerView(network, weights, shared, label if granted else None, -0.5, 0.5)
