"""The training engine: data, schedules, what it refuses, and what it gives."""

from copy import deepcopy
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from skimage.transform import resize
from torch import nn
from torch.nn import functional

from chains import TARGETS
from conftest import refused
from gradleak.data import targets
from gradleak.data.arrays import Dataset
from gradleak.data.resize import bilinear, fit
from gradleak.errors import ConfigError, NumericsError
from gradleak.models import resnet
from gradleak.models.build import fast_layout, load, with_statistics
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.training import data, learner
from gradleak.training.data import Images, divide
from gradleak.training.optimisers import Sgd
from gradleak.training.recipe import Recipe, arithmetic
from training_cases import COUNTS, CPU, PLAIN, RELU, SMALL, run_code, same, split, trainer

# oneDNN writes past its memory in the second convolution with channels last, if AVX2 is all it has.
FIRST = ConvSpec(6, (3, 3), padding=(1, 1), activation=RELU)
SECOND = ConvSpec(8, (1, 1), stride=(2, 2), activation=RELU, pool="global")
NARROW = Chain("narrow", (3, 16, 16), (FIRST, SECOND, LinearSpec(3)))


def test_rates_of_the_schedules():
    step = {"schedule": "step", "milestones": (0.3, 0.8), "factor": 0.1}
    for settings, rates in (
        (step, {0: 2, 29: 2, 30: 0.2, 79: 0.2, 80: 0.02, 99: 0.02}),
        ({"schedule": "cosine"}, {0: 2, 50: 1, 100: 0}),
        ({"schedule": "constant", "warmup": 0.1}, {0: 0.2, 4: 1, 9: 2, 70: 2}),
    ):
        recipe = Recipe(10, rate=2.0, **settings)
        assert {k: recipe.rate_at(k, 100) for k in rates} == pytest.approx(rates)


