"""The key-lock of a convolution: FedKL eq. (37), what it counts, and what never leaves a client."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import conv
from conftest import refused
from gradleak.errors import ConfigError
from gradleak.models import resnet, vgg16
from gradleak.models.activations import Activation
from gradleak.models.build import ChainModule, load, with_statistics
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import draw_key, initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, is_private, private, public

SIGMOID = Activation("sigmoid")
RELU = Lock(1024, Activation("relu"))
SMALL = resnet.specs("resnet20", 4, 10)


def dlg_lenet(classes=10):
    """DLG's LeNet, which FedKL's authors lock."""
    specs = (conv(12, 5, stride, 2, True, "sigmoid") for stride in (2, 2, 1))
    return (*specs, LinearSpec(classes))


def locked(specs, size=(3, 32, 32), lock=RELU, layers=("conv1",), **more):
    return Chain("net", size, with_lock(specs, layers, lock), **more)


def client(chain, seed=0):
    return initial_weights(chain, seed) | draw_key(chain, 0, seed)


def lock_of(*layers):
    """Names of the parameters of locks."""
    kinds = [f"{kind}.{part}" for kind in ("scale", "shift") for part in ("weight", "bias")]
    return {f"{layer}_lock_{kind}" for layer in layers for kind in kinds}


@pytest.mark.parametrize(
    ("specs", "size", "gave_way", "whole"),
    [
        # The authors' nets (FACTS), residual ones with 100 classes; LeNet has no norm to give way.
        (dlg_lenet(), 32, 0, 40_426),
        (resnet.specs("resnet20", 16, 100), 32, 32, 311_092),
        (resnet.specs("resnet32", 16, 100), 32, 32, 505_524),
        (resnet.specs("resnet18", 64, 100, "large"), 224, 128, None),
        (vgg16.specs(100), 224, 0, None),
    ],
)
def test_parameters_are_those_of_the_authors(specs, size, gave_way, whole):
    plain, chain = Chain("net", (3, size, size), specs), locked(specs, (3, size, size))
    lock = 2 * chain.convolutions[0].shape.filters * 1025
    assert chain.parameters == plain.parameters - gave_way + lock
    assert whole is None or chain.parameters == whole
    with torch.device("meta"):
        module = ChainModule(chain)
    assert sum(value.numel() for value in module.parameters()) == chain.parameters


@given(st.sampled_from(["identity", "relu", "sigmoid"]), st.integers(1, 50), st.integers(0, 5))
@settings(max_examples=20)
def test_forward_is_equation_37(activation, length, seed):
    chain = locked(dlg_lenet(), lock=Lock(length, Activation(activation)))
    weights = client(chain, seed)
    module = load(chain, weights, torch.float64)
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    module(images)

    own = {name: torch.from_numpy(np.asarray(w)).double() for name, w in weights.items()}
    act = {"identity": lambda v: v, "relu": torch.relu, "sigmoid": torch.sigmoid}[activation]
    scale, shift = (
        act(own[f"conv1_lock_{kind}.weight"] @ own["conv1_key"] + own[f"conv1_lock_{kind}.bias"])
        for kind in ("scale", "shift")
    )
    given = (own["conv1.weight"], own["conv1.bias"])
    convolved = torch.nn.functional.conv2d(images, *given, stride=2, padding=2)
    normed = torch.nn.functional.batch_norm(convolved, None, None, training=True)
    expected = scale[:, None, None] * normed + shift[:, None, None]
    got = module._linear(chain.parts[0], images)
    torch.testing.assert_close(got.detach(), expected, rtol=1e-10, atol=1e-12)


def test_any_named_convolution_of_any_model_can_be_locked():
    layers = ["conv2", "conv9", "conv14"]
    chain = locked(SMALL, lock=Lock(7, SIGMOID), layers=layers)
    assert [layer.name for layer in chain.locked] == layers
    weights = client(chain)
    assert [name for name in weights if "_key" in name] == [f"{layer}_key" for layer in layers]
    out = load(chain, with_statistics(chain, weights), torch.float32)(torch.rand(2, 3, 32, 32))
    assert out.shape == (2, 10)
    # The projection beside conv9 keeps a norm of its own.
    assert "conv9_skip_norm.weight" in weights
    assert not any(name.startswith("conv9_norm") for name in weights)


@pytest.mark.parametrize("layers", [("conv1",), ("conv9_skip",), ("conv1", "conv9", "conv9_skip")])
def test_the_lock_changes_no_other_weight_of_a_seed_and_is_told_by_its_name(layers):
    plain = initial_weights(Chain("net", (3, 32, 32), SMALL), 3)
    weights = client(locked(SMALL, layers=layers), 3)
    same, kept = public(weights), private(weights)
    norms = {f"{layer}_norm.{part}" for layer in layers for part in ("weight", "bias")}
    assert set(plain) - set(same) == norms
    for name, value in same.items():
        np.testing.assert_array_equal(value, plain[name])
    assert set(kept) == {f"{layer}_key" for layer in layers} | lock_of(*layers)
    assert not any(is_private(name) for name in same)
    assert {**kept, **same}.keys() == weights.keys()


def test_a_locked_projection_is_one_whose_norm_has_what_the_key_makes():
    layers = ("conv1", "conv9", "conv9_skip")
    chain = locked(SMALL, lock=Lock(7, SIGMOID), layers=layers)
    assert [layer.name for layer in chain.locked] == list(layers)
    assert [layer.filters for layer in chain.locked] == [4, 8, 8]
    plain = Chain("net", (3, 32, 32), SMALL)
    assert chain.parameters == plain.parameters + sum((4, 8, 8)) * (2 * 8 - 2)
    own = with_statistics(chain, client(chain))
    module = load(chain, own, torch.float64).train()
    assert sum(value.numel() for value in module.parameters()) == chain.parameters

    known = public(own)
    for layer in layers:
        for part, value in zip(("weight", "bias"), module.unlocked(layer), strict=True):
            known[f"{layer}_norm.{part}"] = value.detach().numpy()
    opened = load(plain, known, torch.float64).train()
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    ours, theirs = module(images), opened(images)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    for one, out in ((module, ours), (opened, theirs)):
        out[:, 3].sum().backward()
        one.eval()
    shared = dict(opened.named_parameters())
    for name, value in module.named_parameters():
        if not is_private(name):
            torch.testing.assert_close(value.grad, shared[name].grad, rtol=1e-8, atol=1e-10)
    # ∂ℓ/∂b of the shift's last layer is ∂ℓ/∂β times the slope.
    in_shift = module.get_parameter("conv9_skip_lock_shift.bias").grad
    shift = module.unlocked("conv9_skip")[1]
    expected = shared["conv9_skip_norm.bias"].grad * shift * (1 - shift)
    torch.testing.assert_close(in_shift, expected.detach(), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(module(images), opened(images), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "normed"),
    [(["conv2"], ["conv2"]), (["conv2_skip"], ["conv2_skip"]), (["conv2", "conv2_skip"],) * 2],
)
def test_without_norms_a_lock_brings_one_to_its_own_convolution_alone(layers, normed):
    first = conv(4, 3, 1, 1, True, "sigmoid")
    specs = (first, conv(6, 3, 2, 1, skip=1, projection=True), LinearSpec(5))
    chain = locked(specs, (3, 8, 8), Lock(3, SIGMOID), layers)
    weights = with_statistics(chain, client(chain))
    means = [name.removesuffix("_norm.running_mean") for name in weights if "running_mean" in name]
    assert means == normed
    assert not any(name.endswith("_norm.weight") for name in weights)
    plain = Chain("net", (3, 8, 8), specs)
    assert chain.parameters == plain.parameters + len(layers) * 2 * 6 * 4
    assert chain.is_normalised and not chain.is_plain
    assert load(chain, weights, torch.float32)(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_keys_differ_between_clients_and_seeds_and_locks_lie_in_range():
    chain = locked(dlg_lenet())
    runs = [(number, seed) for number in range(3) for seed in range(2)]
    keys = {run: draw_key(chain, *run)["conv1_key"] for run in runs}
    assert len({key.tobytes() for key in keys.values()}) == 6
    for key in keys.values():
        assert key.dtype == np.float32 and key.shape == (1024,)
        assert key.min() >= 0 and key.max() < 1
    np.testing.assert_array_equal(draw_key(chain, 1, 0)["conv1_key"], keys[1, 0])
    weights = initial_weights(locked(dlg_lenet(), spread=0.5), 0)
    assert np.abs(weights["conv1.weight"]).max() > 0.4
    assert np.abs(weights["conv1_lock_scale.weight"]).max() <= 1 / 32, "whatever the spread"


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_locks_and_keys_share_no_stream_with_searches(seed):
    """NumPy pads a seed with zeros, and GRNN's start i draws by (seed, i, 1)."""
    chain = locked(dlg_lenet(), lock=RELU)
    bound = 1 / np.sqrt(1024)
    scale = initial_weights(chain, seed)["conv1_lock_scale.weight"].ravel()
    keys = [draw_key(chain, number, seed)["conv1_key"] for number in range(3)]
    for others in [(seed, i) for i in range(5)] + [(seed, i, 1) for i in range(5)]:
        same = np.random.default_rng(others).uniform(-bound, bound, scale.size)
        other = np.random.default_rng(others).random(1024, np.float32)
        for one, drawn in ((same, scale), *((other, key) for key in keys)):
            assert not np.isclose(one, drawn, atol=1e-6).mean() > 0.01


