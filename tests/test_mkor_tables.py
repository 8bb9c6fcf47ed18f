"""MKOR's tables that run it by themselves, and those of best images and class means."""

import numpy as np
import pandas as pd
import pytest

from figure_files import target_set
from gradleak.data import arrays, targets
from gradleak.data.arrays import Dataset
from gradleak.models import files
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import family_weights
from mkor_cases import network
from papers.mkor import batches
from papers.mkor.tables import (
    class_means,
    convergence,
    local_updates,
    methods,
    neighbours,
    noise_accuracy,
    repeated,
    sizes,
    transformed,
)

CHAIN = network(classes=10)
NAIVE = {"method": "mkor", "convolutions": "naive", "classifier": "naive"}
SETTING = {"server": NAIVE, "attack": {"method": "mkor"}, "loss": "raw_logits"}
TARGETS = target_set(2, 10, (1, 16, 16), labels=list(range(10)))


@pytest.fixture
def given(tmp_path):
    """A model file and target set."""
    paths = {
        "models": [str(tmp_path / "m.safetensors")],
        "targets": str(tmp_path / "t.safetensors"),
    }
    files.save(paths["models"][0], [CHAIN], family_weights([CHAIN], 1), {})
    targets.save(paths["targets"], TARGETS, {})
    return paths


def scores(path, rows):
    columns = ["result", "model", "defence", "attack", "seed", "batch", "index", "answer"]
    columns += ["metric", "value", "status"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return str(path)


def test_best_and_mean_are_over_batches_that_all_attacks_tried(tmp_path):
    rows = [
        ("r", "net", "none", attack, 0, batch, k, 0, metric, 0.1 * (k + batch + shift), "ok")
        for attack, shift, count in (("a", 1, 3), ("b", 0, 2))
        for batch in range(count)
        for k in range(2)
        for metric in ("psnr", "ssim_gauss")
    ]
    rows[-1] = (*rows[-1][:-2], "", "missed")
    path = str(tmp_path / "t.safetensors")
    targets.save(path, target_set(3, 2, (1, 16, 16)), {})
    found = methods.make({"scores": [scores(tmp_path / "s.csv", rows)], "targets": path}, {}, {})
    own = found.set_index(["attack", "metric", "batch"]).sort_index()
    assert own.loc[("a", "psnr", "all"), ["best", "mean"]].tolist() == pytest.approx([0.25, 0.2])
    assert set(own.loc[("a", "psnr")].index) == {"all", "0", "1"}  # b has not tried the third
    lost = own.loc[("b", "ssim_gauss", "1")]
    assert (lost["best"], lost["mean"], lost["missed"]) == (0.1, 0.05, 1)
    # Any constant image that is grey is within half a unit of every pixel.
    assert own.loc[("grey", "psnr", "all"), "best"] >= 10 * np.log10(4)
    assert own.loc[("black", "ssim_gauss", "all"), "images"] == 4


def test_class_means_leave_missed_images_out(tmp_path):
    rows = [
        ("r", "net", "none", "a", 0, 0, k, 0, "psnr_class_mean", *value)
        for k, value in enumerate([(20.0, "ok"), (30.0, "ok"), ("", "missed")])
    ]
    found = class_means.make({"scores": [scores(tmp_path / "s.csv", rows)]}, {}, {})
    assert found["batch"].tolist() == ["0", "all"]
    assert found["psnr_class_mean"].tolist() == [25.0, 25.0]
    assert found[["least", "largest", "images", "missed"]].iloc[1].tolist() == [20, 30, 3, 1]


def test_photos_are_compared_with_themselves_under_other_labels(tmp_path):
    rows = [
        ("r", "net", "none", "a", 0, batch, k, 0, "psnr", 20.0 - batch * (k + 1), "ok")
        for batch in range(2)
        for k in range(3)
    ]
    found = repeated.make({"scores": [scores(tmp_path / "s.csv", rows)]}, {}, {}).set_index(
        "labels"
    )
    assert found.loc["unique", ["change", "error"]].tolist() == [0, 0]
    assert found.loc["random", "change"] == pytest.approx(-2)
    # Student's quantile for three numbers, over the normal one.
    assert found.loc["random", "error"] == pytest.approx(4.302653 / 1.959964 / np.sqrt(3))


def test_a_server_that_sets_every_weight_does_not_see_training(given, tmp_path):
    trained = {name: 3 * value for name, value in family_weights([CHAIN], 1).items()}
    given |= {"trained": str(tmp_path / "w.safetensors"), "summary": str(tmp_path / "w.csv")}
    files.save(given["trained"], [CHAIN], trained, {})
    pd.DataFrame({"model": [CHAIN.name], "test_accuracy": [0.9]}).to_csv(given["summary"])
    ours = {**SETTING, "server": {"method": "mkor", "beta": 0.05}}
    words = {"settings": {"all": SETTING, "some": ours}}
    found = convergence.make(given, words, {}).set_index(["server", "metric"])
    assert found.loc[("", "accuracy"), "trained"] == 0.9
    assert (found.loc["all", "gap"] == 0).all()
    assert found.loc[("some", "psnr"), "gap"] > 0
    assert found.loc[("all", "psnr"), "untrained"] > 5 and found["batches"].max() == 2


def test_a_single_update_is_the_gradient_and_more_are_its_mean(given):
    words = {"models": [CHAIN.name], "rates": [1e-6, 1e3], "updates": [1, 3], "setting": SETTING}
    found = local_updates.make(given, words, {}).set_index(["metric", "rate", "updates"])
    psnr = found.loc["psnr"]
    assert (psnr.xs(1, level="updates")["change"] == 0).all()
    near, far = psnr.loc[(1e-6, 3), "value"], psnr.loc[(1e3, 3), "value"]
    assert psnr.loc[(1e-6, 1), "value"] > near > far + 5


def test_transformed_images_are_compared_with_themselves(given):
    words = {"models": [CHAIN.name], "setting": SETTING}
    found = transformed.make(given, words, {}).set_index(["transformation", "metric"])["value"]
    assert found["mirrored", "psnr"] == pytest.approx(found["none", "psnr"], abs=2)
    images = np.random.default_rng(0).integers(0, 256, (1, 2, 1, 4, 4)).astype(float)
    for change in transformed.TRANSFORMATIONS.values():
        made = change(images)
        assert made.shape == images.shape and made.min() >= 0 and made.max() <= 255


def test_noise_costs_mkor_and_training(tmp_path):
    chain = Chain("net", (1, 28, 28), (LinearSpec(10),))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 300)
    images = np.zeros((300, 1, 28, 28), np.uint8)
    images[np.arange(300), 0, labels] = 255
    data = Dataset(images, labels, [str(k) for k in range(10)], "digits", "train", "embedded")
    path = str(tmp_path / "digits-train.safetensors")
    arrays.save(path, data)
    training = {
        "dataset": "digits", "split": "train", "train": 200, "validation": 50, "test": 50,
        "seed": 0, "offset": 0.0, "std": 1.0, "size": None, "resize": "repeat", "epochs": 3,
        "batch": 20, "rate": 0.05, "milestones": [0.5], "crop": 0, "flip": False,
        "precision": "float32",
    }  # fmt: skip
    levels = [0.0, 0.01, 1e4]
    weights = family_weights([chain], 1)
    own = {name.partition("/")[2]: value[0] for name, value in weights.items()}
    (exact, error, count), (small, *_), (large, *_) = noise_accuracy.accuracies(
        chain, own, path, training, levels
    )
    assert exact > 0.9 and small > 0.9 and large < 0.6
    assert 0 < error < 0.1 and count == 50


