"""Gradients under residual networks and derivatives of their distance, against autograd."""

import dataclasses

import numpy as np
import pytest
import torch

from chains import conv, drawn_weights, image, net, reference, run, saved, view
from conftest import refused
from gradleak.attacks.optimization.class_fishing import ClassFishing
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.engine import residual_gradients
from gradleak.attacks.optimization.engine.branch_layers import Normed
from gradleak.attacks.optimization.engine.chain_gradients import stack
from gradleak.attacks.optimization.engine.distances import Cosine
from gradleak.attacks.optimization.engine.residual_gradients import BranchGradients
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.attacks.runner import Views, attack_all
from gradleak.errors import ConfigError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.files import ModelFile
from gradleak.models.initial import initial_weights
from gradleak.models.locking import with_lock
from gradleak.models.locks import Lock, is_private
from gradleak.models.losses import LOSSES, OF_CLASSES
from gradleak.models.resnet import specs

MEMBERS, CLASSES = 3, 4
FC = LinearSpec(CLASSES)


def resnet(kind="resnet18", side=16, **more):
    return Chain(kind, (3, side, side), specs(kind, 4, CLASSES, **more))


def bottleneck():
    """One bottleneck that halves the image, one with biases before its norms and a smooth bend."""

    def layer(filters, kernel, activation, stride=1, bias=False, **more):
        return conv(filters, kernel, stride, kernel // 2, bias, activation, norm="batch", **more)

    return net(
        layer(4, 3, "relu"),
        layer(2, 1, "relu"),
        layer(2, 3, "leaky_relu", 2, slope=0.3),
        layer(8, 1, "relu", skip=3, projection=True),
        layer(3, 1, "tanh", bias=True),
        layer(3, 3, "identity", bias=True),
        layer(8, 1, "sigmoid", skip=3, pool="global"),
        FC,
        size=(3, 8, 8),
    )


def lenet():
    layers = [
        conv(4, kernel, stride, kernel // 2, bias=True, activation="sigmoid", pool=pool)
        for kernel, stride, pool in ((5, 2, "none"), (5, 1, "average"), (3, 1, "max"))
    ]
    hidden = LinearSpec(6, True, Activation("sigmoid"))
    return net(*layers, hidden, FC, size=(3, 16, 16), name="lenet")


def skips(classes=CLASSES):
    """Skips and a projection from the image itself, one of them without a norm."""
    return net(
        conv(3, 3, 1, 1, bias=True, skip=1),
        conv(4, 3, 1, 1, activation="relu", skip=2, projection=True),
        conv(4, 3, 1, 1, activation="identity", skip=1, norm="batch", pool="max3"),
        LinearSpec(classes),
        size=(3, 6, 6),
    )


def windows():
    """Pools whose windows overlap, and that leave out a part of their input."""
    return net(
        conv(3, 3, 1, 1, activation="relu", norm="batch", pool="max:3:3:0"),
        conv(4, 2, 1, 1, activation="tanh", pool="average:3:2:1"),
        conv(4, 2, 1, 1, activation="sigmoid", pool="average:2:1:0"),
        LinearSpec(CLASSES),
        size=(3, 11, 14),
        name="windows",
    )


def locked(chain, layers, activation, key=5):
    lock = Lock(key, Activation(activation))
    return Chain("locked", chain.input, with_lock(chain.specs, layers, lock))


CHAINS = {
    "locked": locked(bottleneck(), ("conv1", "conv4", "conv6"), "sigmoid"),
    "lenet_locked": locked(lenet(), ("conv1",), "relu"),
    "locked_skip": locked(bottleneck(), ("conv4_skip",), "sigmoid"),
    "locked_both": locked(bottleneck(), ("conv1", "conv4", "conv4_skip"), "identity"),
    # Without norms but those of the lock, from the image itself.
    "skips_locked": locked(skips(), ("conv2_skip",), "sigmoid"),
    "skips_beside": locked(skips(), ("conv2",), "sigmoid"),
    "resnet18": resnet(),
    "cut": resnet(cut=(3, 4)),
    "large": resnet(side=64, stem="large"),
    "bottleneck": bottleneck(),
    "lenet": lenet(),
    "skips": skips(),
    "windows": windows(),
}


def case(name, mode, batch, own):
    chain, draw = CHAINS[name], np.random.default_rng(7)
    seeds = range(MEMBERS) if own else [0] * MEMBERS
    sets = [drawn_weights(chain, seed, mode == "evaluation") for seed in seeds]
    images = torch.from_numpy(draw.standard_normal((MEMBERS, batch, *chain.input)))
    labels = torch.from_numpy(draw.integers(0, CLASSES, (MEMBERS, batch)))
    network = BranchGradients(chain, stack(sets), "cross_entropy", mode=mode, dtype=torch.float64)
    return chain, sets, images, labels, network


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


def cosines(expected, targets, names, ignored=""):
    """1 − cosine of each member's gradients and its targets, with a graph."""
    out, kept = [], [number for number, name in enumerate(names) if name != ignored]
    for member, gradients in enumerate(expected):
        ours = torch.cat([gradients[names[k]].flatten() for k in kept])
        theirs = torch.cat([targets[k][member].flatten() for k in kept])
        out.append(1.0 - ours @ theirs / ours.norm())
    return torch.stack(out)


def random_targets(found):
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(f.shape, dtype=f.dtype, generator=draw) for f in found]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("name", CHAINS)
def test_gradients_and_the_derivative_of_their_cosine_equal_autograd(name, mode, batch, own):
    chain, sets, images, labels, network = case(name, mode, batch, own)
    images.requires_grad_()
    members = zip(sets, images, labels, strict=True)
    expected = [reference(chain, *member, mode=mode)[0] for member in members]
    assert network.names == tuple(expected[0])
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    found = network(images, labels, scale)
    for parameter, ours in zip(network.names, found, strict=True):
        theirs = torch.stack([scale[m] * expected[m][parameter] for m in range(MEMBERS)]).detach()
        whole = float(theirs.abs().max())
        # The bias before a norm has a gradient of 0 that is rounded.
        atol = 1e-8 * whole if whole > 1e-12 else 1e-12
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=atol)
    targets, ignored = random_targets(found), network.names[-1]
    theirs = cosines(expected, targets, network.names, ignored)
    matched = Cosine(targets, [parameter != ignored for parameter in network.names])
    value, down, in_logits, _ = network.descend_scaling(images, labels, matched, scale)
    assert in_logits is None
    close(value, theirs.detach())
    close(down, torch.autograd.grad(theirs.sum(), images)[0])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("granted", [True, False])
