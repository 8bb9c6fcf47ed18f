"""R-GAP's Figure 4 from synthetic files."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle

from figure_words import flat, texts
from gradleak.analysis.rank_analysis import analyse, critical, largest_alone
from gradleak.errors import ArtifactError
from gradleak.models.chain import Chain, LinearSpec
from gradleak.plotting.style import RED, number
from gradleak.runtime.artifacts import write_csv
from papers.rgap.figures import diagrams, fig4
from papers.rgap.figures.diagrams import signed
from rgap_files import noisy
from rgap_resnet_files import CHAINS, NETWORKS, TESTED, build, network, usual

BASE, CUT3, CUT8 = CHAINS


def drawn(folder, *args):
    module, made, words = build(folder, *args)
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


# --- Diagrams ------------------------------------------------------------------------------------


def test_blocks_of_a_resnet():
    found = diagrams.steps(BASE, BASE)
    blocks = [f"block {n}" for n in range(1, 9)]
    assert [step.name for step in found] == ["conv 3×3/1", *blocks, "mean, fc"]
    assert [step.projected for step in found] == [n in (3, 5, 7) for n in range(10)]
    sizes = [step.features for step in found[::3]]
    assert sizes == [(3, 16, 16), (4, 16, 16), (16, 4, 4), (32, 2, 2)]
    assert not any(step.cut for step in found)
    counts = analyse(BASE)
    assert found[3].alone == max(count.alone for count in counts[5:7])
    assert max(step.alone for step in found) == largest_alone(counts).alone
    paper = Chain("paper", (3, 32, 32), network("x").specs)
    assert diagrams.steps(paper, paper)[-1].features == (32, 4, 4)


@pytest.mark.parametrize(("chain", "cut"), [(CUT3, 3), (CUT8, 8)])
def test_a_cut_skip_leaves_its_block_and_no_projection(chain, cut):
    found, plain = diagrams.steps(chain, BASE), diagrams.steps(BASE, BASE)
    assert [step.name for step in found if step.cut] == [f"block {cut}"]
    assert not found[cut].projected
    assert [step.features for step in found] == [step.features for step in plain]


def test_networks_of_other_depth_are_no_variants():
    shallow = Chain("shallow", (3, 16, 16), (LinearSpec(10),))
    with pytest.raises(ArtifactError, match=r"shallow has 1 layers, and base.* 18; take networks"):
        diagrams.steps(shallow, BASE)


def test_diagrams_show_skips_projections_and_cuts(figure):
    found = [axes for axes in figure.axes if arrows(axes)]
    for axes, cut in zip(found, (0, 3, 8), strict=True):
        assert len(arrows(axes)) == 8
        assert sum(arrow.get_linestyle() != "-" for arrow in arrows(axes)) == (cut > 0)
        words = [text.get_text() for text in axes.texts]
        assert words.count("cut") == (cut > 0) and words.count("1×1") == 3 - (cut == 3)
        assert {"4×16×16", "10 out", *(f"block {n}" for n in range(1, 9))} <= set(words)
        assert sum(isinstance(patch, Rectangle) for patch in axes.patches) == 11 + 8


def test_networks_have_both_indices_and_missing_rank_is_red(figure):
    colours = {text.get_text(): text.get_color() for text in figure.texts}
    for chain in CHAINS:
        counts = analyse(chain)
        alone = largest_alone(counts).alone
        assert f"RA-i = {signed(critical(counts).index)}" in colours
        assert (colours[f"RA-i alone = {signed(alone)}"] == RED) == (alone > 0)
    assert largest_alone(analyse(CUT3)).alone > 0 > largest_alone(analyse(BASE)).alone


# --- Pictures and panels -------------------------------------------------------------------------


def test_pictures_are_the_first_settings(usually):
    figure, made = usually
    shown = [axes for axes in figure.axes if axes.images]
    # Two originals, and two images on three networks of which one run failed.
    assert len(shown) == 2 + 6 - 1
    original, reconstruction = (np.asarray(shown[k].images[0].get_array()) for k in (0, 2))
    assert np.abs(original - reconstruction).max() > 0.2
    scores = pd.read_csv(made.files["scores"][0])
    values = scores[(scores["metric"] == "mse") & (scores["model"] == "base")]["value"]
    said = {*map(number, values), f"{number(values.mean())} ± {number(values.std())}"}
    assert said | {"1 of 2 failed", "IG: trained, evaluation mode"} <= set(texts(figure))


def test_no_more_than_three_images_are_shown(tmp_path):
    figure, _ = drawn(tmp_path, {"trained": dict.fromkeys(NETWORKS, noisy(0.1))}, 5)
    assert len([axes for axes in figure.axes if axes.images]) == 3 * 4
    assert sum(len(points) for points in lines(errors(figure), "o", 2.5)) == 5
    assert "photos10 test images 0 to 4" in flat(figure) and "none failed" in flat(figure)


def test_accuracies_have_intervals(usually):
    figure, made = usually
    axes = next(axes for axes in figure.axes if axes.get_xlabel() == "Test accuracy, %")
    said = ["ResNet18: 60.0 %", "Variant 1: 70.0 %", "Variant 2: 80.0 %"]
    assert [text.get_text() for text in axes.texts] == said
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


def test_failed_runs_are_counted_and_leave_no_mean(figure):
    axes = errors(figure)
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
    assert len([axes for axes in figure.axes if axes.images]) == 1


def test_a_setting_may_be_missing_and_one_image_has_no_deviation(tmp_path):
    figure, _ = drawn(tmp_path, {"untrained": usual()["untrained"]}, 1)
    axes = errors(figure)
    (tick,) = axes.get_xticklabels()
    assert tick.get_text() == "Untrained,\ntraining\nmode\nn = 1"
    assert not axes.collections
    assert not [words for words in texts(figure) if " ± " in words and "mean" not in words]
    assert "photos10 test image 0," in flat(figure) and "Trained, " not in flat(figure)


def test_what_is_missing_is_one_sentence(tmp_path):
    _, made, words = build(tmp_path)
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