def test_images_are_shifted_and_mirrored_each_on_its_own():
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(1, 256, (400, 6, 5, 3)).astype(np.uint8))
    images = Images(pixels, torch.arange(400), offset=-0.5, std=0.5)
    generator = torch.Generator().manual_seed(3)
    seen = {}
    for inputs, labels in images.augmented(100, 2, True, generator):
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        back = ((inputs * 0.5 + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        for found, label in zip(back, labels, strict=True):
            seen[int(label)] = _move(pixels[label], found)
    assert len(seen) == 400, "each image once"
    assert {move[:2] for move in seen.values()} == set(product(range(5), range(5)))
    assert 120 < sum(mirrored for _, _, mirrored in seen.values()) < 280


def _move(image, found):
    """The shift and the mirroring that make `found` of `image`."""
    padded = functional.pad(image, (0, 0, 2, 2, 2, 2))
    for down, across, mirrored in product(range(5), range(5), (False, True)):
        crop = padded[down : down + 6, across : across + 5]
        if torch.equal(crop.flip(1) if mirrored else crop, found):
            return down, across, mirrored
    raise AssertionError("no shift of its image")


def test_parts_share_no_image_and_shrink_alike():
    parts = split()
    assert parts.sizes == COUNTS
    everything = torch.cat([p.pixels for p in (parts.train, parts.validation, parts.test)])
    assert len(everything.flatten(1).unique(dim=0)) == 100
    assert split({"train": 600, "validation": 200, "test": 200}).sizes == COUNTS
    with refused("mine-train has 100 images, too few for 1 of 2001 to test"):
        split({"train": 1000, "validation": 1000, "test": 1})


def test_engine_does_what_a_plain_loop_does():
    recipe = {"epochs": 3, "schedule": "step", "milestones": (0.5,), "weight_decay": 1e-3, **PLAIN}
    found = trainer(**recipe).run().last
    module = load(SMALL, with_statistics(SMALL, initial_weights(SMALL, 0)), torch.float32).train()
    usual = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05, **usual)
    train = split().train
    for epoch in range(3):
        generator = torch.Generator().manual_seed(learner.seed_of(0, epoch))
        order = torch.randperm(60, generator=generator)
        for step in range(3):
            optimiser.param_groups[0]["lr"] = 0.05 if 3 * epoch + step < 4.5 else 0.005
            chosen = order[16 * step : 16 * step + 16]
            output = module(train.inputs(train.pixels[chosen]))
            loss = functional.cross_entropy(output, train.labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for name, value in found.items():
        np.testing.assert_allclose(value, module.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_it_learns_and_the_best_epoch_is_chosen_on_validation():
    ours = trainer(epochs=12, precision="auto")
    found = ours.run()
    by_epoch = [row["validation_accuracy"] for row in found.rows]
    assert found.epoch == 1 + int(np.argmax(by_epoch))
    assert found.accuracy > 0.9
    ours._put(found.weights)
    assert ours.evaluate(ours.split.test)[1] == found.accuracy
    assert ours.evaluate(ours.split.validation)[1] == max(by_epoch)


def test_best_weights_are_kept_when_later_epochs_are_worse():
    ours, kept = trainer(epochs=4), []
    ours.evaluate = Mock(side_effect=[(1.0, reached) for reached in (0.5, 0.9, 0.9, 0.2, 0.7)])
    found = ours.run(on_epoch=lambda rows: kept.append(ours.weights()))
    assert (found.epoch, found.accuracy) == (2, 0.7)
    assert same(found.weights, kept[1]) and same(found.last, kept[3])


def test_networks_train_on_a_cpu_without_avx512_and_without_torch_compile():
    """Whose import takes as long as that of PyTorch, in every job that trains."""
    code = "import test_training\n"
    code += "t.trainer(chain=test_training.NARROW, parts=t.split(side=16), **t.PLAIN).run()\n"
    code += "assert 'torch._dynamo' not in sys.modules"
    assert run_code(code, ONEDNN_MAX_CPU_ISA="AVX2").wait() == 0
    assert fast_layout(NARROW) == torch.contiguous_format
    assert fast_layout(SMALL) == torch.channels_last


def test_a_rate_that_is_too_high_diverges():
    with pytest.raises(NumericsError, match=r"epoch \d .*no checkpoint had been written"):
        trainer(rate=1e30, checkpoint=100).run()


@pytest.mark.parametrize("name", ["conv1_norm.running_var", "conv1_norm.running_mean", None])
def test_statistics_or_a_validation_loss_that_are_not_finite_count_as_diverged(name):
    ours = trainer(**PLAIN)
    real = ours.evaluate

    def evaluate(images):
        if name is None:
            return float("nan"), 0.5
        found = real(images)
        ours.module.get_buffer(name)[0] = float("inf")
        return found

    ours.evaluate = evaluate
    loss = r"\d" if name else "nan"
    words = rf"diverged in epoch 1 \(loss [\d.]+, on validation {loss}"
    with pytest.raises(NumericsError, match=words):
        ours.run()


def test_too_little_memory_names_the_batch_that_fits(monkeypatch):
    parts = split({"train": 96, "validation": 2, "test": 2})
    monkeypatch.setattr(learner, "free_bytes", lambda device: 400_000)
    with pytest.raises(ConfigError, match=r"small: batch: 64 does not fit .* \d+ would fit") as e:
        trainer(batch=64, parts=parts).run()
    named = int(str(e.value).split(" would fit")[0].split()[-1])
    assert 1 <= named < 64
    trainer(batch=named, parts=parts, epochs=1).run()
    monkeypatch.setattr(learner, "free_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match="not even one image would fit"):
        trainer(batch=64, parts=parts).run()


def test_evaluation_takes_no_more_images_at_once_than_fit(monkeypatch):
    parts = split({"train": 50, "validation": 40, "test": 10})
    ours = trainer(parts=parts, batch=4, epochs=1)
    weights = sum(value.nbytes for value in ours.module.parameters())
    ours._forward = Mock(wraps=ours._forward)
    monkeypatch.setattr(learner, "free_bytes", lambda device: 200_000 + 3 * weights)
    ours.run()
    assert 4 <= max(len(call.args[1]) for call in ours._forward.call_args_list) < 40


def test_kept_bytes_are_those_of_the_activations():
    module = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 1))
    inputs = torch.zeros(7, 100)
    kept = learner.bytes_kept(lambda: module(inputs).sum())
    weights = 4 * (100 * 200 + 200)
    assert 4 * 7 * (100 + 200) <= kept <= weights + 4 * 7 * (100 + 200 + 200 + 1)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("x"), RuntimeError("not enough memory")])
def test_memory_that_runs_out_on_the_way_is_said_too(error):
    ours = trainer()
    ours._step = Mock(side_effect=error)
    with pytest.raises(ConfigError, match=r"batch: 16 does not fit .*; try batch: 8, or free"):
        ours.run()


def test_arithmetic_is_mixed_only_where_it_is_computed(monkeypatch):
    assert [arithmetic(kind, CPU) for kind in ("mixed", "float32")] == ["mixed", "float32"]
    for there in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda there=there: there)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        assert arithmetic("auto", CPU) == ("mixed" if there else "float32")


def test_mixed_precision_runs_in_bfloat16_and_keeps_float32_weights():
    ours, kinds = trainer(precision="mixed", epochs=1), []
    ours.module.conv2.register_forward_hook(lambda m, i, o: kinds.append(o.dtype))
    weights = ours.run().weights
    assert set(kinds) == {torch.bfloat16}
    assert {value.dtype for value in weights.values()} == {np.dtype(np.float32)}


