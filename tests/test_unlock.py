"""The closed form that opens a lock: exact up to brightness, without anything of the lock."""

import dataclasses

import numpy as np
import pytest

from gradleak.attacks.closed_form.keylock_inversion import Unlock, tail_of
from gradleak.errors import NumericsError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import draw_key
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock
from test_locked_attacks import CLASSES, LENGTH, SIZE, Client, targets, view

SIGMOID = Activation("sigmoid")


def chain(lock="sigmoid", activation="sigmoid", first=(5, 5), padding=(2, 2)):
    """As LeNet begins: every phase of the stride meets the padding."""
    specs = (
        ConvSpec(8, first, (2, 2), padding, True, Activation(activation)),
        ConvSpec(12, (3, 3), (1, 1), (1, 1), True, SIGMOID),
        LinearSpec(CLASSES),
    )
    specs = with_lock(specs, ["conv1"], Lock(LENGTH, Activation(lock)))
    return Chain("net", SIZE, specs, spread=0.5)


def truth():
    return targets(1).inputs(0)[0]


def assert_found(found):
    """The image up to its brightness."""
    assert not found.failure
    scale = float((found.image * truth()).sum() / (found.image**2).sum())
    np.testing.assert_allclose(scale * found.image, truth(), atol=2e-4)
    assert max(one.residual for one in found.layers) < 1e-3
    assert [one.free for one in found.layers] == [0, 0, 0]


@pytest.mark.parametrize("moved", [0.0, 0.2])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "leaky_relu"])
def test_a_locked_image_is_found_up_to_its_brightness(activation, moved):
    """Whatever key made γ and β, and however far the lock's weights are from the server's."""
    found = Unlock().run(view("withheld", chain(activation=activation), Client(moved)), 0)
    assert_found(found)
    assert found.image.max() == pytest.approx(1.0) and found.image.min() > -1e-3
    assert [one.layer for one in found.layers] == ["fc1", "conv2", "conv1"]


def test_nothing_of_the_lock_is_used():
    seen, given = (view(lock, chain()) for lock in ("withheld", "both"))
    spoilt = {n: v if "_lock" not in n else np.full_like(v, 9.0) for n, v in seen.weights.items()}
    expected = Unlock().run(seen, 0).image
    for other in (given, dataclasses.replace(seen, weights=spoilt)):
        np.testing.assert_array_equal(Unlock().run(other, 3).image, expected)


def test_channels_that_the_lock_made_constant_are_left_out():
    own = Client().of(chain("relu"), 0)
    gamma = own["conv1_lock_scale.weight"] @ own["conv1_key"] + own["conv1_lock_scale.bias"]
    assert 0 < (gamma > 0).sum() < 8
    assert_found(Unlock().run(view("withheld", chain("relu")), 0))


def test_what_padding_does_not_fix_is_counted():
    """Pixels that are never in a window with padding can be shifted together, in each channel."""
    found = Unlock().run(view("withheld", chain(first=(3, 3), padding=(1, 1))), 0)
    assert found.layers[-1].free == SIZE[0]
    assert found.stop == "closed form; brightness is free; conv1 leaves 3 unknowns free"
    bare = view("withheld", chain(first=(4, 4), padding=(0, 0)))
    found = Unlock().run(bare, 0)
    assert found.layers[-1].free >= SIZE[0]
    assert found.image.mean((1, 2)) == pytest.approx(0.5)


def test_gradients_of_other_features_fail_or_contradict():
    seen = view("withheld", chain())
    noisy = {
        name: value + np.random.default_rng(0).standard_normal(value.shape) * np.std(value)
        for name, value in seen.gradients.items()
    }
    seen = dataclasses.replace(seen, gradients=noisy)
    assert "contradict each other" in Unlock().run(seen, 0).failure


def test_where_it_does_not_apply_it_says_why():
    attack = Unlock()
    assert attack.applies(chain()) is None
    plain = dataclasses.replace(chain().specs[0], lock=None, norm="none")
    bare = Chain("bare", SIZE, (plain, *chain().specs[1:]))
    assert "bare has no lock on its first convolution alone" in attack.applies(bare)
    _, second, last = chain().specs
    second = dataclasses.replace(second, skip=2, projection=True)
    for layers in (["conv2_skip"], ["conv1", "conv2_skip"]):
        skipped = with_lock((plain, second, last), layers, Lock(LENGTH, SIGMOID))
        refused = attack.applies(Chain("skipped", SIZE, skipped))
        assert "skipped has no lock on its first convolution alone" in refused
    assert "followed by 'relu', which hides" in attack.applies(chain(activation="relu"))
    assert "'identity' may make γ negative, whose sign" in attack.applies(chain("identity"))
    assert attack.applies(chain("relu")) is None
    alone = Chain("alone", SIZE, (chain().specs[0], LinearSpec(CLASSES)))
    assert "alone has no convolution behind its lock" in attack.applies(alone)
    pooled = dataclasses.replace(chain().specs[1], pool="max")
    behind = Chain("pooled", SIZE, (chain().specs[0], pooled, LinearSpec(CLASSES)))
    assert "conv1 has a pool" in attack.applies(behind)
    with pytest.raises(NumericsError, match="set batch: 1 and mode: training"):
        attack.run(dataclasses.replace(view("withheld", chain()), mode="evaluation"), 0)


def test_the_tail_is_the_network_behind_the_lock():
    tail = tail_of(chain())
    assert tail.input == (8, 4, 4)
    assert [layer.name for layer in tail.layers] == ["conv1", "fc1"]
    assert draw_key(tail, 0, 0) == {}
