"""What rounding of a gradient can do to a reconstruction behind several layers."""

import numpy as np
import pytest
import torch

from benchmarks import photo, photo_bound
from gradleak.operators.convolution import Convolution
from gradleak.operators.shape import ConvShape

SHAPE = ConvShape(2, 6, (3, 3), (1, 1), (1, 1), (8, 8))


def test_amplification_is_that_of_the_dense_matrix():
    weight = np.random.default_rng(0).standard_normal((6, 2, 3, 3))
    found = photo_bound.amplification(Convolution(weight, SHAPE))
    values = np.linalg.svd(Convolution(weight, SHAPE).dense(), compute_uv=False)
    # Lanczos to 1 %; of three probes the trace is off by some percent.
    assert found.condition == pytest.approx(values[0] / values[-1], rel=0.02)
    assert found.most == pytest.approx(1 / values[-1], rel=0.02)
    assert found.mean**2 == pytest.approx(np.mean(values**-2) * 128 / 384, rel=0.3)
    singular = Convolution(np.concatenate([weight[:, :1]] * 2, 1), SHAPE)
    assert photo_bound.amplification(singular).most == np.inf


def test_no_inverse_by_weights_is_below_the_bound():
    torch.manual_seed(0)
    model, images = photo.chain((16, 72, 80), 16), torch.rand(1, 3, 16, 16)
    able = photo_bound.limits(model, images, photo.SLOPE)
    assert len(able.conditions) == 3 and min(able.conditions) > 1
    assert able.bound < able.expected < 200
    # W^+ alone, from the float32 input of the linear layer.
    side, x = 4, model[:-2](images).detach().double().numpy().ravel()
    for layer in [one for one in reversed(model) if isinstance(one, torch.nn.Conv2d)]:
        size = side * layer.stride[0]
        at = layer.kernel_size, layer.stride, layer.padding, (size, size)
        shape, bias = ConvShape(layer.in_channels, layer.out_channels, *at), layer.bias
        z = np.where(x < 0, x / photo.SLOPE, x).reshape(layer.out_channels, -1)
        z -= bias.detach().double().numpy()[:, None]
        own = Convolution(layer.weight.detach().double().numpy(), shape)
        x, side = np.linalg.lstsq(own.dense(), z.ravel(), rcond=None)[0], size
    mse = np.mean(np.square(x - images.double().numpy().ravel()))
    assert -10 * np.log10(mse) >= able.bound
