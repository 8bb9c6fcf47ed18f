"""Targets, gradient capture, scores and c(M): from images to numbers, on small files."""

import copy
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

import chains
from chains import CASE, TARGETS, captured, chain, conv, dataset, models, saved, shared
from conftest import refused
from gradleak.analysis import copa_index
from gradleak.attacks.postprocess import TotalVariation
from gradleak.attacks.runner import attack_all
from gradleak.client import capture
from gradleak.client.capture import check_gradient
from gradleak.data import targets
from gradleak.errors import ConfigError, NumericsError
from gradleak.models import files
from gradleak.models.build import with_statistics
from gradleak.models.initial import initial_weights
from gradleak.runtime.artifacts import read_tensors, write_rows, write_tensors
from gradleak.scoring import scores
from gradleak.scoring.metrics.image import METRICS, mse, psnr, psnr_255, ssim

NETWORK = chain(conv(4, 3), conv(6, 3), channels=3, side=12, classes=3)
TASK = {"loss": "cross_entropy", "labels": "dataset"}
SETTINGS = TARGETS | {"indices": [4, 1], "offset": -0.5}


DATA = dataset(6, 3, 12, 12)


def built(images=None, batch=1, **more):
    return targets.build(DATA, SETTINGS | more, images, batch)


CHOSEN = built()


@pytest.fixture
def experiment(tmp_path):
    """Files of two seeds and two images."""
    sent = models(NETWORK, seeds=2)
    return saved(tmp_path, sent, *captured(sent, CHOSEN, 2, granted=False))


def score_table(path):
    """Scores of a reconstruction file, written and read again."""
    rows = scores.score(path, CHOSEN, models(NETWORK, seeds=2), CASE, TASK)
    write_rows(f"{path}.csv", scores.COLUMNS, rows)
    return pd.read_csv(f"{path}.csv")


def test_targets_are_taken_at_their_indices():
    np.testing.assert_array_equal(CHOSEN.images[:, 0], DATA.images[[4, 1]])
    np.testing.assert_allclose(CHOSEN.inputs(1)[0], DATA.images[1] / 255 - 0.5)
    assert CHOSEN.names == ("bee 4", "bee 1")
    assert CHOSEN.source["origin"] == "by hand"
    np.testing.assert_array_equal(built(3, indices=None).indices.ravel(), [0, 1, 2])


def test_targets_beyond_the_data_set_are_refused():
    with refused("Index 6 is out of range"):
        built(indices=[6])
    with refused("7 batches of 1 from image 0 on are more than the 6 images"):
        built(7, indices=None)


def test_gradient_file_holds_what_is_shared_and_no_image(experiment):
    tensors, metadata = read_tensors(experiment[1])
    parameters = dict(capture.ChainModule(NETWORK).named_parameters())
    assert set(tensors) == {f"small/{name}" for name in parameters}
    for name, parameter in parameters.items():
        assert tensors[f"small/{name}"].shape == (2, 2, *parameter.shape)
    assert metadata["mode"] == {"small": "evaluation"}
    assert metadata["loss"] == "cross_entropy"
    tensors, _ = captured(models(NETWORK), CHOSEN, precision="float32")
    for granted in ("label", "class"):
        np.testing.assert_array_equal(tensors[f"small/{granted}"], [[[1], [1]]])
    assert tensors["small/fc1.weight"].dtype == np.float32


def hinge_case(*gains):
    """One output; the weights of seed i are multiplied by gains[i]."""
    network = chain(conv(4, 3), conv(6, 3), channels=3, side=12, classes=1, last="identity")
    sent = models(network, seeds=len(gains))
    for seed, gain in enumerate(gains):
        for part in ("weight", "bias"):
            sent.weights[f"small/fc1.{part}"][seed] *= gain
    return sent


def share(sent, seeds=1):
    return captured(sent, CHOSEN, seeds, "float32", loss="hinge", labels="same")


def test_one_gradient_that_cannot_be_used_leaves_the_others(tmp_path):
    """The hinge loss is flat where the margin is above 1: seed 0 here."""
    sent = hinge_case(1e4, 1.0)
    tensors, metadata = share(sent, 2)
    places = [(u["chain"], u["seed"], u["batch"]) for u in metadata["unusable"]]
    assert places == [("small", 0, 0), ("small", 0, 1)]
    lost, kept = tensors["small/conv1.weight"]
    assert np.isnan(lost).all() and np.isfinite(kept).all() and kept.dtype == np.float32
    paths, path = saved(tmp_path, sent, tensors, metadata), str(tmp_path / "r.safetensors")
    search = {"method": "dlg", "iterations": 5, "failure_loss": 9.0}
    for settings in ({"method": "rgap"}, search):
        results = attack_all(*paths, settings)
        records = {(r["seed"], r["batch"]): r for r in results.runs if r["answer"] == 0}
        for record in (records[0, batch] for batch in range(2)):
            assert record["status"] == "failed" and "zero everywhere" in record["reason"]
        assert np.isfinite(results.images["small/images"][1, :, 0]).all()
    results.save(path, str(tmp_path / "r.json"), {})
    rows = scores.score(path, CHOSEN, sent, CASE, {"loss": "hinge", "labels": "same"})
    assert {row["status"] for row in rows if row["seed"] == 0} == {"failed"}


