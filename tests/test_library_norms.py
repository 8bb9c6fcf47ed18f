"""Statistics of batch norms, as servers know them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import gradleak
from gradleak.library.network import read_network
from gradleak.library.norms import known_statistics
from test_library import caught

SHAPE, LABELS = (3, 8, 8), [0, 1, 2, 3]


def network(norm=nn.BatchNorm2d, **more):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        norm(6, **more),
        nn.Tanh(),
        nn.Conv2d(6, 4, 3, 2, 1),
        norm(4, **more),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


@pytest.fixture
def images():
    torch.manual_seed(1)
    return torch.rand(4, *SHAPE)


def inputs_of_norms(model, images):
    """Mean and variance of each norm's input in training mode."""
    seen, hooks = {}, []
    for name, part in model.named_modules():
        if isinstance(part, nn.BatchNorm2d):
            keep = lambda _, x, name=name: seen.update({name: x[0].detach()})  # noqa: E731
            hooks.append(part.register_forward_pre_hook(keep))
    copy = [b.clone() for b in model.buffers()]
    model.train()(images)
    for own, old in zip(model.buffers(), copy, strict=True):
        own.data = old
    for hook in hooks:
        hook.remove()
    return {
        n: (x.mean((0, 2, 3)).numpy(), x.var((0, 2, 3), unbiased=False).numpy())
        for n, x in seen.items()
    }


def searched(update, model, **more):
    """Inverting Gradients on the batch."""
    return gradleak.invert(update, model, SHAPE, "inverting_gradients", labels=LABELS, **more)


def known(model, source, update=None, proxy=None):
    read = read_network(model, SHAPE, loss="cross_entropy", mode="training")
    return known_statistics(read, source, update, proxy)


def compare(found, expected, rtol):
    assert found.keys() == expected.keys() == {"1", "4"}
    for name, pair in expected.items():
        for own, other in zip(found[name], pair, strict=True):
            np.testing.assert_allclose(own, other, rtol=rtol, atol=1e-5)


def test_running_statistics_before_and_after_give_away_the_batch(images):
    model = network()
    update = gradleak.capture(model, images, LABELS, recipe=gradleak.Recipe(rate=0.1))
    compare(known(model, "inferred", update), inputs_of_norms(model, images), 1e-4)


def test_several_steps_give_away_their_mean(images):
    model = network(momentum=0.3)
    # At a small rate the statistics of all steps are nearly the same.
    recipe = gradleak.Recipe(rate=1e-6, epochs=4)
    update = gradleak.capture(model, images, LABELS, recipe=recipe)
    compare(known(model, "inferred", update), inputs_of_norms(model, images), 1e-3)


def test_a_proxy_has_statistics_of_its_own(images):
    model, other = network(), torch.rand(7, *SHAPE)
    compare(known(model, "proxy", proxy=other), inputs_of_norms(model, other), 1e-4)
    own = known(model, "running")
    assert all((m == 0).all() and (v == 1).all() for m, v in own.values())


@pytest.mark.parametrize(
    ("source", "letter"), [("running", "E"), ("inferred", "E"), ("proxy", "D"), ("none", "C")]
)
def test_a_search_takes_them_and_tells_its_threat_model(images, source, letter):
    model = network()
    update = gradleak.capture(model, images, LABELS, recipe=gradleak.Recipe(rate=0.1))
    proxy = torch.rand(4, *SHAPE) if source == "proxy" else None
    found = searched(update, model, norms=source, proxy=proxy, iterations=2)
    assert found.threat == letter and found.images.shape == images.shape


def test_known_statistics_draw_the_images_to_them(images):
    model = network()
    update = gradleak.capture(model, images, LABELS, recipe=gradleak.Recipe(rate=0.1))
    true = inputs_of_norms(model, images)

    def apart(weight):
        found = searched(update, model, norms="inferred", iterations=60, statistics=weight)
        own = inputs_of_norms(model, found.images)
        return sum(np.sum((own[n][i] - true[n][i]) ** 2) for n in true for i in (0, 1))

    assert apart(10.0) < 0.5 * apart(1e-9)


def test_what_does_not_fit_is_told(images):
    model = network()
    shared = gradleak.capture(model, images, LABELS)
    given = {"labels": LABELS, "attack": "inverting_gradients"}
    for more, word in (
        ({"norms": "runing"}, "'runing'"),
        ({"norms": "inferred"}, "before and after"),
        ({"norms": "proxy"}, "proxy"),
        ({"proxy": images}, "proxy"),
        ({"norms": "running", "attack": "dlg"}, "does not use them"),
    ):
        caught(lambda more=more: gradleak.invert(shared, model, SHAPE, **{**given, **more}), word)
    free = network(track_running_stats=False)
    other = gradleak.capture(free, images, LABELS)
    caught(
        lambda: gradleak.invert(other, free, SHAPE, norms="running", **given), "keeps no running"
    )
    plain = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    bare = gradleak.capture(plain, images, LABELS)
    caught(lambda: gradleak.invert(bare, plain, SHAPE, norms="running", **given), "no batch norm")
    summed = network(momentum=None)
    update = gradleak.capture(summed, images, LABELS, recipe=gradleak.Recipe(rate=0.1))
    caught(
        lambda: gradleak.invert(update, summed, SHAPE, norms="inferred", **given), "momentum=None"
    )


def test_buffers_that_are_missing_or_did_not_change_are_told(images):
    model = network()
    update = gradleak.capture(model, images, LABELS, recipe=gradleak.Recipe(rate=0.1))
    given = {"labels": LABELS, "attack": "inverting_gradients", "norms": "inferred"}
    halves = {n: v for n, v in update.buffers_after.items() if not n.startswith("4.")}
    for buffers, word in (
        ({}, "before and after"),
        (halves, "inferred needs 4.running_mean"),
        (update.buffers_before, "did not change"),
    ):
        other = replace(update, buffers_after=buffers)
        caught(lambda other=other: gradleak.invert(other, model, SHAPE, **given), word)
    mixed = {**update.before, **update.buffers_before}, {**update.after, **update.buffers_after}
    whole = gradleak.Update(*mixed, update.recipe, 4)
    caught(lambda: gradleak.invert(whole, model, SHAPE, **given), "is a buffer of Sequential")


def test_norms_over_tokens_count_them():
    torch.manual_seed(0)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(24, 6), nn.BatchNorm1d(6)
            self.last = nn.Linear(6, 5)

        def forward(self, x):
            tokens = self.first(x.reshape(-1, 24))
            return self.last(self.norm(tokens).tanh()).reshape(len(x), -1, 5).mean(1)

    model, batch = Tokens(), torch.rand(4, *SHAPE)
    update = gradleak.capture(model, batch, LABELS, recipe=gradleak.Recipe(rate=0.1))
    found = known(model, "inferred", update)["norm"][1]
    tokens = model.first(batch.reshape(-1, 24)).detach()
    np.testing.assert_allclose(found, tokens.var(0, unbiased=False).numpy(), rtol=1e-3)
