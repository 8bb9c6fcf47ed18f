"""R-GAP's tables beyond the paper's own: second order, choices, likeness, settings, counts."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import chains
from chains import chain, conv
from figure_files import target_set
from gradleak.attacks.base import AttackerView, Reconstruction
from gradleak.config.loader import load as load_config
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.tidy import SCORES, TABLES
from papers.rgap import inputs
from papers.rgap.tables import choices, counts, likeness, second, second_batches, settings
from pipeline_trees import whole
from rgap_files import Factory

CASE = {"images": "real", "scale": "laptop"}
WHOLE = (
    "rgap_cnn6",
    "rgap_cnn6_mnist",
    "rgap_lenet",
    "rgap_fig2",
    "rgap_fig6",
    "rgap_fig9",
    "rgap_edge",
)


@pytest.fixture(scope="module")
def counted():
    """The table of counts, of the networks in config."""
    config = load_config(whole())
    words = {
        "cut": {"ResNet-101": {"model": "rgap_resnet101"}, "ResNet-18": {"model": "rgap_resnet18"}}
    }
    words |= {"timed": ["rgap_cnn6"], "gradients": 6000}
    writer = SimpleNamespace(config=config, entry=SimpleNamespace(experiments=list(WHOLE)))
    files, words = inputs.counts(writer, {}, words)
    found = counts.make(files, words, CASE)
    assert list(found.columns) == [*TABLES, "model", "place"]
    return found


def test_no_skip_of_a_large_resnet_lowers_its_index(counted):
    large = counted[counted["model"] == "rgap_resnet101"].set_index("metric")
    change = large.loc["change"].set_index("column")["ours"]
    assert len(change) == 33 and large.loc["ra", "ours"] == -13744
    assert change["block 1 cut"] == 176 and (change.drop("block 1 cut") == 0).all()
    assert large.loc["change_alone"].set_index("column").loc["block 3 cut", "ours"] == 48128 - 11264


def test_padding_adds_as_many_constraints_as_unknowns(counted):
    added = counted[counted["metric"] == "padding_unknowns"].set_index(["model", "column"])["ours"]
    assert added["rgap_cnn6", "conv1"] == 3 * (36 * 36 - 32 * 32)
    assert (counted.loc[counted["metric"] == "padding_left", "ours"] == 0).all()


def test_the_first_layer_has_the_fewest_virtual_constraints(counted):
    shares = counted[counted["row"] == "all networks"].set_index("metric")["ours"]
    assert shares["first_fewer"] == 1
    assert shares["first_smaller"] < 0.5
    own = counted[counted["metric"] == "first_smaller"].set_index("row")["ours"]
    assert own["rgap_fig2_d"] == 1 and own["rgap_cnn6"] == 0


def test_dense_least_squares_cost_more_than_a_search(counted):
    own = counted[counted["metric"] == "multiplications"].set_index("column")["ours"]
    # The third convolution: 36 x 11 x 11 unknowns, 36 x 81 + 36 x 36 x 9 + 36 x 40 equations.
    unknowns, equations = 36 * 11 * 11, 36 * 81 + 36 * 36 * 9 + 36 * (121 - 81)
    assert own["R-GAP, dense"] > 2 * unknowns**2 * (equations - unknowns / 3)
    (ratio,) = counted.loc[counted["metric"] == "times_rgap", "ours"]
    assert ratio == own["DLG"] / own["R-GAP, dense"] < 1


def test_a_network_of_one_convolution_has_no_depth():
    assert not list(counts.depth("one", chain(conv(3, 3))))


def scores(rows):
    """Score rows (attack, model, index, metric, value), an empty value for a failed run."""
    full = []
    for attack, model, index, metric, value in rows:
        status = "failed" if value is None else "ok"
        row = {"result": "r", "attack": attack, "model": model, "index": index, "seed": 0}
        row |= {"metric": metric, "value": "" if value is None else value, "status": status}
        full.append({**dict.fromkeys(SCORES, ""), **row, "answer": 0, "kind": "answer"})
    return pd.DataFrame(full)


def test_the_second_order_table_tells_what_was_returned_as_given(tmp_path):
    rows = [("gn", "net", k, "mse", value) for k, value in enumerate([1e-9, 1e-9, 0.2, None])]
    rows += [("gn", "net", k, "evaluations", value) for k, value in enumerate([1, 1, 300])]
    rows += [("dlg", "net", k, "mse", value) for k, value in enumerate([None, None, None, 0.1])]
    write_csv(tmp_path / "scores.csv", scores(rows))
    words = {"networks": {"net": "Net", "none": "None"}, "attacks": {"gn": "GN", "dlg": "DLG"}}
    words["given"] = ["gn"]
    found = second.make({"scores": [tmp_path / "scores.csv"]}, words, CASE)
    ours = found.set_index(["column", "metric"])["ours"]
    assert set(found["row"]) == {"Net"}
    assert ours["GN", "mse"] == pytest.approx(0.1, rel=1e-6) and ours["GN", "recovered"] == 0.5
    assert (ours["GN", "evaluations"], ours["GN", "returned"]) == (1, pytest.approx(2 / 3))
    assert np.isnan(ours["DLG", "mse"]) and ours["DLG", "recovered"] == 0
    assert ("DLG", "returned") not in ours
    assert found[found["metric"] == "mse"][["n", "n_ok"]].to_numpy().tolist() == [[4, 3], [4, 1]]


def test_choices_count_the_better_of_two(tmp_path):
    errors = {
        "one": [0.1, 0.1, 0.1, None],
        "two": [0.2, 0.01, 0.2, 0.1],
        "best": [0.1, 0.1, 0.1, 0.1],
    }
    rows = [(a, "net", k, "mse", v) for a, values in errors.items() for k, v in enumerate(values)]
    write_csv(tmp_path / "scores.csv", scores(rows))
    words = {
        "networks": {"net": "Net", "none": "None"},
        "chooser": "best",
        "candidates": ["one", "two"],
    }
    found = choices.make({"scores": [tmp_path / "scores.csv"]}, words, CASE)
    assert found["row"].tolist() == ["Net", "all networks"]
    assert found["ours"].tolist() == pytest.approx([2 / 3, 2 / 3]) and set(found["n"]) == {3}
    assert (found["low"] < 0.5).all()


def test_settings_have_means_and_intervals_over_images(tmp_path):
    rows = [("ig", "net", k, m, v) for k in range(3) for m, v in (("psnr", 10.0 + k), ("mse", 0.1))]
    rows += [("ig", "net", 0, "evaluations", 40)]
    rows += [("tuned", "net", k, "psnr", None if k else 20.0) for k in range(3)]
    write_csv(tmp_path / "scores.csv", scores(rows))
    words = {"columns": {"r": {"ig": "script", "tuned": "tuned"}}}
    found = settings.make({"scores": [tmp_path / "scores.csv"]}, words, CASE)
    own = found.set_index(["attack", "metric"])
    assert own.loc[("ig", "psnr"), "ours"] == 11 and 10 <= own.loc[("ig", "psnr"), "low"] < 11
    assert own.loc[("ig", "evaluations"), "ours"] == 40
    assert np.isnan(own.loc[("tuned", "psnr"), "ours"]) and own.loc[("tuned", "psnr"), "n_ok"] == 1


def test_correlations_are_pearsons():
    images = np.random.default_rng(0).random((3, 1, 4, 4))
    found = likeness.correlations(images[0], np.concatenate([images, np.ones((1, 1, 4, 4))]))
    expected = [stats.pearsonr(images[0].ravel(), other.ravel()).statistic for other in images]
    assert found[:3] == pytest.approx(expected) and found[3] == 0


def test_an_image_like_the_closed_forms_is_counted(tmp_path):
    made = Factory(tmp_path, target_set(2, 5, (1, 6, 6)), [chain(conv(3, 3), side=6, channels=1)])
    mixed = [0.3, 0.25, 0.2, 0.15, 0.1]

    def one(images, rng):
        return [("answer", np.tensordot(mixed, images, 1)[None])]

    def many(images, rng):
        like = np.tensordot(mixed, images, 1)[None]
        return [
            ("answer", np.concatenate([images[:4], 3 * like - 1])),
            ("start 1", images),
            ("start 2", None),
        ]

    made.attack("closed", one)
    made.attack("search", many)
    words = {"one": "panel-0", "many": "panel-1"}  # the names of its files
    found = likeness.make(
        {**made.files, "targets": str(tmp_path / "targets.safetensors")}, words, CASE
    )
    assert found.loc[found["metric"] == "alike", "ours"].tolist() == [1, 0, 1, 0]
    (row,) = found[found["metric"] == "searches"].to_dict("records")
    assert (row["ours"], row["n"]) == (2, 4)


def test_batches_are_searched_beside_the_images(tmp_path):
    network = chain(
        conv(4, 3, 2, 1, activation="sigmoid"), side=6, channels=1, classes=3, last="identity"
    )
    weights = chains.drawn_weights(network, 0)
    images = np.random.default_rng(1).random((2, *network.input))
    gradients = chains.shared(network, weights, images, np.array([0, 2]))
    view = AttackerView(network, weights, gradients, (0, 2), 0.0, 1.0, batch=2)
    begun = dict(second_batches.starts(images, 0))
    assert np.abs(begun["images with noise 0.1"][0] - images).std() < 0.1
    swapped = begun["images with noise 0.1, in another order"][0]
    assert np.array_equal(swapped[::-1], begun["images with noise 0.1"][0])
    assert begun["uniform noise"].min() >= 0 and begun["uniform noise"].max() <= 1
    found = dict(second_batches.searches(view, images, 3, 0))
    first, again = (
        found["images with noise 0.1"],
        found["images with noise 0.1, begun again 4 times"],
    )
    assert again.loss <= first.loss and again.evaluations > first.evaluations
    numbers = second_batches.measured(images, Reconstruction(images[::-1], "spent", loss=1e-8))
    assert numbers["reordered"] == 1 and numbers["psnr"] == 300 and numbers["stiffness"] == 0
