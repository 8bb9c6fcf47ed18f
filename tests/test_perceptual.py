"""Metrics of FedKL's Table VI: what it calls MSE and PSNR; LPIPS against its package; scores."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from skimage.metrics import structural_similarity
from torchvision.transforms.functional import to_pil_image

import figure_files
from backbone_files import untrained, write
from chains import chain, conv
from claims_synthetic import outcome
from conftest import REAL_DATA
from gradleak.attacks import reconstructions
from gradleak.claims import Evidence
from gradleak.data import arrays, backbones
from gradleak.errors import DataError
from gradleak.models import files
from gradleak.models.initial import family_weights
from gradleak.runtime.artifacts import write_rows, write_tensors
from gradleak.scoring import scores, scores_fedkl
from gradleak.scoring.metrics import perceptual
from gradleak.scoring.metrics.image import overflowed, psnr, psnr_rmse, rmse_255, ssim, ssim_255
from gradleak.scoring.metrics.perceptual import Lpips, as_stored, standard

NETWORKS = tuple(backbones.BACKBONES)


def pictures(seed, number=3, channels=3, height=32, width=32):
    return np.random.default_rng(seed).random((number, channels, height, width))


def test_the_papers_mse_is_an_rmse_on_0_to_255_and_its_psnr_half_the_true_one_and_24_db():
    original = np.zeros((1, 2, 2))
    found = np.array([[[0.1, 0.0], [0.0, 0.3]]])
    expected = np.sqrt((25.5**2 + 76.5**2) / 4)
    assert rmse_255(original, found) == pytest.approx(expected)
    assert psnr_rmse(original, found) == pytest.approx(10 * np.log10(65025 / expected))
    one, other = pictures(0)[:2]
    # An exact reconstruction stays finite.
    for pair in ((one, other), (one, one)):
        assert psnr_rmse(*pair) == pytest.approx(10 * np.log10(255) + psnr(*pair) / 2)
    assert (rmse_255(one, one), psnr(one, one)) == (0.0, pytest.approx(300.0))


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
    # It does not see a picture that clipping makes.
    original = (pictures(5, 1)[0] > 0.5).astype(float)
    far = 30.0 * (original - 0.5) + np.random.default_rng(6).normal(0.0, 3.0, original.shape)
    assert psnr(original, far) < -20
    assert ssim(original, np.clip(far, 0.0, 1.0)) > 0.9
    assert abs(ssim_255(original, far)) < 0.2


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return backbones.by_network(write(tmp_path_factory.mktemp("lpips"), *NETWORKS))


@pytest.fixture(scope="module")
def alex(backbone):
    return Lpips("alex", backbone["alex"])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (70, 48)])
def test_lpips_is_that_of_its_own_package(network, height, width, backbone):
    package = importlib.import_module("lpips")
    function = backbones.BACKBONES[network].function
    features = SimpleNamespace(features=untrained(network))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package.pretrained_networks.tv, function, lambda pretrained: features)
        theirs = package.LPIPS(net=network, pnet_rand=True, verbose=False)
    one, other = (standard(pictures(k, height=height, width=width)) for k in range(2))
    with torch.no_grad():
        expected = theirs(*(torch.tensor(x, dtype=torch.float32) for x in (one, other)))
    distance = Lpips(network, backbone[network])
    ours = distance(one, other)
    assert ours == pytest.approx(expected.numpy().ravel(), rel=1e-5)
    assert (ours > 1e-3).all() and np.array_equal(distance(other, one), ours)
    assert np.array_equal(distance(one, one), np.zeros(3))


def test_grey_counts_as_three_equal_channels_and_inputs_are_clipped_and_enlarged(alex):
    one, other = pictures(4, channels=1), pictures(5, channels=1)
    repeated = [np.repeat(images, 3, axis=1) for images in (one, other)]
    assert np.array_equal(standard(one), standard(repeated[0]))
    assert np.array_equal(alex(standard(one), standard(other)), alex(*map(standard, repeated)))
    # Inputs are clipped and put on [-1, 1]; small ones are enlarged to 32.
    images = np.full((1, 3, 40, 50), 0.25)
    images[0, 0, 0, :2] = [-3.0, 7.0]
    prepared = standard(images)
    assert prepared.shape == images.shape
    assert prepared[0, 0, 0, :3].tolist() == [-1.0, 1.0, -0.5]
    slope = np.linspace(0.2, 0.8, 28) * np.ones((1, 1, 28, 1))
    prepared = standard(slope)
    assert prepared.shape == (1, 3, 32, 32)
    # A slope stays one between the outermost pixels' middles.
    steps = np.diff(prepared[0, 0, 0])[2:-2]
    assert steps == pytest.approx(np.full(27, 2 * 0.6 / 27 * 28 / 32))
    assert standard(pictures(0, height=20, width=50)).shape == (3, 3, 32, 50)
    assert alex(prepared, standard(1.0 - slope)) > 0


def test_the_authors_convention_is_0_to_255_with_blue_first(alex):
    images = np.zeros((1, 3, 32, 32))
    images[0, 0], images[0, 2] = 1.0, 0.5
    images[0, 1, 0, 0] = 257 / 255
    prepared = as_stored(images)
    assert prepared[0, :, 5, 5].tolist() == [127.5, 0.0, 255.0]
    assert prepared[0, 1, 0, 0] == pytest.approx(1.0)
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


def test_a_package_without_its_heads_is_named(backbone, monkeypatch):
    monkeypatch.setattr(perceptual.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"^lpips/weights/v0.1/vgg.pth is missing; install"):
        Lpips("vgg", backbone["vgg"])


REAL = Path(REAL_DATA or "absent")
TRAINED = backbones.by_network(backbones.present(REAL / backbones.FOLDER))


@pytest.fixture(scope="module")
def real_images():
    return arrays.load(REAL / "cifar10-train.safetensors", "cifar10", "train").images[:20] / 255.0


@pytest.mark.skipif("alex" not in TRAINED, reason="no trained AlexNet in GRADLEAK_DATA_ROOT")
def test_uniform_noise_scores_what_table_vi_says_of_dlg_with_the_lock(real_images):
    """98.76, 28.20 and 0.32: its DLG left noise, and its LPIPS is of 0..255, not of [-1, 1]."""
    images, noise = real_images, np.random.default_rng(0).normal(size=real_images.shape)
    pairs = list(zip(images, noise, strict=True))
    assert np.mean([rmse_255(*pair) for pair in pairs]) == pytest.approx(98.76, abs=1.0)
    assert np.mean([psnr_rmse(*pair) for pair in pairs]) == pytest.approx(28.20, abs=0.05)
    alex = Lpips("alex", TRAINED["alex"])
    assert alex(as_stored(images), as_stored(noise)).mean() == pytest.approx(0.32, abs=0.01)
    assert alex(standard(images), standard(noise)).mean() > 0.38


@pytest.mark.parametrize("network", TRAINED)
def test_trained_networks_see_more_in_grain_than_in_brightness(network, real_images):
    images, darker = real_images, 0.7 * real_images
    gap = np.sqrt(np.mean((images - darker) ** 2))
    grain = images + np.random.default_rng(0).normal(0.0, gap, images.shape)
    distance = Lpips(network, TRAINED[network])
    near, far = (distance(standard(images), standard(other)) for other in (darker, grain))
    assert near.mean() < far.mean() / 2


SIDE = 12
NETWORK = chain(conv(4, 3), conv(6, 3), channels=3, side=SIDE, classes=3)
CASE = {
    "paper": "fedkl", "result": "fedkl_pair", "attack": "dlg", "defence": "none", "images": "real",
    "targets": "pair", "precision": "float32", "mode": "training", "training": "",
}  # fmt: skip
TASK = {"loss": "cross_entropy", "labels": "dataset"}
NEEDS_WEIGHTS = {"lpips_alex", "lpips_squeeze", "lpips_vgg", "lpips_alex_255", "lpips_vgg_255"}


def target_set(*sizes):
    return replace(figure_files.target_set(*sizes, (3, SIDE, SIDE)), offset=-0.5, std=0.5)


def record(batch, status="ok", **more):
    reason = "" if status == "ok" else "The gradient holds NaN."
    return figure_files.run(
        "small", batch, reason, status, evaluations=9, loss=0.5, label=None, **more
    )


@pytest.fixture
def made(tmp_path):
    """Network file, targets, and reconstructions: one near, one exact, one failed."""
    targets = target_set(3, 1)
    found = np.stack([targets.inputs(batch) for batch in range(3)])[None, :, None, 0]
    found[0, 0] += np.random.default_rng(1).normal(0.0, 0.4, found[0, 0].shape)
    found[0, 2] = np.nan
    path, model = str(tmp_path / "found.safetensors"), str(tmp_path / "model.safetensors")
    records = [record(0), record(1), record(2, "failed")]
    write_tensors(path, {"small/images": found[:, :, :, None]}, {"runs": records})
    files.save(model, [NETWORK], family_weights([NETWORK], 1), {})
    return path, targets, files.read(model), CASE


@pytest.fixture
def weights(tmp_path):
    return write(tmp_path / "lpips", "alex", "squeeze")


def table(rows, path):
    write_rows(path, scores.COLUMNS, rows)
    return pd.read_csv(path, dtype=str, keep_default_na=False)


@pytest.fixture
def found(made, weights, tmp_path):
    """Scores of these, without weights of VGG-16."""
    return table(scores_fedkl.score(*made, weights), tmp_path / "s.csv")


def test_one_row_per_image_and_metric(made, weights, found):
    targets = made[1]
    assert len(found) == 3 * len(scores_fedkl.METRICS)
    assert not found.duplicated(["batch", "metric"]).any()
    near = found[found["batch"] == "0"].set_index("metric")
    original = targets.images[0, 0] / 255.0
    images, _ = reconstructions.read(made[0])
    pixels = targets.pixels(images["small/images"][0, 0, 0, 0])
    alex = Lpips("alex", weights[0])
    both = standard([original]), standard([pixels])
    expected = {f.__name__: f(original, pixels) for f in (rmse_255, psnr_rmse, ssim_255)}
    expected |= {
        "lpips_alex": alex(*both)[0],
        "lpips_alex_255": alex(as_stored([original]), as_stored([pixels]))[0],
        "lpips_squeeze": Lpips("squeeze", weights[1])(*both)[0],
    }
    for name, value in expected.items():
        assert near.loc[name, "status"] == "ok"
        assert float(near.loc[name, "value"]) == pytest.approx(value, rel=1e-5)
    # An exact and a failed reconstruction.
    exact = found[(found["batch"] == "1") & (found["status"] == "ok")].set_index("metric")["value"]
    assert float(exact["lpips_alex"]) == 0.0
    assert float(exact["rmse_255"]) < 1e-10 and float(exact["psnr_rmse"]) > 120
    assert float(exact["ssim_255"]) == pytest.approx(1.0)
    failed = found[found["batch"] == "2"]
    assert set(failed["status"]) == {"failed"} and set(failed["value"]) == {""}
    assert set(failed["reason"]) == {"The gradient holds NaN."}


def test_without_weights_rows_stay_empty_and_say_how_to_get_them(made, found, tmp_path):
    lacking = found[found["status"] == "not_available"]
    assert set(lacking["metric"]) == {"lpips_vgg", "lpips_vgg_255"} and len(lacking) == 4
    assert set(lacking["value"]) == {""}
    assert lacking["reason"].str.contains(r"VGG-16 are missing: .*vgg16-397923af\.pth").all()
    none = table(scores_fedkl.score(*made, []), tmp_path / "none.csv")
    lacking = none[none["status"] == "not_available"]
    assert set(lacking["metric"]) == NEEDS_WEIGHTS and set(lacking["value"]) == {""}
    ok = none[none["status"] == "ok"]
    assert set(ok["metric"]) == {"rmse_255", "psnr_rmse", "ssim_255"} and len(ok) == 6


def test_images_of_a_batch_are_matched_before_they_are_compared(made, weights, tmp_path):
    targets = target_set(1, 2)
    swapped = targets.inputs(0)[::-1]
    path = str(tmp_path / "batch.safetensors")
    write_tensors(path, {"small/images": swapped[None, None, None]}, {"runs": [record(0)]})
    found = table(scores_fedkl.score(path, targets, made[2], CASE, weights), tmp_path / "b.csv")
    assert found[found["metric"] == "lpips_squeeze"]["value"].astype(float).tolist() == [0.0, 0.0]
    assert found[found["metric"] == "rmse_255"]["index"].tolist() == ["0", "1"]


def test_files_in_which_nothing_worked_need_no_network(made, weights, tmp_path):
    path = str(tmp_path / "failed.safetensors")
    write_tensors(path, {}, {"runs": [record(0, "not_applicable")]})
    rows = scores_fedkl.score(path, *made[1:], weights)
    assert {row["metric"] for row in rows} == set(scores_fedkl.METRICS)
    assert {row["status"] for row in rows} == {"not_applicable"}
    # And a damaged one stops the job that needs it.
    Path(weights[1]).write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"squeeze\.safetensors cannot be read as weights of Squ"):
        scores_fedkl.score(*made, weights)


@pytest.fixture
def evidence(made, weights, tmp_path):
    """Two answers that worked, one with a label, scored as the pipeline does; no VGG-16."""
    path, targets, models, case = made
    images, records = reconstructions.read(path)
    write_tensors(path, images, {"runs": [records[0], {**records[1], "label": 1}]})
    rows = scores.score(path, targets, models, case, TASK)
    rows += scores_fedkl.score(path, targets, models, case, weights)
    write_rows(tmp_path / "scores.csv", scores.COLUMNS, rows)
    return Evidence.read(scores=[tmp_path / "scores.csv"])


LACKING = "weights: The weights of VGG-16 are missing: ask Snakemake"


@pytest.mark.parametrize(
    ("metric", "n"),
    [
        *(("mse", 2), ("rmse_255", 2), ("ssim_255", 2), ("lpips_alex", 2), ("label_correct", 1)),
        *(("lpips_vgg", 0), ("lpips_vgg_255", 0)),
    ],
)
def test_only_claims_that_need_missing_weights_are_not_judged(metric, n, evidence, tmp_path):
    where = {"result": "fedkl_pair", "attack": "dlg", "model": "small"}
    query = {"form": "runs", "metric": metric, "where": where}
    found = outcome(tmp_path, query, "any", evidence, kind="value")
    if n:
        # One value cannot reproduce another, but it is there.
        verdict = "reproduced" if n > 1 else "not judged"
        assert (found["verdict"], found["n"], found["n_ok"]) == (verdict, n, n)
        assert not found["reason"].startswith(LACKING) and not np.isnan(found["ours"])
    else:
        assert found["verdict"] == "not judged" and np.isnan(found["ours"])
        assert found["reason"].startswith(LACKING)