def test_every_loss_and_dummy_labels(loss, granted):
    chain = skips() if loss in OF_CLASSES else skips(classes=1)
    weights, draw = drawn_weights(chain, 0), np.random.default_rng(3)
    images = torch.from_numpy(draw.standard_normal((MEMBERS, 2, *chain.input))).requires_grad_()
    labels = torch.from_numpy(draw.standard_normal((MEMBERS, 2, chain.classes))).requires_grad_()
    if granted:
        known = range(CLASSES) if loss in OF_CLASSES else (-1, 1)
        labels = torch.from_numpy(draw.choice(known, (MEMBERS, 2)))
    network = BranchGradients(chain, weights, loss, mode="evaluation", dtype=torch.float64)
    members = zip(images, labels, strict=True)
    expected = [reference(chain, weights, x, y, loss, "evaluation")[0] for x, y in members]
    targets = [torch.ones_like(one) for one in network(images.detach(), labels.detach())]
    matched = Cosine(targets, [True] * len(targets))
    value, *slopes, _ = network.descend_scaling(images.detach(), labels.detach(), matched)
    theirs = cosines(expected, targets, network.names)
    close(value, theirs.detach())
    assert (slopes[1] is None) == granted
    variables = [images] if granted else [images, labels]
    for slope, one in zip(slopes, torch.autograd.grad(theirs.sum(), variables), strict=not granted):
        close(slope, one)


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("name", ["locked", "lenet_locked", "locked_skip", "locked_both"])
def test_scale_and_shift_can_be_searched_for_instead_of_a_key(name, mode):
    """With γ and β given, none of the lock is known, and the distance moves with them."""
    chain, _, images, labels, keyed = case(name, mode, 2, own=True)
    bare = {"lock": None, "skip_lock": None}
    specs = (dataclasses.replace(s, **bare) if isinstance(s, ConvSpec) else s for s in chain.specs)
    free = Chain("free", chain.input, tuple(specs))
    sets = [drawn_weights(free, m, mode == "evaluation") for m in range(MEMBERS)]
    shared = tuple(name for name in keyed.names if not is_private(name))
    options = {"mode": mode, "dtype": torch.float64, "shared": shared}
    network = BranchGradients(chain, stack(sets), "cross_entropy", **options)
    assert network.names == shared
    targets = random_targets(network(images, labels))
    images.requires_grad_()
    norms = [f"{layer.name}_norm.{kind}" for layer in chain.locked for kind in ("weight", "bias")]
    scaling = np.stack([np.concatenate([own[norm] for norm in norms]) for own in sets])
    scaling = torch.from_numpy(scaling).double()
    members = zip(sets, images, labels, strict=True)
    pairs = (reference(free, *member, mode=mode) for member in members)
    expected, modules = zip(*pairs, strict=True)
    theirs = cosines(expected, targets, network.names)
    in_scaling = []
    for one, module in zip(theirs, modules, strict=True):
        scaled = [module.get_parameter(norm) for norm in norms]
        in_scaling.append(torch.cat(torch.autograd.grad(one, scaled, retain_graph=True)))
    matched = Cosine(targets, [True] * len(targets))
    value, down, _, moved = network.descend_scaling(images.detach(), labels, matched)
    close(value, theirs.detach())
    close(down, torch.autograd.grad(theirs.sum(), images)[0])
    close(moved, torch.stack(in_scaling))
    again = network.with_scaling(scaling + 0.1)
    other, *_ = again.descend_scaling(images.detach(), labels, matched)
    assert (other - value).abs().min() > 1e-6
    close(again.with_scaling(scaling).descend_scaling(images.detach(), labels, matched)[0], value)


