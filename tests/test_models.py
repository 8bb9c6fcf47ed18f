"""Models: sizes and bounds of the initial weights, and our passes against PyTorch's."""

import numpy as np
import pytest
import torch

from chains import chain, conv, image, view
from gradleak.client.capture import capture
from gradleak.models.build import ChainModule, load
from gradleak.models.initial import family_weights, initial_weights, parameter_shapes
from gradleak.models.numpy_autodiff import deltas, fc_input

NETWORKS = {
    "tanh": chain(conv(4, 3), conv(3, 4, stride=2, padding=1), side=11),
    "bias": chain(conv(4, 3, bias=True), conv(2, 2, bias=True, activation="sigmoid")),
    "average": chain(conv(4, 3, padding=1, pool="average"), conv(3, 3, padding=1, bias=True)),
    "max": chain(
        conv(4, 3, padding=1, bias=True, activation="relu", pool="max", padding_mode="replicate"),
        conv(3, 2, stride=2, padding=2, pool="max", padding_mode="replicate"),
    ),
    "leaky": chain(conv(4, 3, activation="leaky_relu", slope=0.2), last="sigmoid", bias=False),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_initial_weights_are_those_of_pytorch_in_shape_and_range(network):
    ours = initial_weights(network, 0)
    assert parameter_shapes(network) == {name: value.shape for name, value in ours.items()}
    for name, parameter in ChainModule(network).named_parameters():
        assert ours[name].shape == tuple(parameter.shape)
        assert ours[name].dtype == np.float32
        limit = 1 / np.sqrt(ours[f"{name.split('.')[0]}.weight"][0].size)
        assert np.abs(ours[name]).max() <= limit
        assert parameter.abs().max() <= limit
        if ours[name].size > 50:
            assert np.abs(ours[name]).max() > 0.9 * limit


def test_seeds_differ_and_repeat():
    network = NETWORKS["tanh"]
    both = family_weights([network], 2)["small/conv1.weight"]
    np.testing.assert_array_equal(both[1], initial_weights(network, 1)["conv1.weight"])
    assert not np.array_equal(both[0], both[1])


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
def test_passes_match_pytorch(network):
    target = image(network)
    weights = dict(view(network, target).weights)
    module = load(network, weights, torch.float64)
    found = {}
    for layer in network.layers:
        module.get_submodule(layer.name).register_forward_hook(
            lambda _, inputs, output, name=layer.name: found.update({name: (inputs[0], output)})
        )
    output = module(torch.from_numpy(target)[None])
    loss = torch.nn.functional.cross_entropy(output, torch.tensor([2]))
    entering = found["fc1"][0].detach()[0].numpy()
    np.testing.assert_allclose(fc_input(network, weights, target), entering, atol=1e-12)
    ours = deltas(network, weights, target, 2)
    for layer in network.convolutions:
        (truth,) = torch.autograd.grad(loss, found[layer.name][1], retain_graph=True)
        np.testing.assert_allclose(ours[layer.name], truth[0].numpy(), atol=1e-12)


def test_capture_leaves_the_global_random_state_alone():
    network = NETWORKS["tanh"]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    weights = initial_weights(network, 3)
    cpu = torch.device("cpu")
    capture(network, weights, image(network)[None], np.array([0]), precision="float32", device=cpu)
    assert torch.equal(torch.rand(3), expected)