def test_a_residual_network_trains():
    chain = Chain("r", (3, 16, 16), resnet.specs("resnet18", 4, 3, cut=(3,)))
    parts = split({"train": 96, "validation": 32, "test": 32}, images=160, side=16)
    found = trainer(chain=chain, parts=parts, epochs=8, crop=2).run()
    assert found.rows[-1]["train_loss"] < 0.8 * found.rows[0]["train_loss"]
    assert any(name.endswith("_skip_norm.running_var") for name in found.weights)


def test_a_norm_of_a_single_value_is_refused():
    deep = Chain("deep", (3, 8, 8), (ConvSpec(4, (8, 8), norm="batch"), LinearSpec(3)))
    with pytest.raises(ConfigError, match="the norm of conv1 has one value a channel in a batch"):
        trainer(chain=deep, batch=1).run()
    trainer(chain=deep, batch=2, epochs=1).run()


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("weight_decay", [5e-4, 0.0])
def test_steps_are_those_of_torch_to_the_last_bit(momentum, weight_decay):
    """Rates that change, and a parameter that has a gradient in every second step only."""
    settings = {"momentum": momentum, "nesterov": momentum > 0, "weight_decay": weight_decay}
    ours = nn.Linear(7, 5)
    theirs = deepcopy(ours)
    mine = Sgd(ours.parameters(), **settings)
    reference = torch.optim.SGD(theirs.parameters(), lr=1.0, **settings)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        rate = 0.1 / (step + 1)
        mine.forget_gradients()
        reference.zero_grad()
        assert all(p.grad is None for p in ours.parameters())
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            if one.dim() == 2 or step % 2:
                one.grad = torch.randn(one.shape, generator=generator)
                other.grad = one.grad.clone()
        mine.step(rate)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert len(mine.buffers) == (2 if momentum else 0)


# --- Images of another size: the same for target sets and for trainings --------------------------

ENTRY = TARGETS | {"offset": -0.5, "std": 0.25, "seed": 0, "classes": None}
PARTS = {"train": 30, "validation": 5, "test": 5}


def dataset(side, images=40, channels=3):
    rng = np.random.default_rng(side)
    pixels = rng.integers(0, 256, (images, channels, side, side)).astype(np.uint8)
    return Dataset(pixels, np.arange(images) % 2, ["a", "b"], "mine", "train", "test")


@pytest.mark.parametrize(("side", "size"), [(28, 32), (32, 56), (32, 224), (5, 7)])
def test_linear_interpolation_is_scikit_images(side, size):
    """But for halves, which compilers that fuse products and sums may round otherwise."""
    pixels = dataset(side, images=4).images
    for image, found in zip(pixels, bilinear(pixels, size), strict=True):
        known = resize(image, (3, size, size), order=1, mode="edge", preserve_range=True)
        difference = np.abs(found - np.rint(known))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-3


@pytest.mark.parametrize(
    ("side", "size", "how", "channels"),
    [
        (28, 32, "bilinear", 1), (32, 56, "bilinear", 3), (12, 36, "repeat", 3),
        (12, 8, "bilinear", 3), (12, None, "repeat", 3),
    ],
)  # fmt: skip
def test_a_training_sees_what_a_target_set_holds(side, size, how, channels, monkeypatch):
    monkeypatch.setattr(data, "ENLARGED", 3)
    source, resized = dataset(side, channels=channels), {"size": size, "resize": how}
    under_attack = targets.build(source, ENTRY | resized, 40, 1)
    parts = divide(source, PARTS, seed=3, offset=-0.5, std=0.25, device=CPU, **resized)
    order = np.random.default_rng(3).permutation(40)
    places = [np.sort(part) for part in np.split(order, [30, 35])]
    for images, own in zip((parts.train, parts.validation, parts.test), places, strict=True):
        inputs = torch.cat([x for x, _ in images.batches(4)])
        assert inputs.shape[1:] == under_attack.shape
        assert images.pixels.dtype == torch.uint8
        assert images.pixels.shape[1] == min(side, size or side)
        expected = np.concatenate([under_attack.inputs(int(place)) for place in own])
        np.testing.assert_allclose(inputs.numpy(), expected, rtol=0, atol=1e-6)


def test_images_are_moved_before_they_are_enlarged():
    def moved(**resized):
        images = divide(dataset(8), PARTS, seed=0, offset=0.0, std=1.0, device=CPU, **resized).train
        drawn = torch.Generator().manual_seed(1)
        return torch.cat([x for x, _ in images.augmented(10, 1, True, drawn)])

    pixels = (moved() * 255).round().to(torch.uint8).numpy()
    enlarged = moved(size=16, resize="bilinear").numpy()
    np.testing.assert_allclose(enlarged, bilinear(pixels, 16) / 255, atol=1e-6)


def test_sizes_that_no_repetition_gives_are_refused():
    with refused("trainings: images of 12x12 ", "size: 30 ", "a multiple of 12"):
        fit((12, 12), 30, "repeat", "trainings")
    with refused("for square images"):
        fit((12, 10), 20, "bilinear", "trainings")