def test_noise_stops_mkor_at_the_least_level_that_halves_its_ssim(given, monkeypatch):
    fixed = lambda *_: iter([(0.9, 0.01, 50), (0.8, 0.01, 50), (0.1, 0.01, 50)])  # noqa: E731
    monkeypatch.setattr(noise_accuracy, "accuracies", fixed)
    words = {"levels": [0, 0.5, 50], "setting": SETTING, "training": {}}
    found = noise_accuracy.make({**given, "dataset": ""}, words, {})
    similar = found[found["metric"] == "ssim_gauss"].set_index("level")
    assert similar["value"].is_monotonic_decreasing and similar["stops"].sum() == 1
    first = similar.index[similar["value"] <= 0.5 * similar["value"].iloc[0]][0]
    assert similar["stops"].idxmax() == first
    assert found.loc[found["metric"] == "accuracy", "value"].tolist() == [0.9, 0.8, 0.1]


def test_neighbours_of_smooth_images_are_alike(tmp_path):
    smooth = target_set(1, 4, (1, 8, 8))
    smooth.images[:] = np.arange(8, dtype=np.uint8) * 10 + 3 * np.arange(8, dtype=np.uint8)[:, None]
    path = str(tmp_path / "t.safetensors")
    targets.save(path, smooth, {})
    found = neighbours.make({"sets": [path]}, {"sets": ["smooth"]}, {}).set_index("direction")
    assert (found["variance_sum"] > 50 * found["variance_difference"]).all()
    assert found["angle"].tolist() == pytest.approx([45, 45], abs=1)
    assert found["pairs"].tolist() == [4 * 7 * 8] * 2


def test_sizes_of_a_small_network():
    found = sizes.sizes(network("max"))
    # 26 channels of 4x4, 6 of which go to 2·4 with one shift layer and none of the colours' pairs.
    assert found["features"] == 26 * 16 and found["largest_side"] == 20
    assert found["lowest_resolution"] == 4
    shifts = found["four_direction_layers"]
    assert found["considered_share"] == 2 * 4**shifts / 26
    assert found["describers"] == 4**shifts
    assert found["highest_resolution"] == 4 * 2**shifts


def test_a_gradient_that_is_not_finite_gives_nothing():
    setting = batches.Setting.of(SETTING)
    weights = family_weights([CHAIN], 1)
    own = {name.partition("/")[2]: value[0] for name, value in weights.items()}
    sent = setting.send(CHAIN, own)

    def broken(sent, batch):
        return {name: np.full_like(value, np.nan) for name, value in sent.weights.items()}

    found = list(batches.means(setting, sent, TARGETS, broken))
    assert found == [dict.fromkeys(batches.METRICS, 0.0)] * 2