def test_what_cannot_be_captured_is_refused():
    other, nan = models(chain(conv(4, 3), channels=1, side=12)), np.array([np.nan])
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    useless = "None of the 2 gradients can be used;", "zero everywhere"
    for kind, words, call in (
        (NumericsError, useless, lambda: share(hinge_case(1e4))),
        (NumericsError, ["small's a holds NaN"], lambda: check_gradient(NETWORK, {"a": nan})),
        (NumericsError, ["zero everywhere"], lambda: check_gradient(NETWORK, {"a": np.zeros(3)})),
        (ConfigError, ["small takes images of [1, 12, 12]"], lambda: captured(other, CHOSEN)),
        (ConfigError, [f"device: {absent} is not available"], lambda: capture.pick_device(absent)),
    ):
        with refused(*words, kind=kind):
            call()
    assert capture.pick_device("auto").type in ("cpu", "cuda", "mps")


def test_attack_and_scores_of_a_whole_file(experiment, tmp_path):
    path, again = (str(tmp_path / f"{name}.safetensors") for name in ("r", "r2"))
    for to in (path, again):
        found = attack_all(*experiment, {"method": "rgap"})
        found.save(to, str(tmp_path / "r.json"), {})
    assert Path(path).read_bytes() == Path(again).read_bytes()
    assert len(json.loads((tmp_path / "r.json").read_text())["seconds"]) == 4
    assert set(read_tensors(path)[0]) == {"small/images", "small/fc_input"}
    table = score_table(path)
    assert len(table) == 4 * (len(METRICS) + 2) and set(table.status) == {"ok"}
    most, least = (table.groupby("metric").value.agg(how) for how in ("max", "min"))
    assert most["mse"] < 1e-12 and most["fc_error"] < 1e-9
    assert least["label_correct"] == 1.0 and least["ssim"] > 0.999
    assert set(table["mode"].fillna("")) == {""}, "as no layer depends on it"
    rough = read_tensors(path)[0]["small/images"]
    smooth = TotalVariation(of="one", weight=0.15).make([path]).images["small/images"]
    assert np.abs(np.diff(smooth)).sum() < 0.8 * np.abs(np.diff(rough)).sum()


def test_failed_runs_stay_as_rows(experiment, tmp_path):
    tensors, metadata = read_tensors(experiment[1])
    tensors["small/conv1.weight"][1, 0] = np.nan
    write_tensors(experiment[1], tensors, metadata)
    path, smooth = (str(tmp_path / f"{name}.safetensors") for name in "rs")
    results = attack_all(*experiment, {"method": "rgap"})
    assert results.summary().startswith("1 failed, 3 ok")
    results.save(path, str(tmp_path / "r.json"), {})
    TotalVariation(of="one", weight=0.15).make([path]).save(smooth, str(tmp_path / "s.json"), {})
    for name in (path, smooth):
        bad = score_table(name).query("status == 'failed'")
        assert len(bad) == len(METRICS) and bad.value.isna().all()
        assert bad.reason.str.contains("NaN").all()


def test_an_attack_that_does_not_apply_says_why(experiment):
    relu = chain(conv(4, 3, activation="relu"), conv(6, 3), channels=3, side=12, classes=3)
    files.save(experiment[0], [relu], models(relu, seeds=2).weights, {})
    results = attack_all(*experiment, {"method": "copa"})
    assert {run["status"] for run in results.runs} == {"not_applicable"}
    assert "no inverse" in results.runs[0]["reason"]


def test_metrics_on_known_pairs():
    black, grey = np.zeros((3, 16, 16)), np.full((3, 16, 16), 0.1)
    assert (mse(black, grey), psnr(black, grey)) == pytest.approx((0.01, 20.0))
    # COPA Table 2: an MSE of 0.0512 is printed as 61.0389 dB.
    assert psnr_255(black, np.full((3, 16, 16), 0.0512**0.5)) == pytest.approx(61.04, abs=0.005)
    assert psnr(black, black) == 300.0 and ssim(grey, grey) == pytest.approx(1.0)


def index_of(sent, seeds=1):
    data = dataset(2, *sent.chains[0].input)
    chosen = targets.build(data, {**SETTINGS, "indices": [1]}, None, 1)
    return copa_index.index_table(sent, chosen, seeds=seeds)


