"""Images of another size: the same bytes for target sets and for trainings."""

import numpy as np
import pytest
import torch
from skimage.transform import resize

from gradleak.data import targets
from gradleak.data.arrays import Dataset
from gradleak.data.resize import bilinear, fit
from gradleak.training import data as training
from gradleak.training.data import divide
from refusals import refused

ENTRY = {
    "indices": None, "draw": "consecutive", "first": 0, "relabel": 0, "names": None, "offset": -0.5,
    "std": 0.25, "seed": 0, "classes": None,
}  # fmt: skip
COUNTS = {"train": 30, "validation": 5, "test": 5}


def dataset(side, images=40, channels=3):
    rng = np.random.default_rng(side)
    pixels = rng.integers(0, 256, (images, channels, side, side)).astype(np.uint8)
    return Dataset(pixels, np.arange(images) % 2, ["a", "b"], "mine", "train", "test")


@pytest.mark.parametrize(("side", "size"), [(28, 32), (32, 56), (32, 224), (5, 7)])
def test_linear_interpolation_is_scikit_images(side, size):
    """But for halves, which compilers that fuse products and sums may round otherwise."""
    pixels = dataset(side, images=4).images
    ours = bilinear(pixels, size)
    for image, found in zip(pixels, ours, strict=True):
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
    monkeypatch.setattr(training, "ENLARGED", 3)
    data = dataset(side, channels=channels)
    under_attack = targets.build(data, ENTRY | {"size": size, "resize": how}, 40, 1)
    scale = {"seed": 3, "offset": -0.5, "std": 0.25, "device": torch.device("cpu")}
    split = divide(data, COUNTS, size=size, resize=how, **scale)
    order = np.random.default_rng(3).permutation(40)
    places = [np.sort(part) for part in np.split(order, [30, 35])]
    for images, own in zip((split.train, split.validation, split.test), places, strict=True):
        inputs = torch.cat([x for x, _ in images.batches(4)])
        assert inputs.shape[1:] == under_attack.shape
        assert images.pixels.dtype == torch.uint8
        assert images.pixels.shape[1] == min(side, size or side)
        expected = np.concatenate([under_attack.inputs(int(place)) for place in own])
        np.testing.assert_allclose(inputs.numpy(), expected, rtol=0, atol=1e-6)


def test_images_are_moved_before_they_are_enlarged():
    data = dataset(8)
    scale = {"seed": 0, "offset": 0.0, "std": 1.0, "device": torch.device("cpu")}
    images = divide(data, COUNTS, size=16, resize="bilinear", **scale).train
    drawn = [torch.Generator().manual_seed(1) for _ in range(2)]
    enlarged = torch.cat([x for x, _ in images.augmented(10, 1, True, drawn[0])])
    small = divide(data, COUNTS, **scale).train
    moved = torch.cat([x for x, _ in small.augmented(10, 1, True, drawn[1])])
    pixels = (moved * 255).round().to(torch.uint8).numpy()
    np.testing.assert_allclose(enlarged.numpy(), bilinear(pixels, 16) / 255, atol=1e-6)


def test_sizes_that_no_repetition_gives_are_refused():
    with refused("trainings: images of 12x12 ", "size: 30 ", "a multiple of 12"):
        fit((12, 12), 30, "repeat", "trainings")
    with refused("for square images"):
        fit((12, 10), 20, "bilinear", "trainings")
