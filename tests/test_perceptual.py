"""Metrics of FedKL's Table VI: what it calls MSE and PSNR, and LPIPS against its own package."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from torchvision.transforms.functional import to_pil_image

from backbone_files import untrained, write
from conftest import REAL_DATA
from gradleak.data import arrays, backbones
from gradleak.errors import DataError
from gradleak.scoring.metrics import perceptual
from gradleak.scoring.metrics.image import overflowed, psnr, psnr_rmse, rmse_255, ssim, ssim_255
from gradleak.scoring.metrics.perceptual import Lpips, as_stored, standard

NETWORKS = tuple(backbones.BACKBONES)


def pictures(seed, number=3, channels=3, height=32, width=32):
    return np.random.default_rng(seed).random((number, channels, height, width))


# --- What the paper calls MSE and PSNR ----------------------------------------------------------


def test_the_papers_mse_is_an_rmse_on_0_to_255():
    original = np.zeros((1, 2, 2))
    found = np.array([[[0.1, 0.0], [0.0, 0.3]]])
    expected = np.sqrt((25.5**2 + 76.5**2) / 4)
    assert rmse_255(original, found) == pytest.approx(expected)
    assert psnr_rmse(original, found) == pytest.approx(10 * np.log10(65025 / expected))


def test_the_papers_psnr_is_half_the_true_one_and_24_db():
    pair = pictures(0)[:2]
    assert psnr_rmse(*pair) == pytest.approx(10 * np.log10(255) + psnr(*pair) / 2)


def test_an_exact_reconstruction_stays_finite_as_a_true_psnr_does():
    (original,) = pictures(1, 1)
    assert rmse_255(original, original) == 0.0
    assert psnr(original, original) == pytest.approx(300.0)
    assert psnr_rmse(original, original) == pytest.approx(10 * np.log10(255) + 150.0)


def test_values_out_of_range_come_out_as_in_the_authors_files():
    values = torch.tensor(np.random.default_rng(2).normal(0.5, 3.0, (3, 40, 40)))
    values[0, 0, :4] = torch.tensor([-0.5 / 255, 255.5 / 255, -1.5 / 255, 256.5 / 255])
    stored = np.asarray(to_pil_image(values)).transpose(2, 0, 1)
    ours = overflowed(values.numpy())
    assert np.array_equal(np.trunc(ours), stored)
    assert ours[0, 0, :4] == pytest.approx([0.0, 255.0, 255.0, 0.0])
    inside = pictures(3)
    assert np.array_equal(overflowed(inside), 255.0 * inside)


def test_the_papers_ssim_is_the_usual_one_of_what_its_files_hold():
    original, found = pictures(4)[:2]
    assert ssim_255(original, found) == pytest.approx(ssim(original, found))
    stored = [overflowed(image) for image in (original, found + 20.0)]
    expected = structural_similarity(*stored, data_range=255.0, channel_axis=0)
    assert ssim_255(original, found + 20.0) == pytest.approx(expected)


def test_the_papers_ssim_sees_a_picture_that_clipping_makes():
    original = (pictures(5, 1)[0] > 0.5).astype(float)
    far = 30.0 * (original - 0.5) + np.random.default_rng(6).normal(0.0, 3.0, original.shape)
    assert psnr(original, far) < -20
    assert ssim(original, np.clip(far, 0.0, 1.0)) > 0.9
    assert abs(ssim_255(original, far)) < 0.2


# --- LPIPS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return backbones.by_network(write(tmp_path_factory.mktemp("lpips"), *NETWORKS))


@pytest.fixture(scope="module")
def alex(files):
    return Lpips("alex", files["alex"])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (70, 48)])
def test_lpips_is_that_of_its_own_package(network, height, width, files):
    package = importlib.import_module("lpips")
    function = backbones.BACKBONES[network].function
    features = SimpleNamespace(features=untrained(network))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package.pretrained_networks.tv, function, lambda pretrained: features)
        theirs = package.LPIPS(net=network, pnet_rand=True, verbose=False)
    one, other = (standard(pictures(k, height=height, width=width)) for k in range(2))
    with torch.no_grad():
        expected = theirs(*(torch.tensor(x, dtype=torch.float32) for x in (one, other)))
    ours = Lpips(network, files[network])(one, other)
    assert ours == pytest.approx(expected.numpy().ravel(), rel=1e-5)
    assert (ours > 1e-3).all()


@pytest.mark.parametrize("network", NETWORKS)
def test_equal_images_are_at_0_and_order_does_not_matter(network, files):
    distance = Lpips(network, files[network])
    one, other = standard(pictures(0)), standard(pictures(1))
    assert np.array_equal(distance(one, one), np.zeros(3))
    assert np.array_equal(distance(one, other), distance(other, one))


def test_grey_counts_as_three_equal_channels(alex):
    one, other = pictures(4, channels=1), pictures(5, channels=1)
    repeated = [np.repeat(images, 3, axis=1) for images in (one, other)]
    assert np.array_equal(standard(one), standard(repeated[0]))
    assert np.array_equal(alex(standard(one), standard(other)), alex(*map(standard, repeated)))


def test_inputs_are_clipped_and_put_on_minus_1_to_1():
    images = np.full((1, 3, 40, 50), 0.25)
    images[0, 0, 0, :2] = [-3.0, 7.0]
    prepared = standard(images)
    assert prepared.shape == images.shape
    assert prepared[0, 0, 0, :3].tolist() == [-1.0, 1.0, -0.5]


def test_small_images_are_enlarged_to_32(alex):
    slope = np.linspace(0.2, 0.8, 28) * np.ones((1, 1, 28, 1))
    prepared = standard(slope)
    assert prepared.shape == (1, 3, 32, 32)
    # A slope stays one between the outermost pixels' middles.
    steps = np.diff(prepared[0, 0, 0])[2:-2]
    assert steps == pytest.approx(np.full(27, 2 * 0.6 / 27 * 28 / 32))
    assert standard(pictures(0, height=20, width=50)).shape == (3, 3, 32, 50)
    assert alex(prepared, standard(1.0 - slope)) > 0


def test_the_authors_convention_is_0_to_255_with_blue_first():
    images = np.zeros((1, 3, 32, 32))
    images[0, 0], images[0, 2] = 1.0, 0.5
    images[0, 1, 0, 0] = 257 / 255
    prepared = as_stored(images)
    assert prepared[0, :, 5, 5].tolist() == [127.5, 0.0, 255.0]
    assert prepared[0, 1, 0, 0] == pytest.approx(1.0)


def test_the_authors_convention_gives_another_distance(alex):
    one, other = pictures(0), pictures(1)
    ours = alex(as_stored(one), as_stored(other))
    blue_first = [255.0 * images[:, ::-1] for images in (one, other)]
    assert ours == pytest.approx(alex(*blue_first))
    assert (np.abs(ours - alex(standard(one), standard(other))) > 1e-4).all()


def test_parts_and_threads_change_nothing(alex, monkeypatch):
    one, other = standard(pictures(0, 7)), standard(pictures(1, 7))
    whole = alex(one, other)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert np.array_equal(alex(one, other), whole)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(perceptual, "AT_ONCE", 2 * 32 * 32)
    assert alex(one, other) == pytest.approx(whole, rel=1e-5)
    assert alex(one[:0], other[:0]).shape == (0,)


def test_a_package_without_its_heads_is_named(files, monkeypatch):
    monkeypatch.setattr(perceptual.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"^lpips/weights/v0.1/vgg.pth is missing; install"):
        Lpips("vgg", files["vgg"])


# --- With trained networks ----------------------------------------------------------------------

REAL = Path(REAL_DATA or "absent")
TRAINED = backbones.by_network(backbones.present(REAL / backbones.FOLDER))


@pytest.mark.skipif("alex" not in TRAINED, reason="no trained AlexNet in GRADLEAK_DATA_ROOT")
def test_uniform_noise_scores_what_table_vi_says_of_dlg_with_the_lock():
    """98.76, 28.20 and 0.32: its DLG left noise, and its LPIPS is of 0..255, not of [-1, 1]."""
    images = arrays.load(REAL / "cifar10-train.safetensors", "cifar10", "train").images[:20] / 255.0
    noise = np.random.default_rng(0).normal(size=images.shape)
    pairs = list(zip(images, noise, strict=True))
    assert np.mean([rmse_255(*pair) for pair in pairs]) == pytest.approx(98.76, abs=1.0)
    assert np.mean([psnr_rmse(*pair) for pair in pairs]) == pytest.approx(28.20, abs=0.05)
    alex = Lpips("alex", TRAINED["alex"])
    assert alex(as_stored(images), as_stored(noise)).mean() == pytest.approx(0.32, abs=0.01)
    assert alex(standard(images), standard(noise)).mean() > 0.38


@pytest.mark.parametrize("network", TRAINED)
def test_trained_networks_see_more_in_grain_than_in_brightness(network):
    images = arrays.load(REAL / "cifar10-train.safetensors", "cifar10", "train").images[:20] / 255.0
    darker = 0.7 * images
    gap = np.sqrt(np.mean((images - darker) ** 2))
    grain = images + np.random.default_rng(0).normal(0.0, gap, images.shape)
    distance = Lpips(network, TRAINED[network])
    near, far = (distance(standard(images), standard(other)) for other in (darker, grain))
    assert near.mean() < far.mean() / 2
