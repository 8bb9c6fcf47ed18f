"""Figures of R-GAP from synthetic files."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from figure_files import flat, outside, pictures, texts
from gradleak.errors import ArtifactError
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.plotting import reader, wording
from gradleak.plotting.layout import drawing
from gradleak.plotting.reader import Content
from gradleak.plotting.style import RED
from gradleak.plotting.wording import signed
from gradleak.runtime.artifacts import write_csv
from gradleak.scoring.metrics.image import AT_TWIN, INVISIBLE, assignment
from papers.rgap.figures import batches, diagrams, fig1, fig2, fig3, fig5, fig6, fig9
from rgap_files import Factory, noisy, resnets_figure, target_set

LEAKY = Activation("leaky_relu", 0.2)
TWIN = 0.1


def network(name, *filters, skip=0):
    """Convolutions 3x3 on 8x8 images, a skip over the last ones, one output."""
    layers = [ConvSpec(f, (3, 3), padding=(1, 1), activation=LEAKY) for f in filters]
    layers[-1] = replace(layers[-1], skip=skip)
    return Chain(name, (3, 8, 8), (*layers, LinearSpec(1, False)))


def failing(below, change=lambda x: x + 0.1):
    return lambda images, rng: [("answer", None if images.mean() < below else change(images))]


def at_both(images, rng):
    return [("answer", images), ("twin", TWIN * images)]


def at_twin(images, rng):
    """Starts that end at the twin, at the real image, elsewhere and nowhere."""
    ends = TWIN * images, images, images + 0.5, None
    return list(zip(("answer", "start 1", "start 2", "start 3"), ends, strict=True))


def ranks(folder):
    made = Factory(folder, target_set(), [network("deep", 6, 2), network("thin", 1)])
    made.rank()
    made.attack("rgap", {"deep": noisy(1e-6), "thin": failing(2.0)})
    made.attack("dlg", noisy(0.1, 0.2, None), batches=1)
    return fig2, made, made.words({"rgap": "R-GAP", "dlg": "DLG"})


def cnn6(folder):
    return fig3, *ranks(folder)[1:]


def twin_data(folder):
    made = Factory(folder, target_set(), [network("whole", 10), network("lacking", 1)])
    made.attack("rgap", {"whole": at_both, "lacking": failing(2.0)}, twin_scale=TWIN)
    made.attack("dlg_near_twin", failing(2.0), twin_scale=TWIN)
    made.attack("dlg", at_twin, twin_scale=TWIN)
    return fig5, made, made.words({"rgap": "R-GAP", "dlg_near_twin": "near", "dlg": "DLG"})


def skips(folder):
    pair = [network("two", 4, 1, 4), network("two_skip", 4, 1, 4, skip=2)]
    made = Factory(folder, target_set(), pair)
    made.attack("dlg", {"two": noisy(0.2, 0.3), "two_skip": noisy(None, 0.1, None)})
    return fig6, made, made.words({"dlg": "DLG"})


def mixtures(folder):
    fcn = Chain("fcn", (1, 8, 8), (LinearSpec(1, False),))
    made = Factory(folder, target_set(2, 3, (1, 8, 8)), [fcn])
    made.attack("rgap", lambda images, _: [("answer", 1.2 * images.mean(axis=0, keepdims=True))])
    made.attack("dlg", failing(0.49, lambda images: images[::-1]))
    return batches, made, made.words({"rgap": "R-GAP", "dlg": "DLG"}, model="fcn")


def noise(folder):
    made = Factory(folder, target_set(), [network("base", 4), network("wide", 8)])
    for defence, level in (("none", 1e-6), ("noise", 0.1)):
        made.attack("rgap", noisy(level), defence=defence)
        made.attack("dlg", failing(2.0) if level > 0.01 else noisy(level), defence=defence)
    levels = {"none": "no noise", "noise": "noise 1 %"}
    return fig9, made, made.words({"rgap": "R-GAP", "dlg": "DLG"}, defences=levels)


ALL = [ranks, cnn6, resnets_figure, twin_data, skips, mixtures, noise]


def drawn(build, folder):
    module, made, words = build(folder)
    return module.make(made.files, words, "smoke"), made


@pytest.fixture(scope="module")
def twin_content(tmp_path_factory):
    _, made, words = twin_data(tmp_path_factory.mktemp("twin"))
    return made, words, Content.read(made.files, words)


def test_answers_are_read_with_their_scores_and_those_that_are_not_there_named(twin_content):
    made, _, content = twin_content
    with pytest.raises(ArtifactError, match="The scores hold no copa of whole under none; name it"):
        content.panel("whole", "copa")
    with pytest.raises(ArtifactError, match="The scores hold no copa; name it"):
        content.table("copa")
    twin = content.panel("whole", "rgap").answer(1, answer=1)
    assert twin is not None and twin.ok
    np.testing.assert_allclose(twin.images[0], TWIN * made.originals.inputs(1)[0])
    assert twin.value("mse_twin") == pytest.approx(0.0, abs=1e-15)
    assert content.panel("whole", "rgap").answer(1, answer=2) is None
    assert reader.median(content.panel("lacking", "rgap").chosen) == np.inf
    assert content.shared() == 2


def test_reconstructions_without_a_scored_image_and_empty_scores_are_named(tmp_path):
    _, made, words = skips(tmp_path)
    rows = pd.read_csv(made.files["scores"][0], keep_default_na=False)
    write_csv(made.files["scores"][0], rows.assign(batch=rows["batch"] + 5))
    with pytest.raises(ArtifactError, match="no answer 0 of two, seed 0, image 5, which its"):
        Content.read(made.files, words)
    write_csv(made.files["scores"][0], rows.iloc[:0])
    with pytest.raises(ArtifactError, match=r"it has no rows\); delete it"):
        Content.read(made.files, words)


def test_losses_and_their_turns():
    figure = fig1.make({}, {"title": "Losses", "note": "Exact."}, "smoke")
    assert outside(figure) == []
    for words in ("logistic: least −0.278 at μ = 1.278", "exponential: least −0.368 at μ = 1"):
        assert words in flat(figure)
    diamonds = next(line for line in figure.axes[0].lines if line.get_marker() == "D")
    small, large = diamonds.get_xdata()
    np.testing.assert_allclose(-small / (1 + np.exp(small)), -large / (1 + np.exp(large)))
    assert small == pytest.approx(0.5) and large > 2


@pytest.mark.parametrize("skip", [0, 2])
def test_diagrams_tell_the_rank_analysis(skip):
    chain = network("n", 6, 1, 6, skip=skip)
    assert diagrams.widest([chain]) == 384
    with drawing("Title", "", 2.0) as page:
        diagrams.draw(page, 0.0, 0.0, 1.5, chain, 384)
    (axes,) = page.figure.axes
    said = [text.get_text() for text in axes.texts]
    assert said[:5] == ["192", "384", "64", "384", "1 out"]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    red = [to_hex(bar.get_facecolor()).upper() == RED for bar in bars]
    assert len(axes.patches) - len(bars) == (skip > 0) and sum(red) == 1
    if not skip:
        assert red[1] and said[6] == f"conv 3×3/1  |W| 54  RA-i {signed(384 - 54 - 64 - 192)}"


def test_figures_of_ranks_show_images_that_all_attacks_have(tmp_path):
    module, made, words = ranks(tmp_path)
    found = texts(module.make(made.files, words, "smoke"))
    assert diagrams.index_words(made.chains[1]) in found
    assert "conv1: 187 of 192" in found and "median failed" in found
    assert sum(words.startswith("median ") for words in found) == 4
    figure = fig3.make(made.files, words, "laptop")
    found = flat(figure)
    assert "Rank measured, less than full: conv1: 187 of 192 conv2: 379 of 384" in found
    assert "R-GAP: 2 images; DLG: 1 image, 3 starts" in found
    frames = [axes for axes in figure.axes if axes.images or axes.collections]
    assert len(frames) == 2 * (1 + 2)
    full = pd.read_csv(made.files["rank"][0])
    write_csv(made.files["rank"][0], full.assign(rank=full["inputs"]))
    assert "Rank measured: full in every" in flat(fig3.make(made.files, words, "laptop"))


def test_ends_of_runs(twin_content):
    made, words, content = twin_content
    counts = {("whole", "dlg"): [2, 2, 0, 2, 2], ("whole", "rgap"): [2, 0, 0, 0, 0]}
    counts["lacking", "rgap"] = [0, 0, 0, 0, 2]
    assert {key: fig5.ends(content.panel(*key)) for key in counts} == counts
    figure = fig5.make(made.files, words, "smoke")
    found = texts(figure)
    assert found.count("at the twin") == 2 and found.count("at the real image") == 1
    assert "near the twin" not in flat(figure)
    original, _, choice, _, _, stretched_twin, *_ = pictures(figure)
    np.testing.assert_allclose([choice, stretched_twin], [original] * 2, atol=1e-12)


ENDS = [
    (INVISIBLE, 0.08, 9.0, "real image"),
    (1.01 * INVISIBLE, 0.08, 9.0, "elsewhere"),
    (0.08, 1e-6, AT_TWIN, "twin"),
    (0.08, 0.0007, 1.01 * AT_TWIN, "near the twin"),
    (0.08, 0.0009, 0.95, "elsewhere"),
    (0.05, np.nan, np.nan, "elsewhere"),
]


@pytest.mark.parametrize(("mse", "mse_twin", "twin_error", "end"), ENDS)
def test_end_of_a_run(mse, mse_twin, twin_error, end):
    row = {"mse": mse, "mse_twin": mse_twin, "twin_error": twin_error, "twin_scale": TWIN}
    for status, expected in (("ok", end), ("failed", "failed")):
        given = pd.Series({**row, "status": status})
        assert fig5.end_of(given, np.full((1, 2, 2), 0.1**0.5)) == expected


def test_near_the_twin_is_named_only_where_it_is_met(tmp_path):
    module, made, words = twin_data(tmp_path)
    made.attack("noise", lambda images, _: [("answer", TWIN * images + 0.03)], twin_scale=TWIN)
    words["attacks"]["noise"] = "DLG"
    figure = module.make(made.files, words, "smoke")
    assert "near the twin" in texts(figure)
    assert "near the twin if its squared error" in flat(figure)


def test_skips_come_in_pairs(tmp_path):
    module, made, words = skips(tmp_path)
    figure = module.make(made.files, words, "smoke")
    said = {"two, without skip", "two, with skip", "median failed, 4 of 6 failed"}
    assert said <= set(texts(figure))
    arrows = [p for axes in figure.axes for p in axes.patches if hasattr(p, "get_arrowstyle")]
    assert len(arrows) == 1
    with pytest.raises(ArtifactError, match="No pair of networks"):
        module.make(made.files, {**words, "chains": words["chains"][:1]}, "smoke")


def test_batches_show_the_fit_and_matched_images(tmp_path):
    figure, made = drawn(mixtures, tmp_path)
    found = texts(figure)
    assert found.count("w = 0.40") == 6 and found.count("R² >\N{THIN SPACE}0.999999") == 2
    mixed, fit = pictures(figure)[3:5]
    np.testing.assert_allclose(mixed, fit, atol=1e-9)
    assert mixed.min() == 0 and mixed.max() == 1
    inputs = made.originals.inputs(0)
    assert list(assignment(inputs, inputs[::-1])) == [2, 1, 0]
    works = sum(made.originals.inputs(b).mean() >= 0.49 for b in range(2))
    assert found.count("0") == 3 * works and found.count("failed") == 3 * (2 - works) > 0


def test_noise_figure(tmp_path):
    panels = drawn(noise, tmp_path)[0].axes[-2:]
    assert [axes.get_title(loc="left") for axes in panels] == ["R-GAP", "DLG"]
    crosses = [line for axes in panels for line in axes.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xdata()) for line in crosses) == 4
    assert list(panels[0].lines[-1].get_ydata()) == pytest.approx([1e-12, 0.01], rel=0.2)


def test_images_are_listed_briefly():
    many, digits = target_set(20), target_set(20, dataset="digits")
    assert wording.described(many).startswith("photos10 test images 0 to 19, embedded")
    assert wording.described(many, [3]).startswith("photos10 test image 3, embedded")
    said = "digits test images 1 and 7, embedded digits that ship with scikit-learn, in place of "
    assert wording.described(digits, [1, 7]) == f"{said}MNIST"
