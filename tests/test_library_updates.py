"""Updates of several local steps, searches by derivatives, and checks of what was shared."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gradleak
from gradleak.attacks.base import AttackerView
from gradleak.attacks.optimization.engine.chain_gradients import ChainGradients, stack
from gradleak.attacks.optimization.engine.jacobian import Linearised
from gradleak.attacks.optimization.engine.module_gradients import (
    ModuleGradients,
    ModulePoint,
    ModuleView,
)
from gradleak.errors import NotApplicable, NumericsError
from gradleak.library.network import read_network
from test_library import caught, psnr

SHAPE = (1, 6, 6)
CLASSES = 5


def chain_of(activation=nn.Tanh, seed=0):
    """A small convolutional network all of whose layers have full rank."""
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 6, 3, 1, 1), activation(), nn.Flatten(), nn.Linear(216, CLASSES)
    return nn.Sequential(*layers)


class Untraced(nn.Module):
    """A chain, with the names of its parameters, that no tracer follows: it asks for a value."""

    def __init__(self, chain):
        super().__init__()
        for name, part in chain.named_children():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x if float(x.detach().sum()) > -1e9 else 2 * x)
        return x


@pytest.fixture
def images():
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))


def trained(model, images, labels, recipe):
    """Weights after local training by PyTorch's own optimisers."""
    own = copy.deepcopy(model).train()
    if recipe.optimiser == "adam":
        optimiser = torch.optim.Adam(own.parameters(), recipe.rate)
    else:
        optimiser = torch.optim.SGD(own.parameters(), recipe.rate, recipe.momentum)
    for batch in recipe.batches(len(images)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(own(images[batch]), labels[batch]).backward()
        optimiser.step()
    return own


@pytest.mark.parametrize(
    "recipe",
    [
        gradleak.Recipe(0.1),
        gradleak.Recipe(0.1, epochs=3, batch_size=2),
        gradleak.Recipe(0.05, epochs=2, batch_size=3, momentum=0.9),
        gradleak.Recipe(0.01, epochs=3, batch_size=2, optimiser="adam"),
    ],
)
def test_an_update_is_that_of_pytorchs_optimisers(recipe):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)
    ).double()
    images, labels = torch.rand(5, *SHAPE).double(), torch.tensor([0, 1, 2, 3, 4])
    found = gradleak.capture(model, images, labels, recipe=recipe)
    after = trained(model, images, labels, recipe)
    for name, value in after.named_parameters():
        torch.testing.assert_close(found.after[name], value.detach())
    for name, value in after.named_buffers():
        torch.testing.assert_close(found.buffers_after[name], value)
    assert found.steps == len(recipe.batches(5)) and found.count == 5
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, value in {**found.before, **found.buffers_before}.items():
        assert torch.equal(state[name], value)


def test_an_update_of_one_step_is_its_gradient(images):
    model = chain_of().double()
    shared = gradleak.capture(model, images.double(), [1])
    update = gradleak.capture(model, images.double(), [1], recipe=gradleak.Recipe(0.1))
    for name, value in update.mean_gradient().items():
        np.testing.assert_allclose(value, shared[name].numpy(), rtol=0, atol=1e-14)
    found = gradleak.invert(update, chain_of(seed=5).double(), SHAPE)  # with the update's weights
    assert found.labels == (1,) and psnr(images.double(), found) > 150


def test_a_closed_form_is_carried_through_local_steps(images):
    model = chain_of().double()
    recipe = gradleak.Recipe(0.2, epochs=3)
    update = gradleak.capture(model, images.double(), [1], recipe=recipe)
    found = gradleak.invert(update, model, SHAPE)
    first = gradleak.invert(update.mean_gradient(), model, SHAPE)
    assert "carried" in found.stop and "3 steps" in found.stop
    assert psnr(images.double(), found) > psnr(images.double(), first) + 20
    assert found.distance < 1e-3


@pytest.mark.parametrize("attack", ["inverting_gradients", "dlg", "gauss_newton", "surrogate"])
def test_searches_take_updates(images, attack):
    model, recipe = chain_of(), gradleak.Recipe(0.05, epochs=2)
    update = gradleak.capture(model, images, [3], recipe=recipe)
    settings = {"iterations": 10 if attack == "gauss_newton" else 60}
    found = gradleak.invert(update, model, SHAPE, attack, **settings)
    assert found.labels == (3,) and found.distance < 0.5 and psnr(images, found) > 8