def test_the_bend_of_a_norm_counts_its_epsilon():
    draw = torch.Generator().manual_seed(0)
    u, v, moved = torch.randn(3, 2, 3, 4, 3, 3, dtype=torch.float64, generator=draw)
    # Of the size of ε, where leaving it out would show.
    u = (1e-3 * u).requires_grad_()
    variance, mean = torch.var_mean(u, (0, 3, 4), correction=0, keepdim=True)
    normalised = (u - mean) / torch.sqrt(variance + 1e-5)
    (pulled,) = torch.autograd.grad((normalised * v).sum(), u, create_graph=True)
    (bend,) = torch.autograd.grad((pulled * moved).sum(), u)
    normed = Normed.of_batch(u.detach())
    close(normed.along(v.clone()), pulled.detach())
    close(normed.bend(v, moved), bend)


@pytest.mark.parametrize("own", [True, False])
def test_a_selection_gives_what_all_members_gave(own):
    *_, images, labels, network = case("bottleneck", "evaluation", 1, own)
    for index in (torch.tensor([2, 0]), slice(1, 3)):
        part = network.select(index)(images[index], labels[index])
        for one, whole in zip(part, network(images, labels), strict=True):
            close(one, whole[index])


def test_what_is_not_known_is_refused():
    chain = CHAINS["lenet"]
    first = dataclasses.replace(chain.specs[0], padding_mode="replicate")
    padded = net(first, *chain.specs[1:], size=chain.input, name="padded")
    for which, loss, mode, words in (
        (chain, "square", "training", "loss: 'square' is not known"),
        (chain, "raw_logits", "test", "mode: 'test' is not known; choose one of training, "),
        (padded, "cross_entropy", "training", "padded has replicated padding"),
    ):
        with refused(words, kind=ConfigError):
            BranchGradients(which, initial_weights(chain, 0), loss, mode=mode)


NARROW = resnet("resnet20", side=8)


def view_of(seed, weights_seed, mode="evaluation"):
    weights = drawn_weights(NARROW, weights_seed, mode == "evaluation")
    target = image(NARROW, 100 + seed, low=0.0)
    return view(NARROW, target, seed % CLASSES, weights=weights, low=0.0, mode=mode)


