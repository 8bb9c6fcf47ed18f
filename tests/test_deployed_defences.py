"""Defences that frameworks of federated learning ship: DP-SGD, percentile privacy, local DP."""

import numpy as np
import pytest
import torch
from torch import nn

import gradleak
from chains import captured, chain, conv, models
from gradleak.client.defences.apply import defend_all
from gradleak.client.defences.base import Client, build
from gradleak.errors import ConfigError
from test_answers import MODELS, target_set
from test_library import caught

DRAWS = np.random.default_rng(0)
SHAPE, CLASSES = (1, 6, 6), 5


def norm(values):
    """Norm over all parameters."""
    return np.sqrt(sum(float(np.vdot(value, value)) for value in values.values()))


def model_of():
    """A small convolutional network."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 6, 3, 1, 1), nn.Tanh(), nn.Flatten(), nn.Linear(216, CLASSES)
    return nn.Sequential(*layers)


def nobody(count=1):
    return Client(chain(conv(1, 3)), {}, np.empty(0), np.zeros(count, dtype=int))


def dp_sgd(**settings):
    return build({"method": "dp_sgd", **settings})


def test_dp_sgd_clips_each_gradient_and_takes_their_mean():
    singles = [{"a": DRAWS.standard_normal((3, 2)), "b": DRAWS.standard_normal(4)} for _ in "123"]
    size = norm(singles[0])
    singles[1] = {name: 10.0 * value for name, value in singles[1].items()}
    client = Client(
        chain(conv(1, 3)), {}, np.empty(0), np.zeros(3, dtype=int), lambda k: singles[k]
    )
    mean = {name: sum(one[name] for one in singles) / 3 for name in singles[0]}
    found = dp_sgd(norm=size, noise_multiplier=0).apply(client, mean, 0)
    for name in mean:
        clipped = [one[name] * min(1.0, size / norm(one)) for one in singles]
        np.testing.assert_allclose(found[name], sum(clipped) / 3, rtol=1e-12)
    # Nothing is clipped, and the noise is of the sum.
    noisy = dp_sgd(norm=100.0, noise_multiplier=0.5)
    wide = {"a": np.zeros(40_000)}
    quiet = Client(client.chain, {}, client.images, client.labels, lambda k: wide)
    assert noisy.apply(quiet, wide, 1)["a"].std() == pytest.approx(50.0 / 3, rel=0.02)
    with pytest.raises(ConfigError, match="gradient of each image"):
        noisy.apply(nobody(2), wide, 0)


@pytest.mark.parametrize("count", [1, 3])
def test_dp_sgd_on_files_has_the_gradients_of_single_images(count):
    chosen = target_set(2, batch=count)
    plain, metadata = defended(chosen)
    found, _ = defended(chosen, dp_sgd(norm=1e-3, noise_multiplier=0))
    whole, _ = defended(chosen, dp_sgd(norm=1e6, noise_multiplier=0))
    for key, value in plain.items():
        if key.endswith(("label", "class")):
            np.testing.assert_array_equal(found[key], value)
            continue
        np.testing.assert_allclose(whole[key], value, rtol=1e-9, atol=1e-12 * np.abs(value).max())
        assert metadata["batch"] == count
    sizes = [norm({k: v[0, b] for k, v in found.items() if "weight" in k}) for b in range(2)]
    assert max(sizes) <= 1e-3 * (1 + 1e-9)


def defended(chosen, defence=None):
    """Gradients of a target set, and their metadata."""
    more = {"loss": "logistic", "labels": "opposite"}
    tensors, metadata = captured(MODELS, chosen, **more)
    if defence is not None:
        defend_all(MODELS, chosen, tensors, metadata, defence)
    return tensors, metadata


def test_percentile_privacy_is_that_of_a_step_whatever_the_unit():
    update = {"a": DRAWS.standard_normal((50, 40)), "b": DRAWS.standard_normal(7)}
    values = np.concatenate([v.ravel() for v in update.values()])
    cutoff = np.percentile(np.abs(values), 30)
    plain = build({"method": "percentile_privacy", "percentile": 30, "gamma": 1.5})
    found = plain.apply(nobody(), update, 0)
    for name, value in update.items():
        small, large = np.abs(value) < cutoff, np.abs(value) > 1.5
        assert not found[name][small].any() and (np.abs(found[name][large]) == 1.5).all()
        rest = ~small & ~large
        np.testing.assert_array_equal(found[name][rest], value[rest])
    share = np.mean(np.concatenate([v.ravel() for v in found.values()]) == 0)
    assert share == pytest.approx(0.3, abs=1e-3)
    # A gradient with its rate, and the sum of four steps, are the same update in other units.
    for scale, settings in ((20.0, {"rate": 0.05}), (4.0, {"steps": 4})):
        other = build({"method": "percentile_privacy", "percentile": 30, "gamma": 1.5, **settings})
        moved = other.apply(nobody(), {n: scale * v for n, v in update.items()}, 0)
        for name, value in found.items():
            np.testing.assert_allclose(moved[name], scale * value, rtol=1e-12)


def test_local_dp_clips_the_update_and_adds_the_noise_of_its_budget():
    update = {"a": DRAWS.standard_normal(40_000)}
    given = {"clipping_norm": 2.0, "sensitivity": 0.5, "epsilon": 0.8, "delta": 1e-5}
    found = build({"method": "local_dp", **given}).apply(nobody(), update, 3)["a"]
    clipped = update["a"] * 2.0 / np.linalg.norm(update["a"])
    deviation = 0.5 * np.sqrt(2 * np.log(1.25e5)) / 0.8
    assert (found - clipped).std() == pytest.approx(deviation, rel=0.02)
    slow = build({"method": "local_dp", **given, "rate": 0.1})
    np.testing.assert_allclose(
        0.1 * slow.apply(nobody(), {"a": 10.0 * update["a"]}, 3)["a"], found, rtol=1e-9
    )


def test_a_library_user_defends_a_gradient_of_a_batch():
    model, images = model_of(), torch.rand(3, *SHAPE)
    given = gradleak.capture(model, images, [0, 1, 2])
    batch = {"images": images, "labels": [0, 1, 2]}
    found = gradleak.defend(given, model, "dp_sgd", norm=1e6, noise_multiplier=0.0, **batch)
    for name, value in given.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
    caught(lambda: gradleak.defend(given, model, "dp_sgd"), "images, labels")
    other = {"images": torch.rand(3, *SHAPE), "labels": [0, 1, 2]}
    caught(lambda: gradleak.defend(given, model, "dp_sgd", **other), "give the batch")
    caught(lambda: gradleak.defend(given, model, "local_dp"), "rate: local_dp acts on changes")
    assert gradleak.defend(given, model, "local_dp", rate=0.1).keys() == given.keys()
    assert gradleak.defend(given, model).keys() == given.keys()
    normed = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 5))
    mixed = gradleak.capture(normed, images, [0, 1, 2])
    caught(lambda: gradleak.defend(mixed, normed, "dp_sgd", **batch), "1 of Sequential mixes")
    alone = gradleak.capture(normed, images, [0, 1, 2], mode="evaluation")
    found = gradleak.defend(alone, normed, "dp_sgd", mode="evaluation", **batch)
    assert found.keys() == alone.keys()


def test_an_update_is_defended_as_a_change_of_weights():
    model, images = model_of(), torch.rand(1, *SHAPE)
    recipe = gradleak.Recipe(rate=0.1, epochs=4)
    update = gradleak.capture(model, images, [2], recipe=recipe)
    large = {"percentile": 50, "gamma": 1e3}
    found = gradleak.defend(update, model, "percentile_privacy", **large)
    assert found.before.keys() == update.before.keys() and found.recipe == recipe
    values = np.abs(np.concatenate([v.ravel() for v in update.change.values()]))
    kept = np.concatenate([v.ravel() for v in found.change.values()])
    # What is added to a weight is rounded with it.
    assert np.mean(np.abs(kept) < 1e-7) == pytest.approx(0.5, abs=0.02)
    assert np.abs(kept).max() == pytest.approx(values.max(), rel=1e-3)
    # The bound is one of a step, and four were added up.
    cut = gradleak.defend(update, model, "percentile_privacy", gamma=1e-3).change
    assert max(np.abs(v).max() for v in cut.values()) == pytest.approx(4e-3, rel=1e-3)
    noisy = gradleak.defend(update, model, "local_dp", epsilon=0.5)
    assert norm(noisy.change) > 5 * norm(update.change)
    caught(
        lambda: gradleak.defend(update, model, "soteria", images=images, labels=[2]), "an update"
    )


def test_norms_that_mix_a_batch_are_refused_on_files():
    sent = models(chain(conv(2, 3, norm="batch"), side=8, channels=1, classes=2))
    chosen = target_set(1, batch=2)
    tensors, metadata = captured(sent, chosen)
    with pytest.raises(ConfigError, match="batch norms mix the images"):
        defend_all(sent, chosen, tensors, metadata, dp_sgd())


def test_running_statistics_of_an_update_are_defended_with_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 5))
    update = gradleak.capture(
        model, torch.rand(3, *SHAPE), [0, 1, 2], recipe=gradleak.Recipe(rate=0.1)
    )
    noisy = gradleak.defend(update, model, "local_dp", epsilon=0.5)
    name = "1.running_mean"
    assert not torch.equal(noisy.buffers_after[name], update.buffers_after[name])
    counted = "1.num_batches_tracked"
    assert torch.equal(noisy.buffers_after[counted], update.buffers_after[counted])
    caught(lambda: gradleak.defend(update, model, "local_dp", rate=0.1), "an update has its own")