def test_adams_updates_are_for_searches(images):
    model, recipe = chain_of(), gradleak.Recipe(0.01, epochs=2, optimiser="adam")
    update = gradleak.capture(model, images, [3], recipe=recipe)
    caught(lambda: gradleak.invert(update, model, SHAPE), "adam", "search", kind=NotApplicable)
    found = gradleak.invert(update, model, SHAPE, "dlg", labels=[3], iterations=60)
    assert np.isfinite(found.distance)


def test_a_surrogate_needs_several_steps(images):
    model = chain_of()
    shared = gradleak.capture(model, images, [3])
    call = lambda: gradleak.invert(shared, model, SHAPE, "surrogate")  # noqa: E731
    caught(call, "several local steps", kind=NotApplicable)


@pytest.mark.parametrize("attack", ["dlg", "gauss_newton"])
def test_searches_by_derivatives_take_any_network(images, attack):
    model = Untraced(chain_of())
    shared = gradleak.capture(model, images, [2])
    settings = {"iterations": 300 if attack == "dlg" else 20}
    found = gradleak.invert(shared, model, SHAPE, attack, **settings)
    assert found.labels == (2,) and psnr(images, found) > 20


def test_products_of_a_module_are_those_of_a_chain(images):
    """J v and Jᵀ u by automatic differentiation against the passes written by hand."""
    model = chain_of().double()
    network = read_network(model, SHAPE, loss="cross_entropy", mode="evaluation")
    shared = {n: v.detach().numpy() for n, v in model.named_parameters()}
    view = AttackerView(network.attacked, {}, shared, (1,), 0.0, 1.0)
    place = torch.float64, torch.device("cpu")
    by_module = ModuleGradients(ModuleView(network.module, view), *place)
    kind = {"dtype": place[0], "device": place[1]}
    by_hand = ChainGradients(network.chain, stack([network.weights]), "cross_entropy", **kind)
    x, labels, scale = images.double()[None], torch.tensor([[1]]), torch.ones(1).double()
    one, other = ModulePoint(by_module, x, labels, scale), Linearised(by_hand, x, labels, scale)
    v = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for found, known in zip(one.forward(v), other.forward(v), strict=True):
        torch.testing.assert_close(found.flatten(), known.flatten())
    u = [torch.ones_like(g) for g in one.gradients()]
    theirs = [torch.ones_like(g) for g in other.gradients()]
    torch.testing.assert_close(one.adjoint(u).flatten(), other.adjoint(theirs).flatten())


@pytest.mark.parametrize("count", [1, 3, 8])
def test_labels_of_a_batch_are_inferred(count):
    model, chance = chain_of(), torch.Generator().manual_seed(count)
    images = torch.rand(count, *SHAPE, generator=chance)
    labels = torch.randint(0, CLASSES, (count,), generator=chance)
    shared = gradleak.capture(model, images, labels)
    settings = {"batch": count, "iterations": 2}
    found = gradleak.invert(shared, Untraced(model), SHAPE, "inverting_gradients", **settings)
    assert sorted(found.labels) == sorted(labels.tolist())


def wrong(kind, shared, count):
    """A payload that is not what it is taken for."""
    factor = {"sum": count, "sign": -1.0, "weights": 0.01, "fine": 1.0, "frozen": 1.0}[kind]
    out = {name: factor * value for name, value in shared.items()}
    if kind == "frozen":
        out["0.weight"] = torch.zeros_like(out["0.weight"])
    return out


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sum", "a sum over 8 images"),
        ("sign", "sign is turned"),
        ("weights", "difference of weights at the rate 0.01"),
        ("frozen", "1 of 4 parameters are zero (0.weight)"),
        ("fine", ""),
    ],
)
def test_check_says_what_a_payload_is(kind, words):
    count = 1 if kind in ("sign", "frozen") else 8
    model = chain_of()
    images, labels = torch.rand(count, *SHAPE), torch.arange(count) % CLASSES
    shared = wrong(kind, gradleak.capture(model, images, labels), count)
    found = gradleak.check(shared, model, SHAPE, labels=labels, rate=0.01)
    assert len(found.findings) == bool(words) and words in str(found)
    assert len(found.parameters) == 4