@pytest.mark.parametrize("bias", [True, False])
def test_security_reports_both_ranks(bias):
    network = chain(conv(6, 3, bias=bias), conv(2, 4, stride=2), side=14, name="net")
    table = index_of(models(network, seeds=2), 2)
    assert list(table.columns) == copa_index.COLUMNS
    assert (table[table.exact].numerical == table[table.exact]["rank"]).all()
    assert (table.numerical <= table.bound).all()
    assert table["rows"].to_list() == 2 * [layer.shape.rows for layer in network.convolutions]
    value, exact = copa_index.structural_index(network)
    assert exact and value < 0
    assert table.groupby("seed").contribution.sum().to_list() == [pytest.approx(value)] * 2


def test_a_dead_filter_is_left_to_the_numerical_rank():
    network = chain(conv(4, 3, activation="relu"), conv(2, 4, stride=2), name="net")
    sent = models(network)
    sent.weights["net/conv2.weight"][0, 1] = 0.0
    dead = index_of(sent).set_index("layer").loc["conv2"]
    assert dead.rank_method == "numerical" and dead["rank"] < dead.bound


def test_batches_of_the_same_images_pass_through_the_convolutions_once(monkeypatch):
    chosen = built(1, 6, count=1, indices=None, seed=3, relabel=2, classes=None)
    assert chosen.labels[0].tolist() == DATA.labels.tolist() != chosen.labels[1].tolist()
    assert np.array_equal(chosen.images[0], chosen.images[2])
    features_of = Mock(wraps=capture.features_of)
    monkeypatch.setattr(capture, "features_of", features_of)
    found, _ = captured(models(NETWORK, seeds=2), chosen, 2, granted=False, kept="classifier")
    assert features_of.call_count == 2
    expected, _ = captured(models(NETWORK, seeds=2), chosen, 2, granted=False)
    assert set(found) < set(expected)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, atol=1e-15)


def test_small_images_are_enlarged_by_repeating_or_smoothly():
    sizes = {}, {"size": 36}, {"size": 36, "resize": "bilinear"}
    small, repeated, smooth = (built(offset=0.0, **size).inputs(0)[0] for size in sizes)
    np.testing.assert_array_equal(repeated, small.repeat(3, 1).repeat(3, 2))
    # Each pixel is the middle of three.
    np.testing.assert_allclose(smooth[:, 1::3, 1::3], small, atol=1e-9)
    assert smooth.shape == (3, 36, 36) and not np.array_equal(smooth, repeated)


NORMS = (conv(4, 3, 1, 1, norm="batch", **more) for more in ({}, {"skip": 1, "pool": "global"}))
NORMED = chain(*NORMS, channels=3, side=12, classes=3)


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("trained", [True, False])
def test_norms_run_in_the_mode_of_the_experiment(mode, trained):
    """Against a module in train() or eval(); nothing that was given changes."""
    weights = chains.drawn_weights(NORMED, 0, trained)
    images, labels = np.random.default_rng(0).random((3, 3, 12, 12)), np.array([0, 2, 1])
    before = copy.deepcopy(weights)
    found = shared(NORMED, weights, images, labels, mode=mode)
    np.testing.assert_equal(weights, before)
    given = torch.from_numpy(images), torch.from_numpy(labels)
    expected, _ = chains.reference(NORMED, with_statistics(NORMED, weights), *given, mode=mode)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value.detach(), rtol=1e-9, atol=1e-12)


def test_mode_and_training_stand_in_every_row(tmp_path):
    chosen, sent = built(std=0.25), models(NORMED)
    tensors, metadata = captured(sent, chosen, 1, "float32", mode="evaluation")
    paths = saved(tmp_path, sent, tensors, metadata)
    assert metadata["mode"] == {NORMED.name: "evaluation"}
    assert (metadata["low"], metadata["high"]) == (-2.0, 2.0)
    settings = {"method": "inverting_gradients", "iterations": 3, "failure_loss": 10.0}
    found = attack_all(*paths, settings)
    path = str(tmp_path / "answer.safetensors")
    found.save(path, str(tmp_path / "seconds.json"), {})
    case = {**CASE, "mode": "evaluation", "training": "mine"}
    rows = pd.DataFrame(scores.score(path, chosen, sent, case, TASK))
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
    deep = chain(*2 * [conv(2, 3, 2, 1, norm="batch")], side=4, channels=1)
    weights = initial_weights(deep, 0)
    images = np.random.default_rng(0).random((2, 1, 4, 4)).astype(np.float32)
    with refused("the norm of conv2 has one value a channel", kind=ConfigError):
        shared(deep, weights, images[:1], [0], "float32")
    shared(deep, weights, images, [0, 0], "float32")
    shared(deep, weights, images[:1], [0], "float32", mode="evaluation")
