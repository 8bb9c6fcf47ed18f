"""R-GAP's ResNets: the table of their indices, accuracies and errors, and Figure 4."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle
from scipy import stats

from figure_files import flat, pictures, texts
from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain, LinearSpec
from gradleak.plotting.style import RED, number
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.tidy import TABLES
from papers.rgap.figures import diagrams, fig4
from papers.rgap.figures.diagrams import signed
from papers.rgap.tables.resnets import table, wilson
from rgap_files import NETWORKS, RESNETS, TESTED, noisy, resnet, resnets_figure, usual

BASE, CUT3, CUT8 = RESNETS
WORDS = {"networks": {"net": "Net", "net_cut": "Variant"}}
WORDS["columns"] = {"trained": "Trained, evaluation mode"}
MODEL = {"model": ["net", "net_cut"]}
TRAINED = pd.DataFrame({**MODEL, "test_accuracy": [0.9, 0.88], "test": 1000, "epochs": 5})
RANK = pd.DataFrame({**MODEL, "network_ra": [-5, -4], "network_ra_alone": [-2, 7]})


def cells(failed=False):
    """The table of two networks by place; a run of the second may have failed."""
    rows = []
    for model, errors in {"net": [0.1, 0.3], "net_cut": [0.2, 1.0]}.items():
        for index, value in enumerate(errors):
            bad = failed and model == "net_cut" and index == 0
            for metric, factor in (("mse", 1), ("mse_input", 16), ("psnr", 1), ("ssim", 1)):
                told = ("", "failed") if bad else (factor * value, "ok")
                rows.append(("trained", model, metric, index, *told))
        rows.append(("trained", model, "evaluations", 1, 7, "ok"))
    scores = pd.DataFrame(rows, columns=["result", "model", "metric", "index", "value", "status"])
    scores["seed"] = 0
    found = table(scores, TRAINED, RANK, WORDS, images="real", scale="smoke")
    assert list(found.columns) == [*TABLES, "model"]
    place = ["model", "column", "metric"]
    return found.set_index(place, verify_integrity=True).sort_index()


def test_counts_accuracies_and_errors():
    found = cells()
    ours, where = found["ours"], ("net_cut", "Trained, evaluation mode")
    assert ours["net_cut", "Architecture", "ra"] == -4
    assert ours["net_cut", "Architecture", "ra_alone"] == 7
    accuracy = found.loc["net", "Trained", "accuracy"]
    assert (accuracy["low"], accuracy["high"]) == pytest.approx(wilson(0.9, 1000))
    change = found.loc["net_cut", "Trained", "accuracy_change"]
    width = 1.959964 * np.sqrt(0.9 * 0.1 / 1000 + 0.88 * 0.12 / 1000)
    assert change["ours"] == pytest.approx(-0.02)
    assert change["high"] - change["ours"] == pytest.approx(width, rel=1e-6)
    expected = {"mse": 0.6, "mse_input": 9.6, "mse_ratio": 3.0, "sd_ratio": 4.0, "iterations": 7}
    assert ours.loc[where][list(expected)].to_dict() == pytest.approx(expected)
    low, high = found.loc[(*where, "mse"), ["low", "high"]]
    assert 0.2 <= low < 0.6 < high <= 1.0
    # A failed run leaves no mean, but its count.
    found = cells(failed=True).xs("Trained, evaluation mode", level="column")
    for metric in ("mse", "mse_ratio", "mse_sd"):
        row = found.loc["net_cut", metric]
        assert np.isnan(row["ours"]) and (row["n"], row["n_ok"]) == (2, 1)
    assert found.loc[("net", "mse"), "ours"] == pytest.approx(0.2)


def test_two_trainings_are_averaged_for_each_image_and_spread_within_each():
    rows = [
        ("trained", model, "mse", index, seed, 0.1 * factor * (1 + index) + 0.5 * seed, "ok")
        for model, factor in (("net", 1), ("net_cut", 3))
        for index, seed in itertools.product(range(4), range(2))
    ]
    columns = ["result", "model", "metric", "index", "seed", "value", "status"]
    scores = pd.DataFrame(rows, columns=columns)
    found = table(scores, TRAINED, RANK, WORDS, images="real", scale="night")
    found = found[found["column"] == "Trained, evaluation mode"].set_index(["model", "metric"])
    images = 0.1 * np.arange(1, 5)
    assert found.loc[("net", "mse"), "ours"] == pytest.approx(images.mean() + 0.25)
    assert found.loc[("net", "mse_sd"), "ours"] == pytest.approx(images.std(ddof=1))
    assert found.loc[("net_cut", "sd_ratio"), "ours"] == pytest.approx(3)
    row = found.loc[("net", "mse")]
    assert (row["n"], row["note"]) == (8, "mean over images and 2 draws of the weights")
    assert row["low"] >= images.min() + 0.25 and row["high"] <= images.max() + 0.25
    row = found.loc[("net", "mse_sd")]
    assert row["note"] == "standard deviation over images within each draw of the weights"


def test_equal_errors_have_no_ratio_of_spreads():
    rows = [
        ("trained", model, "mse", index, 0, value, "ok")
        for model, value in (("net", 0.0), ("net_cut", 0.1))
        for index in range(2)
    ]
    columns = ["result", "model", "metric", "index", "seed", "value", "status"]
    scores = pd.DataFrame(rows, columns=columns)
    found = table(scores, TRAINED, RANK, WORDS, images="real", scale="smoke")
    found = found.set_index(["model", "metric"])["ours"]
    assert np.isinf(found["net_cut", "mse_ratio"]) and np.isnan(found["net_cut", "sd_ratio"])


def test_the_footer_names_draws_of_the_weights(tmp_path):
    _, made, words = resnets_figure(tmp_path)
    assert "one for each image, with so many steps" in flat(fig4.make(made.files, words, "smoke"))
    again = pd.read_csv(made.files["points"][0]).assign(seed=1)
    write_csv(tmp_path / "again.csv", again)
    files = {**made.files, "points": [*made.files["points"], str(tmp_path / "again.csv")]}
    said = "one for each image under each of up to 2 draws of the initial weights (pictures: the"
    assert said in flat(fig4.make(files, words, "smoke"))


@pytest.mark.parametrize(("right", "n"), [(0, 20), (9, 20), (20, 20), (4500, 5000)])
def test_wilsons_interval(right, n):
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right / n, n) == pytest.approx((found.low, found.high), abs=1e-12)


def drawn(folder, *args):
    module, made, words = resnets_figure(folder, *args)
    return module.make(made.files, words, "smoke"), made


@pytest.fixture(scope="module")
def usually(tmp_path_factory):
    """The figure of usual answers, and its files."""
    return drawn(tmp_path_factory.mktemp("usual"))


@pytest.fixture
def figure(usually):
    return usually[0]


def errors(figure):
    return next(axes for axes in figure.axes if axes.get_ylabel() == "MSE")


def lines(axes, marker, size):
    drawn = (e for e in axes.lines if (e.get_marker(), e.get_markersize()) == (marker, size))
    return [np.asarray(line.get_ydata(), float) for line in drawn]


def arrows(axes):
    return [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]


def test_blocks_of_a_resnet():
    found = diagrams.steps(BASE, BASE)
    blocks = [f"block {n}" for n in range(1, 9)]
    assert [step.name for step in found] == ["conv 3×3/1", *blocks, "mean, fc"]
    assert [step.projected for step in found] == [n in (3, 5, 7) for n in range(10)]
    sizes = [step.features for step in found[::3]]
    assert sizes == [(3, 16, 16), (4, 16, 16), (16, 4, 4), (32, 2, 2)]
    assert not any(step.cut for step in found)
    assert found[3].alone == max(count.alone for count in analyse(BASE)[5:7])
    assert max(step.alone for step in found) == largest_alone(analyse(BASE)).alone
    paper = Chain("paper", (3, 32, 32), resnet("x").specs)
    assert diagrams.steps(paper, paper)[-1].features == (32, 4, 4)
    # A cut skip leaves its block, and no projection.
    for chain, cut in ((CUT3, 3), (CUT8, 8)):
        without = diagrams.steps(chain, BASE)
        assert [step.name for step in without if step.cut] == [f"block {cut}"]
        assert not without[cut].projected
        assert [step.features for step in without] == [step.features for step in found]
    # Networks of other depth are no variants.
    shallow = Chain("shallow", (3, 16, 16), (LinearSpec(10),))
    with pytest.raises(ArtifactError, match=r"shallow has 1 layers, and base.* 18; take networks"):
        diagrams.steps(shallow, BASE)


def test_diagrams_show_skips_projections_cuts_and_both_indices_red_where_rank_lacks(figure):
    found = [axes for axes in figure.axes if arrows(axes)]
    for axes, cut in zip(found, (0, 3, 8), strict=True):
        assert len(arrows(axes)) == 8
        assert sum(arrow.get_linestyle() != "-" for arrow in arrows(axes)) == (cut > 0)
        words = [text.get_text() for text in axes.texts]
        assert words.count("cut") == (cut > 0) and words.count("1×1") == 3 - (cut == 3)
        assert {"4×16×16", "10 out", *(f"block {n}" for n in range(1, 9))} <= set(words)
        assert sum(isinstance(patch, Rectangle) for patch in axes.patches) == 11 + 8
    colours = {text.get_text(): text.get_color() for text in figure.texts}
    alone = [largest_alone(analyse(chain)).alone for chain in RESNETS]
    for chain, value in zip(RESNETS, alone, strict=True):
        assert f"RA-i = {signed(critical(analyse(chain)).index)}" in colours
        assert (colours[f"RA-i alone = {signed(value)}"] == RED) == (value > 0)
    assert alone[1] > 0 > alone[0]


def test_pictures_are_the_first_settings(usually):
    figure, made = usually
    # Two originals, and two images on three networks of which one run failed.
    assert len(pictures(figure)) == 2 + 6 - 1
    original, reconstruction = pictures(figure)[:3:2]
    assert np.abs(original - reconstruction).max() > 0.2
    scores = pd.read_csv(made.files["scores"][0])
    values = scores[(scores["metric"] == "mse") & (scores["model"] == "base")]["value"]
    said = {*map(number, values), f"{number(values.mean())} ± {number(values.std())}"}
    assert said | {"1 of 2 failed", "IG: trained, evaluation mode"} <= set(texts(figure))


def test_no_more_than_three_images_are_shown(tmp_path):
    figure, _ = drawn(tmp_path, {"trained": dict.fromkeys(NETWORKS, noisy(0.1))}, 5)
    assert len(pictures(figure)) == 3 * 4
    assert sum(len(points) for points in lines(errors(figure), "o", 2.5)) == 5
    assert "photos10 test images 0 to 4" in flat(figure) and "none failed" in flat(figure)


def test_accuracies_have_intervals(usually):
    figure, made = usually
    axes = next(axes for axes in figure.axes if axes.get_xlabel() == "Test accuracy, %")
    said = "ResNet18: 60.0 %, Variant 1: 70.0 %, Variant 2: 80.0 %"
    assert ", ".join(text.get_text() for text in axes.texts) == said
    rows = pd.read_csv(made.files["table"]).query("metric == 'accuracy'")
    bars = [group.get_segments()[0][:, 0] for group in axes.collections]
    np.testing.assert_allclose(bars, 100 * rows[["low", "high"]].to_numpy())
    assert f"{TESTED} test images, best epoch of 3" in flat(figure)


def test_errors_are_points_means_and_deviations(figure):
    axes = errors(figure)
    small, large = lines(axes, "o", 2.5), lines(axes, "o", 4.0)
    assert [len(points) for points in small] == [2, 2]
    assert [mean[0] for mean in large] == pytest.approx([points.mean() for points in small])
    spread = axes.collections[0].get_segments()[0][:, 1]
    assert np.ptp(spread) == pytest.approx(2 * small[0].std(ddof=1))
    said = ["Trained,\nevaluation\nmode\nn = 2", "Untrained,\ntraining\nmode\nn = 2"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == said
    # Failed runs are counted and leave no mean.
    assert len(lines(axes, "x", 3.0)) == 1
    assert [text.get_text() for text in axes.texts] == ["1"]
    assert [len(points) for points in lines(axes, "s", 2.5)] == [1, 2]
    assert len(lines(axes, "s", 4.0)) == 1
    assert "failed: 1 of 2 on Variant 1 (trained, evaluation mode)." in flat(figure)
    highest = max(points.max() for mark in "os^" for points in lines(axes, mark, 2.5))
    cross = axes.transAxes.transform((0, 0.88))[1]
    assert axes.transData.transform((0, highest))[1] < cross - 5


def test_nothing_but_failures_is_still_a_figure(tmp_path):
    figure, _ = drawn(tmp_path, {"trained": dict.fromkeys(NETWORKS, noisy(None))}, 1)
    assert texts(figure).count("1 of 1 failed") == 3
    assert len(lines(errors(figure), "x", 3.0)) == 3
    assert len(pictures(figure)) == 1


def test_a_setting_may_be_missing_and_one_image_has_no_deviation(tmp_path):
    figure, _ = drawn(tmp_path, {"untrained": usual()["untrained"]}, 1)
    (tick,) = errors(figure).get_xticklabels()
    assert tick.get_text() == "Untrained,\ntraining\nmode\nn = 1"
    assert not errors(figure).collections
    assert not [words for words in texts(figure) if " ± " in words and "mean" not in words]
    assert "photos10 test image 0," in flat(figure) and "Trained, " not in flat(figure)


def test_what_is_missing_is_one_sentence(tmp_path):
    _, made, words = resnets_figure(tmp_path)
    with pytest.raises(ArtifactError, match="No cut8 to draw; name it in the models"):
        fig4.make(made.files, {**words, "chains": words["chains"][:2]}, "smoke")
    table = pd.read_csv(made.files["table"])
    write_csv(made.files["table"], table[table["metric"] != "accuracy"])
    with pytest.raises(ArtifactError, match="holds no accuracy of base under 'Trained'; delete it"):
        fig4.make(made.files, words, "smoke")


def test_words_do_not_meet(figure):
    renderer = figure.canvas.get_renderer()
    shown = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in shown if t.get_text()]
    for (words, box), (other, second) in itertools.combinations(boxes, 2):
        assert not box.padded(-1).overlaps(second.padded(-1)), (words, other)