def test_check_sees_the_mode_of_an_update():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)
    )
    update = gradleak.capture(
        model, torch.rand(4, *SHAPE), [0, 1, 2, 3], recipe=gradleak.Recipe(0.01, epochs=2)
    )
    assert gradleak.check(update, model, SHAPE).findings == ()
    found = gradleak.check(update, model, SHAPE, mode="evaluation")
    assert any("training mode" in text for text in found.findings)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gradleak.Recipe(0.0), ["rate", "0.0"]),
        (lambda: gradleak.Recipe(0.1, epochs=0), ["epochs"]),
        (lambda: gradleak.Recipe(0.1, batch_size=0), ["batch_size"]),
        (lambda: gradleak.Recipe(0.1, optimiser="lamb"), ["optimiser", "lamb"]),
        (lambda: gradleak.Recipe(0.1, momentum=1.5), ["momentum"]),
        (lambda: gradleak.Recipe(0.1, optimiser="adam", momentum=0.9), ["adam"]),
    ],
)
def test_bad_recipes(call, words):
    caught(call, *words)


def test_bad_updates(images):
    model, recipe = chain_of(), gradleak.Recipe(0.1)
    own = {name: value.detach() for name, value in model.named_parameters()}
    caught(lambda: gradleak.Update(own, {}, recipe, 1), "only one of before and after")
    caught(lambda: gradleak.Update(own, own, recipe, 0), "count")
    short = own | {"0.weight": own["0.weight"][:2]}
    caught(lambda: gradleak.Update(own, short, recipe, 1), "0.weight", "before")
    still = gradleak.Update(own, own, recipe, 1)
    caught(lambda: gradleak.invert(still, model, SHAPE), "equal", kind=NumericsError)
    other = {"a": torch.zeros(3)}
    odd = gradleak.Update(other, {"a": torch.ones(3)}, recipe, 1)
    caught(lambda: gradleak.invert(odd, model, SHAPE), "a of [3]", "not in Sequential")


def unknown(update, recipes):
    """The same update, of a client that may have followed any of these recipes."""
    given = update.before, update.after, recipes[0], update.count
    return gradleak.Update(*given, candidates=tuple(recipes[1:]))


def test_an_unknown_rate_is_told_by_the_image_that_explains_the_update():
    model, images = chain_of(), torch.rand(1, *SHAPE)
    update = gradleak.capture(model, images, [2], recipe=gradleak.Recipe(rate=0.1, epochs=2))
    recipes = [gradleak.Recipe(rate=r, epochs=e) for r in (1e-3, 0.05, 0.1, 0.2) for e in (1, 2)]
    found = gradleak.invert(unknown(update, recipes), model, SHAPE)
    assert found.recipe == gradleak.Recipe(rate=0.1, epochs=2)
    assert psnr(images, found) > 40


def test_a_search_tries_candidates_in_few_steps():
    model, images = chain_of(), torch.rand(2, *SHAPE)
    true = gradleak.Recipe(rate=0.5, epochs=2, batch_size=1)
    update = gradleak.capture(model, images, [2, 3], recipe=true)
    recipes = [gradleak.Recipe(rate=0.5, epochs=2), true]
    given = {"labels": [2, 3], "iterations": 300, "tv": 0.0}
    found = gradleak.invert(unknown(update, recipes), model, SHAPE, "inverting_gradients", **given)
    assert found.recipe == true


def test_candidates_that_cannot_be_attacked_are_told():
    model, images = chain_of(), torch.rand(1, *SHAPE)
    update = gradleak.capture(model, images, [2], recipe=gradleak.Recipe(rate=0.1, epochs=2))
    recipes = [gradleak.Recipe(rate=r, optimiser="adam") for r in (0.1, 0.05)]
    with pytest.raises(NotApplicable, match="adam"):
        gradleak.invert(unknown(update, recipes), model, SHAPE)