def test_description_brings_locks_back_and_names_no_other():
    chain = locked(SMALL, lock=Lock(5, SIGMOID), layers=("conv1", "conv15_skip"))
    content = json.loads(json.dumps(chain.describe()))
    again = Chain.from_description(content)
    assert again == chain and [layer.lock for layer in again.locked] == [Lock(5, SIGMOID)] * 2
    # Descriptions of other layers are what they were before skips could be locked.
    held = [number for number, layer in enumerate(content["layers"], 1) if "skip_lock" in layer]
    assert held == [15]


@pytest.mark.parametrize("layer", ["conv1", "conv9_skip"])
def test_statistics_of_locked_norms_and_projections(layer):
    chain = locked(SMALL, layers=(layer,))
    held = with_statistics(chain, initial_weights(chain, 0))
    assert held["conv1_norm.running_mean"].shape == (4,)
    assert held["conv9_norm.running_mean"].shape == (8,)
    assert held["conv9_skip_norm.running_var"].tolist() == [1.0] * 8


SKIP = conv(3, 3, padding=1, skip=1, skip_lock=RELU), LinearSpec(3)
CONV8 = (
    "lock.layers: conv8_skip is not a convolution here; there are conv1 to conv19, conv9_skip and "
)


@pytest.mark.parametrize(
    ("specs", "layers", "key", "words"),
    [
        (dlg_lenet(), ["conv1"], {}, "conv1 is locked, but no key is given; add the client's own"),
        (dlg_lenet(), ["conv1"], {"conv1_key": np.zeros(9)}, "takes a key of 1024 values, but the"),
        (SMALL, ["conv9_skip"], {}, "conv9_skip is locked, but no key is given"),
        (dlg_lenet(), ["conv4"], {}, "conv4 is not a convolution here; there are conv1 to conv3"),
        (SMALL, ["conv8_skip"], {}, CONV8 + "conv15_skip."),
        ((LinearSpec(3),), ["conv1"], {}, "not a convolution here; there are none."),
        (SKIP, [], {}, "conv1 has a lock in its skip but no projection; give it projection: true"),
    ],
)
def test_a_lock_without_a_key_or_a_convolution_is_refused(specs, layers, key, words):
    with refused(words, kind=ConfigError):
        chain = locked(specs, layers=layers)
        load(chain, initial_weights(chain, 0) | key, torch.float32)