def distance_of(seen, images):
    given = torch.from_numpy(images), torch.tensor(seen.labels)
    found, _ = reference(seen.chain, dict(seen.weights), *given, mode=seen.mode)
    ours = np.concatenate([found[name].detach().numpy().ravel() for name in seen.gradients])
    shared = np.concatenate([value.ravel() for value in seen.gradients.values()])
    return 1.0 - ours @ shared / (np.linalg.norm(ours) * np.linalg.norm(shared))


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_inverting_gradients_lowers_the_distance_under_a_residual_network(mode):
    views = [view_of(seed, own, mode) for seed, own in enumerate((0, 1, 0, 2))]
    settings = {"iterations": 40, "rate": 0.05, "precision": "float64", "start": "uniform"}
    attack = InvertingGradients(**settings, tv=0.0)
    together = attack.run_many(views, [0, 1, 2, 3])
    for number, (seen, found) in enumerate(zip(views, together, strict=True)):
        assert found.loss < 0.98 * found.trace[0]
        assert found.loss == pytest.approx(distance_of(seen, found.images), rel=1e-6)
        if number < 2:
            alone = run(attack, seen, number)
            np.testing.assert_allclose(alone.images, found.images, atol=1e-6)
    smooth = run(attack.model_copy(update={"tv": 100.0}), views[0])
    smooth, rough = (np.abs(np.diff(one.images)).mean() for one in (smooth, together[0]))
    assert smooth < 0.7 * rough


def test_members_of_equal_weights_share_one_set_and_modes_stay_apart(monkeypatch):
    made = []

    class Counted(BranchGradients):
        def __init__(self, chain, weights, *args, mode, **more):
            made.append((mode, weights["conv1.weight"].ndim, len(weights["fc1.bias"])))
            super().__init__(chain, weights, *args, mode=mode, **more)

    monkeypatch.setattr(residual_gradients, "BranchGradients", Counted)
    views = [view_of(i, seed) for i, seed in enumerate((0, 1, 0, 2))]
    views.append(view_of(0, 0, "training"))
    attack = InvertingGradients(iterations=1)
    attack.run_many(views, range(5))
    # Two views of seed 0; seeds 1 and 2 with weights of their own; the one in training mode.
    assert made == [("evaluation", 4, CLASSES), ("evaluation", 5, 2), ("training", 4, CLASSES)]
    made.clear()
    attack.model_copy(update={"starts": 2}).run_many(views[:4], range(4))
    assert made == [("evaluation", 4, CLASSES)] * 3


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_a_gradient_file_tells_the_mode(tmp_path, mode):
    seen = view_of(0, 0, mode)
    weights = {f"resnet20/{name}": value[None] for name, value in seen.weights.items()}
    shared = {f"resnet20/{name}": value[None, None] for name, value in seen.gradients.items()}
    facts = {"images": 1, "seeds": 1, "batch": 1, "low": 0.0, "high": 1.0, "loss": seen.loss}
    facts |= {"mode": {"resnet20": mode}}
    paths = saved(tmp_path, ModelFile((NARROW,), weights), shared, facts)
    ((read, *_),) = Views(*paths)
    assert read.mode == mode
    settings = {"iterations": 3, "precision": "float64"}
    for attack in (InvertingGradients(**settings), Dlg(**settings)):
        (found,) = attack_all(*paths, {"method": attack.method, **settings}).runs
        assert found["loss"] == pytest.approx(run(attack, seen).loss, rel=1e-9)


def test_as_many_members_at_once_as_memory_holds(monkeypatch):
    network = BranchGradients(NARROW, initial_weights(NARROW, 0), "cross_entropy")
    assert [network.at_once(batch) for batch in (1, 3, 100)] == [16, 6, 1]
    monkeypatch.setattr(residual_gradients, "MEMORY", 2**10)
    assert network.at_once(1) == 1


def test_what_searches_refuse_is_said_in_a_sentence():
    plain, pooled = CHAINS["lenet"], Chain("pooled", (3, 8, 8), (conv(2, 3, pool="global"), FC))
    attack = InvertingGradients()
    for chain in (*CHAINS.values(), pooled, NARROW):
        assert attack.applies(chain) is Dlg().applies(chain) is None
    for chain in (plain, NARROW, pooled, CHAINS["skips"]):
        no_lock = f"{chain.name} has no lock to fit; set lock: guess, or lock it."
        assert Dlg(lock="fit").applies(chain) == no_lock
    assert "mixes the image with others" in ClassFishing().applies(NARROW)
    assert ClassFishing().applies(NARROW, "evaluation") is None
    drops = Chain("drops", (3, 8, 8), (LinearSpec(3, dropout=0.5), FC))
    for search in (attack, Dlg()):
        assert "drops has dropout, which is at work in training" in search.applies(drops)
        assert search.applies(drops, "evaluation") is None
    padded = conv(2, 3, 1, 1, pool="global", padding_mode="replicate")
    padded = Chain("padded", (3, 8, 8), (padded, FC))
    assert "padded has replicated padding beside a norm" in attack.applies(padded)
