"""Residual networks as chains, against torchvision's."""

from functools import partial

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from chains import chain, conv, image
from conftest import refused
from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.client.capture import mean_loss
from gradleak.config.loader import load as load_config
from gradleak.errors import ConfigError
from gradleak.models import vgg16
from gradleak.models.build import load
from gradleak.models.chain import Chain, ConvLayer
from gradleak.models.initial import initial_weights
from gradleak.models.numpy_autodiff import deltas, forward
from gradleak.models.resnet import KINDS, specs
from pipeline_trees import changed, whole

CONFIG = whole()


def network(kind, width, classes=10, cut=(), side=32):
    return Chain(kind, (3, side, side), specs(kind, width, classes, cut=cut))


def theirs(kind, classes=10):
    """torchvision's network of base width 64 with a stem for 32x32 images."""
    found = getattr(torchvision.models, kind)(num_classes=classes)
    found.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    found.maxpool = nn.Identity()
    return found


def test_vgg16_has_torchvisions_parameters_and_outputs():
    ours = Chain("vgg16", (3, 224, 224), vgg16.specs(7))
    other = torchvision.models.vgg16(num_classes=7).eval()
    state = {name: value.numpy() for name, value in other.state_dict().items()}
    assert ours.parameters == sum(value.size for value in state.values())
    names = [f"{layer.name}.{part}" for layer in ours.layers for part in ("weight", "bias")]
    module = load(ours, dict(zip(names, state.values(), strict=True)), torch.float32)
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        np.testing.assert_allclose(module(images), other(images), atol=1e-5)
    assert [layer.dropout for layer in ours.layers[-3:]] == [0.5, 0.5, 0.0]


def test_parameters_of_small_networks():
    # He et al.'s counts with 100 classes and parameter-free shortcuts, and 2,752 of projections.
    for kind, parameters in (("resnet20", 275_572 + 2_752), ("resnet32", 470_004 + 2_752)):
        net = network(kind, 16, classes=100)
        drawn = sum(value.size for value in initial_weights(net, 0).values())
        assert net.parameters == parameters == drawn


# ResNet-34 for 224x224: a 7x7 stem and a pool of 3x3.
LARGE = Chain("resnet34", (3, 64, 64), specs("resnet34", 64, 10, "large"))
OUTPUTS = [
    *((network(kind, 64, side=16), theirs, kind) for kind in ("resnet18", "resnet101")),
    (LARGE, lambda _: torchvision.models.resnet34(num_classes=10), "large stem"),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("chain", "build", "kind"), OUTPUTS, ids=[kind for *_, kind in OUTPUTS])
def test_outputs_are_those_of_torchvision(chain, build, kind, training):
    other, rng, weights = build(kind).double().train(training), np.random.default_rng(0), {}
    assert chain.parameters == sum(p.numel() for p in other.parameters())
    state = [(n, v) for n, v in other.state_dict().items() if "num_batches_tracked" not in n]
    for ours, (name, value) in zip(_order(chain), state, strict=True):
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
        elif "running_mean" in name or value.ndim == 1:
            value.copy_(torch.from_numpy(rng.uniform(-0.3, 0.7, value.shape)))
        weights[ours] = value.numpy().copy()
    module = load(chain, weights, torch.float64).train(training)
    images = torch.from_numpy(rng.uniform(0, 1, (3, *chain.input)))
    with torch.no_grad():
        np.testing.assert_allclose(module(images), other(images), rtol=1e-9, atol=1e-9)


def _order(chain):
    """Our names in the order of torchvision's state: a block's projection comes at its end."""
    norms = ("weight", "bias", "running_mean", "running_var")
    for layer in chain.layers:
        if not isinstance(layer, ConvLayer):
            yield from (f"{layer.name}.weight", f"{layer.name}.bias")
            continue
        for name in (layer.name, *([f"{layer.name}_skip"] if layer.projection else [])):
            yield f"{name}.weight"
            yield from (f"{name}_norm.{part}" for part in norms)


def test_cut_blocks_have_no_skip():
    whole, cut = network("resnet18", 16), network("resnet18", 16, cut=(3,))
    skips = [[layer.skip for layer in net.convolutions] for net in (whole, cut)]
    assert skips[0] == [0, *[0, 2] * 8]
    assert skips[1] == [0, 0, 2, 0, 2, 0, 0, *[0, 2] * 5]
    # Block 3 halves the image: its projection goes with its skip.
    assert whole.parameters - cut.parameters == 16 * 32 + 2 * 32
    assert [layer.skip for layer in network("resnet101", 16).convolutions[:4]] == [0, 0, 0, 3]


# R-GAP's counts, with its base width 16 and stem for 32x32 images.
STEM, HEAD = ("conv1", 3072 - 3 * 16 * 9 - 16 * 1024), ("fc1", 128 - 1280 - 10)
RESNETS = [
    ("resnet101", (), ("conv1", -13744), ("conv13", 65536 - 12288 - 32 * 32 * 9 - 128 * 256)),
    ("resnet101", (3,), ("conv1", -13744), ("conv8", 64 * 1024 - 64 * 16 - 16 * 1024)),
    ("resnet101", (1,), ("conv2", -13568), ("conv13", 11264)),
    *(("resnet18", cut, STEM, HEAD) for cut in ((), *((k,) for k in (1, 2, 4, 5, 6, 7, 8)))),
    ("resnet18", (3,), STEM, ("conv6", 16 * 1024 - 16 * 32 * 9 - 32 * 256)),
]


