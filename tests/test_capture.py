"""Targets, gradient capture, scores and c(M): from images to numbers, on small files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from chains import TARGETS, captured, chain, conv, shared
from gradleak.analysis import copa_index
from gradleak.attacks.postprocess import TotalVariation
from gradleak.attacks.runner import attack_all
from gradleak.client import capture
from gradleak.data import targets
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError, DataError, NumericsError
from gradleak.models import files
from gradleak.models.build import load, with_statistics, without_statistics
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import family_weights, initial_weights
from gradleak.runtime.artifacts import read_tensors, write_rows, write_tensors
from gradleak.scoring import scores
from gradleak.scoring.metrics.image import METRICS, mse, psnr, psnr_255, ssim

NETWORK = chain(conv(4, 3), conv(6, 3), channels=3, side=12, classes=3)
CASE = {"paper": "copa", "result": "test", "attack": "rgap", "defence": "none"}
CASE |= {"images": "embedded", "targets": "pair", "precision": "float64"}
CASE |= {"mode": "training", "training": ""}
TASK = {"loss": "cross_entropy", "labels": "dataset"}
SETTINGS = TARGETS | {"indices": [4, 1], "offset": -0.5}


@pytest.fixture
def data():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 12, 12), dtype=np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2])
    return Dataset(pixels, labels, ["ant", "bee", "cow"], "tiny", "train", "by hand", "0" * 64)


def written(folder, network, seeds, chosen, *more, **options):
    """Model, target and gradient files of one network, and what the last holds."""
    paths = {n: str(folder / f"{n}.safetensors") for n in ("model", "targets", "gradient")}
    targets.save(paths["targets"], chosen, {})
    files.save(paths["model"], [network], family_weights([network], seeds), {})
    models, chosen = files.read(paths["model"]), targets.read(paths["targets"])
    tensors, metadata = captured(models, chosen, seeds, *more, **options)
    write_tensors(paths["gradient"], tensors, metadata)
    return paths, tensors, metadata


@pytest.fixture
def experiment(data, tmp_path):
    """Files of two seeds and two images."""
    return written(tmp_path, NETWORK, 2, targets.build(data, SETTINGS, None, 1), granted=False)[0]


def score_table(experiment, path):
    """Scores of a reconstruction file, written and read again."""
    chosen, models = targets.read(experiment["targets"]), files.read(experiment["model"])
    write_rows(f"{path}.csv", scores.COLUMNS, scores.score(path, chosen, models, CASE, TASK))
    return pd.read_csv(f"{path}.csv")


def test_targets_are_taken_at_their_indices(data):
    chosen = targets.build(data, SETTINGS, None, 1)
    np.testing.assert_array_equal(chosen.images[:, 0], data.images[[4, 1]])
    np.testing.assert_allclose(chosen.inputs(1)[0], data.images[1] / 255 - 0.5)
    assert chosen.names == ("bee 4", "bee 1")
    assert chosen.source["origin"] == "by hand"
    first = targets.build(data, {**SETTINGS, "indices": None}, 3, 1)
    np.testing.assert_array_equal(first.indices.ravel(), [0, 1, 2])


def test_targets_beyond_the_data_set_are_refused(data):
    with pytest.raises(DataError, match="Index 6 is out of range"):
        targets.build(data, {**SETTINGS, "indices": [6]}, None, 1)
    with pytest.raises(
        DataError, match="7 batches of 1 from image 0 on are more than the 6 images"
    ):
        targets.build(data, {**SETTINGS, "indices": None}, 7, 1)


def test_gradient_file_holds_what_is_shared_and_no_image(experiment):
    tensors, metadata = read_tensors(experiment["gradient"])
    parameters = dict(capture.ChainModule(NETWORK).named_parameters())
    assert set(tensors) == {f"small/{name}" for name in parameters}
    for name, parameter in parameters.items():
        assert tensors[f"small/{name}"].shape == (2, 2, *parameter.shape)
    assert metadata["mode"] == {"small": "evaluation"}
    assert metadata["loss"] == "cross_entropy"
    models, chosen = files.read(experiment["model"]), targets.read(experiment["targets"])
    tensors, _ = captured(models, chosen, precision="float32")
    for granted in ("label", "class"):
        np.testing.assert_array_equal(tensors[f"small/{granted}"], [[[1], [1]]])
    assert tensors["small/fc1.weight"].dtype == np.float32


def test_targets_that_do_not_fit_the_network_are_refused(experiment):
    other = chain(conv(4, 3), channels=1, side=12)
    models = files.ModelFile((other,), family_weights([other], 1))
    with pytest.raises(ConfigError, match=r"small takes images of \[1, 12, 12\]"):
        captured(models, targets.read(experiment["targets"]))


def hinge_case(data, gains):
    """One output, y with its sign; the weights of seed i are multiplied by gains[i]."""
    network = chain(conv(4, 3), conv(6, 3), channels=3, side=12, classes=1, last="identity")
    weights = family_weights([network], len(gains))
    for seed, gain in enumerate(gains):
        for part in ("weight", "bias"):
            weights[f"small/fc1.{part}"][seed] *= gain
    models = files.ModelFile((network,), weights)
    chosen = targets.build(data, SETTINGS, None, 1)

    def share():
        return captured(models, chosen, len(gains), "float32", loss="hinge", labels="same")

    return models, chosen, share


def test_one_gradient_that_cannot_be_used_leaves_the_others(data, tmp_path):
    """The hinge loss is flat where the margin is above 1: seed 0 here."""
    models, chosen, share = hinge_case(data, [1e4, 1.0])
    tensors, metadata = share()
    places = [(u["chain"], u["seed"], u["batch"]) for u in metadata["unusable"]]
    assert places == [("small", 0, 0), ("small", 0, 1)]
    assert np.isnan(tensors["small/conv1.weight"][0]).all()
    assert np.isfinite(tensors["small/conv1.weight"][1]).all()
    assert tensors["small/conv1.weight"].dtype == np.float32
    paths = {n: str(tmp_path / f"{n}.safetensors") for n in ("m", "g", "r")}
    files.save(paths["m"], list(models.chains), models.weights, {})
    write_tensors(paths["g"], tensors, metadata)
    search = {"method": "dlg", "iterations": 5, "failure_loss": 9.0}
    for settings in ({"method": "rgap"}, search):
        results = attack_all(paths["m"], paths["g"], settings)
        records = {(r["seed"], r["batch"]): r for r in results.runs if r["answer"] == 0}
        for batch in range(2):
            assert records[0, batch]["status"] == "failed"
            assert "zero everywhere" in records[0, batch]["reason"]
        assert np.isfinite(results.images["small/images"][1, :, 0]).all()
    results.save(paths["r"], str(tmp_path / "r.json"), {})
    rows = scores.score(paths["r"], chosen, models, CASE, {"loss": "hinge", "labels": "same"})
    assert {row["status"] for row in rows if row["seed"] == 0} == {"failed"}


def test_gradients_of_which_none_can_be_used_are_refused(data):
    with pytest.raises(NumericsError, match=r"None of the 2 gradients can be used; .* zero every"):
        hinge_case(data, [1e4])[-1]()


def test_useless_gradients_and_missing_devices_are_refused():
    with pytest.raises(NumericsError, match=r"small's a holds NaN"):
        capture.check_gradient(NETWORK, {"a": np.array([np.nan])})
    with pytest.raises(NumericsError, match="zero everywhere"):
        capture.check_gradient(NETWORK, {"a": np.zeros(3)})
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(ConfigError, match=f"device: {absent} is not available"):
        capture.pick_device(absent)
    assert capture.pick_device("auto").type in ("cpu", "cuda", "mps")


def test_attack_and_scores_of_a_whole_file(experiment, tmp_path):
    path, again = (str(tmp_path / f"{name}.safetensors") for name in ("r", "r2"))
    for to in (path, again):
        found = attack_all(experiment["model"], experiment["gradient"], {"method": "rgap"})
        found.save(to, str(tmp_path / "r.json"), {})
    assert Path(path).read_bytes() == Path(again).read_bytes()
    assert len(json.loads((tmp_path / "r.json").read_text())["seconds"]) == 4
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {"small/images", "small/fc_input"}
    table = score_table(experiment, path)
    assert len(table) == 4 * (len(METRICS) + 2)
    assert set(table.status) == {"ok"}
    values = table.groupby("metric").value
    assert values.max()["mse"] < 1e-12
    assert values.max()["fc_error"] < 1e-9
    assert values.min()["label_correct"] == 1.0
    assert values.min()["ssim"] > 0.999
    assert set(table["mode"].fillna("")) == {""}, "as no layer depends on it"
    rough = read_tensors(path)[0]["small/images"]
    smooth = TotalVariation(of="one", weight=0.15).make([path]).images["small/images"]
    assert np.abs(np.diff(smooth)).sum() < 0.8 * np.abs(np.diff(rough)).sum()


def test_failed_runs_stay_as_rows(experiment, tmp_path):
    tensors, metadata = read_tensors(experiment["gradient"])
    tensors["small/conv1.weight"][1, 0] = np.nan
    write_tensors(experiment["gradient"], tensors, metadata)
    path, smooth = (str(tmp_path / f"{name}.safetensors") for name in "rs")
    results = attack_all(experiment["model"], experiment["gradient"], {"method": "rgap"})
    assert results.summary().startswith("1 failed, 3 ok")
    results.save(path, str(tmp_path / "r.json"), {})
    TotalVariation(of="one", weight=0.15).make([path]).save(smooth, str(tmp_path / "s.json"), {})
    for name in (path, smooth):
        table = score_table(experiment, name)
        bad = table[table.status == "failed"]
        assert len(bad) == len(METRICS)
        assert bad.value.isna().all()
        assert bad.reason.str.contains("NaN").all()


def test_an_attack_that_does_not_apply_says_why(experiment, tmp_path):
    relu = chain(conv(4, 3, activation="relu"), conv(6, 3), channels=3, side=12, classes=3)
    files.save(experiment["model"], [relu], family_weights([relu], 2), {})
    results = attack_all(experiment["model"], experiment["gradient"], {"method": "copa"})
    assert {run["status"] for run in results.runs} == {"not_applicable"}
    assert "no inverse" in results.runs[0]["reason"]


def test_metrics_on_known_pairs():
    black, grey = np.zeros((3, 16, 16)), np.full((3, 16, 16), 0.1)
    assert mse(black, grey) == pytest.approx(0.01)
    assert psnr(black, grey) == pytest.approx(20.0)
    # COPA Table 2: an MSE of 0.0512 is printed as 61.0389 dB.
    assert psnr_255(black, np.full((3, 16, 16), 0.0512**0.5)) == pytest.approx(61.04, abs=0.005)
    assert psnr(black, black) == 300.0
    assert ssim(grey, grey) == pytest.approx(1.0)


def index_of(network, weights, seeds):
    pixels = np.random.default_rng(1).integers(0, 256, (1, *network.input), dtype=np.uint8)
    data = Dataset(pixels, np.array([1]), list("abcd"), "tiny", "train", "by hand")
    chosen = targets.build(data, {**SETTINGS, "indices": [0]}, None, 1)
    return copa_index.index_table(files.ModelFile((network,), weights), chosen, seeds=seeds)


@pytest.mark.parametrize("bias", [True, False])
def test_security_reports_both_ranks(bias):
    network = chain(conv(6, 3, bias=bias), conv(2, 4, stride=2), side=14, name="net")
    table = index_of(network, family_weights([network], 2), 2)
    assert list(table.columns) == copa_index.COLUMNS
    assert (table[table.exact].numerical == table[table.exact]["rank"]).all()
    assert (table.numerical <= table.bound).all()
    assert table["rows"].to_list() == 2 * [layer.shape.rows for layer in network.convolutions]
    value, exact = copa_index.structural_index(network)
    sums = table.groupby("seed").contribution.sum()
    assert exact
    assert sums.to_list() == [pytest.approx(value)] * 2
    assert value < 0


def test_a_dead_filter_is_left_to_the_numerical_rank():
    network = chain(conv(4, 3, activation="relu"), conv(2, 4, stride=2), name="net")
    weights = family_weights([network], 1)
    weights["net/conv2.weight"][0, 1] = 0.0
    rows = index_of(network, weights, 1)
    dead = rows[rows.layer == "conv2"].iloc[0]
    assert dead.rank_method == "numerical"
    assert dead["rank"] < dead.bound


def test_paper_values_of_c():
    from gradleak.config import loader
    from test_config import RAW

    loaded = loader.load(RAW)
    found = [copa_index.structural_index(loaded.chain(f"cnn3_v{v}_tanh")) for v in (1, 2, 3, 4)]
    assert found == [(-2266.5, True), (-1995.0, True), (0.0, True), (-2146.0, True)]


def test_batches_of_the_same_images_pass_through_the_convolutions_once(data, monkeypatch):
    more = {"count": 1, "indices": None, "seed": 3, "relabel": 2, "classes": None}
    chosen = targets.build(data, {**SETTINGS, **more}, 1, 6)
    assert chosen.labels[0].tolist() == data.labels.tolist() != chosen.labels[1].tolist()
    assert np.array_equal(chosen.images[0], chosen.images[2])
    models = files.ModelFile((NETWORK,), family_weights([NETWORK], 2))
    passed, features_of = [], capture.features_of

    def counted(*given, **named):
        passed.append(given)
        return features_of(*given, **named)

    monkeypatch.setattr(capture, "features_of", counted)
    found, _ = captured(models, chosen, 2, granted=False, kept="classifier")
    assert len(passed) == 2
    expected, _ = captured(models, chosen, 2, granted=False)
    assert set(found) < set(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, atol=1e-15)


def test_small_images_are_enlarged_by_repeating_or_smoothly(data):
    def made(**more):
        chosen = targets.build(data, {**SETTINGS, "offset": 0.0, **more}, None, 1)
        return chosen.inputs(0)[0]

    small, repeated, smooth = made(), made(size=36), made(size=36, resize="bilinear")
    np.testing.assert_array_equal(repeated, small.repeat(3, 1).repeat(3, 2))
    assert smooth.shape == repeated.shape == (3, 36, 36)
    # Each pixel is the middle of three; a third of the way to the next one comes first.
    np.testing.assert_allclose(smooth[:, 1::3, 1::3], small, atol=1e-9)
    between = (2 * small[:, 0, 0] + small[:, 0, 1]) / 3
    np.testing.assert_allclose(smooth[:, 1, 2], between, atol=0.5 / 255 + 1e-9)
    assert made(size=30, resize="bilinear").shape == (3, 30, 30)
    with pytest.raises(DataError, match="a multiple of 12, or resize: bilinear for square images"):
        made(size=30)


NORMS = (conv(4, 3, 1, 1, norm="batch", **more) for more in ({}, {"skip": 1, "pool": "global"}))
NORMED = chain(*NORMS, channels=3, side=12, classes=3)


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("trained", [True, False])
def test_norms_run_in_the_mode_of_the_experiment(mode, trained):
    """Against a module in train() or eval(); nothing that was given changes."""
    rng = np.random.default_rng(0)
    weights = with_statistics(NORMED, initial_weights(NORMED, 0))
    for name, value in weights.items():
        if "running" in name:
            value[:] = rng.uniform(*((-0.2, 0.2) if "mean" in name else (0.5, 2.0)), value.shape)
    images, labels = rng.uniform(0, 1, (3, 3, 12, 12)), np.array([0, 2, 1])
    if not trained:
        weights = without_statistics(weights)
    before = {name: value.copy() for name, value in weights.items()}
    found = shared(NORMED, weights, images, labels, mode=mode)
    module = load(NORMED, with_statistics(NORMED, weights), torch.float64)
    module.train(mode == "training")
    loss = torch.nn.functional.cross_entropy(
        module(torch.from_numpy(images)), torch.from_numpy(labels)
    )
    names = [name for name, _ in module.named_parameters()]
    assert found.keys() == set(names)
    for name, value in zip(names, torch.autograd.grad(loss, module.parameters()), strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)
    for name, value in before.items():
        np.testing.assert_array_equal(weights[name], value)


def test_mode_and_training_stand_in_every_row(data, tmp_path):
    chosen = targets.build(data, {**SETTINGS, "std": 0.25}, None, 1)
    paths, _, metadata = written(tmp_path, NORMED, 1, chosen, "float32", mode="evaluation")
    assert metadata["mode"] == {NORMED.name: "evaluation"}
    assert (metadata["low"], metadata["high"]) == (-2.0, 2.0)
    settings = {"method": "inverting_gradients", "iterations": 3, "failure_loss": 10.0}
    found = attack_all(paths["model"], paths["gradient"], settings)
    path = str(tmp_path / "answer.safetensors")
    found.save(path, str(tmp_path / "seconds.json"), {})
    case = {**CASE, "mode": "evaluation", "training": "mine"}
    rows = pd.DataFrame(scores.score(path, chosen, files.read(paths["model"]), case, TASK))
    assert set(rows["mode"]) == {"evaluation"} and set(rows["training"]) == {"mine"}
    wide = rows.pivot_table(index="index", columns="metric", values="value")
    np.testing.assert_allclose(wide["mse_input"], wide["mse"] * 16)
    shown = chosen.pixels(found.images[f"{NORMED.name}/images"][0, :, 0, 0])
    assert shown.min() >= 0 and shown.max() <= 1
    originals = chosen.images[:, 0] / 255.0
    np.testing.assert_allclose(
        wide["mse"].loc[[4, 1]], ((shown - originals) ** 2).mean(axis=(1, 2, 3)), rtol=1e-6
    )


def test_a_norm_of_a_single_value_is_refused():
    layer = ConvSpec(2, (3, 3), (2, 2), (1, 1), norm="batch")
    deep = Chain("deep", (1, 4, 4), (layer, layer, LinearSpec(3)))
    weights = initial_weights(deep, 0)
    images = np.random.default_rng(0).random((2, 1, 4, 4)).astype(np.float32)
    with pytest.raises(ConfigError, match="the norm of conv2 has one value a channel"):
        shared(deep, weights, images[:1], [0], "float32")
    shared(deep, weights, images, [0, 0], "float32")
    shared(deep, weights, images[:1], [0], "float32", mode="evaluation")
