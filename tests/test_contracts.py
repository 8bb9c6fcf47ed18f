"""What every attack promises; docs/adding.md says so to who adds one."""

import copy
import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError

import mkor_cases
import test_locked_attacks as locked
from chains import chain, conv, fully_connected, image, view
from gradleak.attacks.base import ManyAttack, Reconstruction
from gradleak.attacks.runner import _record, build, run_one
from gradleak.servers.class_fishing import ClassFishingServer
from gradleak.settings import registry
from gradleak.training.generators import conditional_vae
from test_ggl import saved

KINDS = {method: registry.class_of("attacks", method) for method in registry.modules("attacks")}
ATTACKS = {method: kind for method, kind in KINDS.items() if not kind.postprocesses}
# Two convolutions and a fully connected layer, all with a bias: every layer has full column rank.
PLAIN = chain(conv(4, 3, bias=True), conv(6, 3, bias=True))
LABELS = [2, 0, 1, 3]


def plain(network=PLAIN, **more):
    """Two images' gradients, as clients share them: in float32."""
    return [view(network, image(network, seed), precision="float32", **more) for seed in range(2)]


def served(server, method):
    network = mkor_cases.network()
    return [
        mkor_cases.seen(network, server, images, LABELS, precision="float32", method=method)
        for images in (mkor_cases.batch(network, LABELS, seed) for seed in range(2))
    ]


# Views for attacks that need another network, or a server's secret. A new attack is tried on
# `plain` networks, or gets a line here.
VIEWS = {
    "phong": lambda: plain(fully_connected(8, bias=True), label=-1, loss="logistic"),
    "unlock": lambda: [locked.view("withheld", locked.lenet(), seed=i) for i in range(2)],
    **dict.fromkeys(
        ("dlg_fresh_lock", "grnn_fresh_lock", "inverting_fresh_lock"),
        lambda: [locked.view("withheld", seed=i) for i in range(2)],
    ),
    "mkor": lambda: served(mkor_cases.NAIVE, "mkor"),
    "class_fishing": lambda: served(ClassFishingServer(target=2), "class_fishing"),
}
# Settings with which a search takes a moment.
SHORT = {"iterations": 4, "generations": 2, "population": 4}
# Networks of every kind, to ask an attack whether it applies.
NETWORKS = {
    "plain": PLAIN,
    "no bias": chain(conv(4, 3), conv(6, 3), bias=False),
    "relu": chain(conv(4, 3, activation="relu"), conv(6, 3)),
    "skip": chain(conv(2, 3), conv(2, 3, padding=1, skip=1)),
    "norm": chain(conv(4, 3, norm="batch"), conv(6, 3)),
    "pool": chain(conv(4, 3, padding=1, pool="max"), conv(6, 3)),
    "global": chain(conv(4, 3, pool="global")),
    "fully connected": fully_connected(8, 4),
    "one layer": fully_connected(),
    "locked": locked.chain(),
    "malicious": mkor_cases.network(),
}


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """A generator with random weights, for attacks that search one."""
    sizes = conditional_vae.Sizes(PLAIN.input, PLAIN.classes, latent=4, width=8)
    module = conditional_vae.Decoder(sizes)
    return saved(tmp_path_factory.mktemp("generator"), sizes, module)


def made(method, generator, **more):
    """The attack with its defaults, but for the length of a search."""
    short = SHORT | {"generator": "drawn"}
    known = {key: value for key, value in short.items() if key in ATTACKS[method].model_fields}
    return build({"method": method, **known, **more}, generator=generator)


def answers(attack, views, seeds):
    """Each view's answer, or why there is none."""
    if isinstance(attack, ManyAttack):
        return attack.run_many(views, seeds)
    return [run_one(attack, seen, seed) for seen, seed in zip(views, seeds, strict=True)]


@pytest.mark.parametrize("method", ATTACKS)
def test_equal_seeds_give_equal_images_and_nothing_is_changed(method, generator):
    views = VIEWS.get(method, plain)()
    before = copy.deepcopy([(dict(seen.weights), dict(seen.gradients)) for seen in views])
    assert made(method, generator).applies(views[0].chain) is None
    first, again = (answers(made(method, generator), views, [7, 8]) for _ in range(2))
    for one, other, seen in zip(first, again, views, strict=True):
        assert isinstance(one, Reconstruction), one
        assert one.images.shape[1:] == seen.chain.input
        assert 1 <= len(one.images) <= max(seen.batch, seen.chain.classes)
        np.testing.assert_array_equal(one.images, other.images)
        assert one.failure or np.isfinite(one.images).all()
        assert one.stop
        if method in ("dlg", "inverting_gradients", "grnn", "class_fishing"):
            assert one.evaluations == SHORT["iterations"]
    np.testing.assert_equal([(dict(seen.weights), dict(seen.gradients)) for seen in views], before)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("method", ATTACKS)
def test_a_gradient_that_tells_nothing_fails_with_one_sentence(method, value, generator):
    """And leaves the answer to the other gradient as it is."""
    good, other = VIEWS.get(method, plain)()
    spoilt = {name: np.full_like(array, value) for name, array in other.gradients.items()}
    broken = dataclasses.replace(other, gradients=spoilt)
    expected = answers(made(method, generator), [good], [7])[0]
    found, why = answers(made(method, generator), [good, broken], [7, 8])
    np.testing.assert_allclose(found.images, expected.images, atol=1e-5)
    if isinstance(why, Reconstruction):
        assert _record(why)["status"] == "failed", why
        why = _record(why)["reason"]
    assert str(why).endswith(".") and "\n" not in str(why)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("method", ATTACKS)
def test_it_says_why_it_does_not_apply(method, network, generator):
    why = made(method, generator).applies(network)
    assert why is None or (why.endswith(".") and network.name in why and "\n" not in why)


REFUSED = """dlg start ones, dlg lock break, mkor estimate median, mkor rows some,
grnn start uniform, inverting_gradients label unknown, gauss_newton label unknown,
ggl label unknown"""


@pytest.mark.parametrize("words", REFUSED.split(","))
def test_settings_that_do_not_exist_are_refused(words, generator):
    method, key, value = words.split()
    with pytest.raises(ValidationError, match=rf"1 validation error for \w+\n{key}\n"):
        made(method, generator, **{key: value})


def test_a_method_is_declared_once(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    monkeypatch.setitem(registry.FOLDERS, "mine", ".")
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text('class A:\n    method: Literal["mine"] = "mine"\n')
    with pytest.raises(ValueError, match=r"\.one and \w+\.other both declare the method mine"):
        registry.modules("mine")