@pytest.mark.parametrize(("kind", "cut", "worst", "alone"), RESNETS)
def test_index_of_residual_networks_whatever_skip_is_cut(kind, cut, worst, alone):
    rows = analyse(network(kind, 16, cut=cut))
    found, local = critical(rows), largest_alone(rows)
    assert (found.layer, found.index) == worst and (local.layer, local.alone) == alone
    if kind == "resnet101":
        assert f"{found.index:.1e}" == "-1.4e+04"  # as printed in Table 4
    if cut == (8,):
        convolution = largest_alone(rows[:-1])
        assert (convolution.layer, convolution.alone) == ("conv7", -1536)


def test_block_3_of_resnet18_is_critical_without_the_virtual_constraints_before_it():
    chain = network("resnet18", 16)
    rows, sizes = analyse(chain), [layer.projection for layer in chain.convolutions[2::2]]
    alone = [row.alone for row in rows[2:-1:2]]
    # Appendix D counts |f| + |W_2| - |x_1|, without the gradient of the projection.
    projected = [shape.filters * shape.channels if shape else 0 for shape in sizes]
    printed = [value + extra for value, extra in zip(alone, projected, strict=True)]
    assert printed[2] == 16 * 1024 - 32 * 32 * 9 - 32 * 256 == -1024
    assert alone[2] == printed[2] - 16 * 32 == -1536
    assert alone.index(max(alone)) == printed.index(max(printed)) == 2
    assert max(row.alone for row in rows[:-1]) == -1536


PASSES = {
    "skips": ([conv(2, 3, 1, 1)] * 2 + [conv(2, 3, 1, 1, skip=3)] * 2, "logistic", -1, 1),
    "tanh": ([conv(3, 3, padding=1, bias=True), conv(3, 3, 1, 1, skip=1)], "exponential", 1, 1),
    "classes": ([conv(3, 3), conv(4, 2), conv(4, 1, skip=1)], "cross_entropy", 2, 4),
    "block": ([conv(3, 3, 1, 1), conv(1, 3, 1, 1), conv(3, 3, 1, 1, skip=2)], "hinge", 1, 1),
}


@pytest.mark.parametrize(("layers", "loss", "label", "classes"), PASSES.values(), ids=PASSES.keys())
def test_passes_match_pytorch_with_skips_and_losses(layers, loss, label, classes):
    net = chain(*layers, side=6, channels=2, classes=classes, last="identity")
    weights, x = initial_weights(net, 0), image(net)
    module = load(net, weights, torch.float64)
    z = {}
    for name in [layer.name for layer in net.convolutions]:
        hook = partial(lambda name, _module, _input, output: z.update({name: output}), name)
        module.get_submodule(name).register_forward_hook(hook)
    output = module(torch.from_numpy(x)[None])
    value = mean_loss(loss, output, torch.tensor([label]))
    np.testing.assert_allclose(forward(net, weights, x), output[0].detach(), atol=1e-12)
    ours = deltas(net, weights, x, label, loss)
    for name, tensor in z.items():
        (truth,) = torch.autograd.grad(value, tensor, retain_graph=True)
        assert ours[name].any()
        np.testing.assert_allclose(ours[name], truth[0].numpy(), atol=1e-12)


def test_a_block_that_is_not_there_is_refused():
    for kind in KINDS:
        with refused("cut: 40 is not a block of resnet", kind=ConfigError):
            specs(kind, 16, 10, cut=(1, 40))


ARCHITECTURE = {"kind": "resnet18", "width": 16, "classes": 10}


def configured(**entry):
    return load_config(changed(CONFIG, "models.mine", {"input": [3, 32, 32], **entry}))


def test_config_knows_architectures():
    found = configured(architecture={**ARCHITECTURE, "cut": [3]})
    assert found.chain("mine").layers == network("resnet18", 16, cut=(3,)).layers
    # DLG's LeNet has the parameters of FedKL's without its lock.
    assert found.chain("dlg_lenet").parameters == 40_426 - 24_600


WRONG = [
    ({**ARCHITECTURE, "cut": [30]}, "models.mine: architecture: cut: 30 is"),
    ({**ARCHITECTURE, "kind": "resnet17"}, "architecture.kind: 'resnet17'"),
    ({**ARCHITECTURE, "depth": 3}, "architecture.depth"),
    ({"width": 3}, "architecture.kind' is missing"),
    (None, "give either layers or architecture"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_architectures_are_refused_by_name(given, message):
    with refused(message, kind=ConfigError):
        configured(**({} if given is None else {"architecture": given}))


def test_every_activation_can_be_a_sigmoid():
    smooth, plain = specs("resnet20", 4, 10, activation="sigmoid"), specs("resnet20", 4, 10)
    for found, name in ((smooth, "sigmoid"), (plain, "relu")):
        assert {spec.activation.name for spec in found[:-1]} == {name}
    assert smooth[-1] == plain[-1]