def test_check_tells_what_came_back_in_place_of_weights():
    model, images = chain_of(), torch.rand(1, *SHAPE)
    recipe = gradleak.Recipe(rate=0.01, epochs=2)
    update = gradleak.capture(model, images, [2], recipe=recipe)
    assert gradleak.check(update, model, SHAPE, labels=[2]).findings == ()
    changes = {name: update.after[name] - value for name, value in update.before.items()}
    gradients = gradleak.capture(model, images, [2])
    swapped = gradleak.Update(update.after, update.before, recipe, 1)
    for other, words in (
        (gradleak.Update(update.before, changes, recipe, 1), "changes of weights"),
        (gradleak.Update(update.before, gradients, recipe, 1), "gradients; give before minus"),
        (swapped, "before and after may be exchanged"),
    ):
        assert words in str(gradleak.check(other, model, SHAPE, labels=[2]))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"recipe": 0.1}, "recipe: give a gradleak.Recipe"),
        ({"candidates": (0.1,)}, "candidates: give a gradleak.Recipe"),
        ({"count": "1"}, "count: give the number"),
        ({"count": 1.5}, "count: give the number"),
        ({"before": [1.0]}, "before: give tensors or arrays by name"),
        ({"after": {"0.weight": [1.0]}}, "after: 0.weight is not a tensor"),
    ],
)
def test_an_update_of_something_else_is_told(wrong, word):
    model = chain_of()
    update = gradleak.capture(model, torch.rand(1, *SHAPE), [2], recipe=gradleak.Recipe(rate=0.1))
    given = {"before": update.before, "after": update.after, "recipe": update.recipe, "count": 1}
    caught(lambda: gradleak.Update(**{**given, **wrong}), word)


def test_an_update_may_be_arrays_and_one_step_among_candidates():
    model, images = chain_of(), torch.rand(1, *SHAPE)
    update = gradleak.capture(model, images, [2], recipe=gradleak.Recipe(rate=0.1))
    before, after = (
        {name: value.numpy() for name, value in side.items()}
        for side in (update.before, update.after)
    )
    recipes = gradleak.Recipe(rate=0.3), gradleak.Recipe(rate=0.1)
    other = gradleak.Update(before, after, recipes[0], 1, candidates=[recipes[1]])
    found = gradleak.invert(other, model, SHAPE)
    assert found.recipe == recipes[1] and found.threat == "C" and psnr(images, found) > 40


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rate": "0.1"}, "rate: give a number"),
        ({"rate": float("inf")}, "rate: give a number above 0"),
        ({"rate": 0.1, "epochs": 1.5}, "epochs: give a whole number"),
    ],
)
def test_a_recipe_takes_numbers(wrong, word):
    caught(lambda: gradleak.Recipe(**wrong), word)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"attack": ["rgap"]}, "attack"),
        ({"norms": ["running"]}, "norms"),
        ({"low": "a"}, "low: give a number"),
        ({"seed": -1}, "seed: give a whole number"),
    ],
)
def test_scalars_of_invert_are_checked(more, word):
    model = chain_of()
    shared = gradleak.capture(model, torch.rand(1, *SHAPE), [2])
    caught(lambda: gradleak.invert(shared, model, SHAPE, **more), word)


def test_drift_tells_how_far_the_steps_moved_the_gradient():
    model, images = chain_of(), torch.rand(1, *SHAPE)

    def found(rate):
        recipe = gradleak.Recipe(rate=rate, epochs=3)
        update = gradleak.capture(model, images, [2], recipe=recipe)
        return gradleak.invert(update, model, SHAPE).drift

    assert found(1e-4) < 0.01 < found(0.1)
    shared = gradleak.capture(model, images, [2])
    assert gradleak.invert(shared, model, SHAPE).drift == 0.0


def test_labels_of_a_batch_are_inferred_on_a_chain_too():
    model, labels = chain_of(), [1, 3, 3]
    shared = gradleak.capture(model, torch.rand(3, *SHAPE), labels)
    found = gradleak.invert(shared, model, SHAPE, "inverting_gradients", batch=3, iterations=2)
    assert sorted(found.labels) == labels
    free = {"batch": 3, "iterations": 2, "label": "unknown"}
    assert gradleak.invert(shared, model, SHAPE, "dlg", **free).labels == ()


def test_numbers_may_be_numpy_s():
    model, images = chain_of(), torch.rand(1, *SHAPE)
    recipe = gradleak.Recipe(rate=np.float32(0.1), epochs=np.int64(1))
    update = gradleak.capture(model, images, [2], recipe=recipe)
    given = update.before, update.after, recipe, np.int64(1)
    found = gradleak.invert(
        gradleak.Update(*given), model, SHAPE, seed=np.int64(3), high=np.float32(1.0)
    )
    assert psnr(images, found) > 40
