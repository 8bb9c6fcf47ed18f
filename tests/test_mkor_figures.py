"""Figures of MKOR from synthetic files."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from figure_files import Files, flat, pictures, rows, run, target_set, texts
from gradleak.plotting import layout, reader, wording
from gradleak.scoring.metrics.image import psnr, ssim_gauss
from gradleak.scoring.scores import ByClass
from papers.mkor.figures import blocks as mkor_blocks
from papers.mkor.figures import singles as mkor_singles
from papers.mkor.figures import sweep as mkor_sweep

CLASSES = 10
WORDS = {"title": "A batch", "note": "A note.", "drawn": "drawn at random", "batch": 0}


def originals(size=6, *, batches=1, shape=(3, 12, 12), dataset="photos100", labels=None, **more):
    labels = np.arange(size) % CLASSES if labels is None else labels
    return target_set(batches, size, shape, dataset, first=100, labels=labels, seed=size, **more)


class Factory(Files):
    """Writes target sets, reconstructions and scores, a file of each for each panel."""

    def __init__(self, folder):
        super().__init__(folder)
        self.words, self.rng = {**WORDS, "panels": []}, np.random.default_rng(0)

    def by_class(self, title, target, *, noise=0.02, found=range(CLASSES), partial=False, **more):
        """An attack that gives the mean image of each class, or of those `found`."""
        runs, scores, images = [], [], []
        for batch, labels in enumerate(target.labels):
            classes = [label for label in sorted(set(labels.tolist())) if label in found]
            inputs = target.inputs(batch)
            means = np.stack([inputs[labels == label].mean(axis=0) for label in classes])
            means = means + noise * self.rng.standard_normal(means.shape)
            counts = [int((labels == label).sum()) for label in classes]
            runs.append(run("net", batch, classes=classes, counts=counts, partial=partial))
            by = ByClass(target, batch, SimpleNamespace(classes=CLASSES), runs[-1])
            scores += by.rows(means, {"paper": "mkor", "precision": "float32"})
            images.append(np.concatenate([means, np.full_like(inputs[:1], np.nan)]))
        self._panel(target, np.stack(images), runs, scores, title=title, **more)

    def by_image(self, title, target, *, failed=False):
        """An attack on the first batch that gives its images in another order."""
        inputs, scores = target.inputs(0), []
        record = run("net", 0, "No start came anywhere." * failed)
        found = np.clip(inputs + 0.05 * self.rng.standard_normal(inputs.shape), 0, 1)
        metrics = {"psnr": psnr, "ssim_gauss": ssim_gauss}
        for k, image in enumerate(found):
            values = {m: None if failed else of(inputs[k], image) for m, of in metrics.items()}
            scores += rows(record, int(target.indices[0, k]), values)
        stored = np.full_like(found, np.nan) if failed else found
        self._panel(target, stored[None, ::-1], [record], scores, title=title)

    def _panel(self, target, images, *rows, **words):
        self.save({"net": images[None, :, None].astype(np.float32)}, *rows, target)
        self.words["panels"].append({"model": "net", **words})


def mnist(folder):
    """Smoke scale of MNIST: 20 digits, classes repeat; one attack fails."""
    made = Factory(folder)
    target = originals(20, shape=(1, 28, 28), dataset="digits")
    made.by_class("MKOR", target, found=range(1, CLASSES))
    made.by_image("GI", target)
    made.by_class("CF", target, found=[3], partial=True)
    made.by_image("DLG", target, failed=True)
    return mkor_blocks, made


def cifar(folder):
    """Smoke scale of CIFAR-100: 6 images, enlarged for one attack and not for the others."""
    made = Factory(folder)
    made.by_class("MKOR,\nstrided", originals(6, batches=2, enlarged=7))
    made.by_image("GI at 8x8", originals(6))
    made.by_class("CF", originals(6), found=[3], partial=True)
    return mkor_blocks, made


def singles(folder):
    return mkor_singles, cifar(folder)[1]


def photos(folder):
    """More photos than a block shows, under labels that repeat."""
    made = Factory(folder)
    labels = np.random.default_rng(0).integers(0, CLASSES, 130)
    target = originals(130, shape=(3, 16, 16), dataset="photos224", labels=labels.tolist())
    made.by_class("MKOR, no noise", target)
    made.by_class("MKOR, noise", target, noise=0.2)
    return mkor_blocks, made


def sweep(folder):
    made = Factory(folder)
    for n in (1, 5, 10):
        target = originals(6, batches=2, enlarged=2, labels=[k % n for k in range(6)])
        made.by_class(f"N = {n}", target, classes=n)
    made.words["shown"] = [1, 10]
    return mkor_sweep, made


ALL = [mnist, cifar, singles, photos, sweep]


def draw(module, made, **changed):
    return module.make(made.files, {**made.words, **changed}, "smoke")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return mnist(tmp_path_factory.mktemp("mnist"))


def test_images_come_to_the_places_of_their_originals(digits):
    mkor, search, fishing, failed = reader.read(digits[1].files, digits[1].words)
    inputs, places = mkor.targets.inputs(0), list(range(20))
    found = mkor.images(0, places)
    assert found[0] is None and found[10] is None  # class 0 was missed
    np.testing.assert_allclose(found[4:15:10], 2 * [(inputs[4] + inputs[14]) / 2], atol=0.1)
    np.testing.assert_allclose(search.images(0, places), inputs, atol=0.3)
    there = [place for place, image in enumerate(fishing.images(0, places)) if image is not None]
    assert there == [3, 13] and fishing.says("partial", 0) and not mkor.says("partial", 0)
    assert failed.images(0, [0, 1]) == [None, None]
    assert (failed.reason(0), search.reason(1)) == ("No start came anywhere.", "not run on batch 1")
    missed = mkor.values(0)["psnr"].isna()
    assert missed.tolist() == [place % CLASSES == 0 for place in places]


def test_pixels_keep_their_mean():
    image = np.random.default_rng(0).random((3, 28, 28))
    blocks = image.reshape(3, 14, 2, 14, 2).mean(axis=(2, 4))
    for side, exact in ((7, None), (14, blocks), (28, image), (40, None), (56, None)):
        small = layout.shrunk(image, side)
        assert small.shape == (3, side, side)
        np.testing.assert_allclose(small.mean(axis=(1, 2)), image.mean(axis=(1, 2)))
        np.testing.assert_allclose(small, small if exact is None else exact)


def test_numbers_in_words():
    decibels, similarities = map(wording.decibel, (-0.04, -3.25)), (1.0, 0.9973, 0.99999)
    assert [*decibels] == ["0.0 dB", "\N{MINUS SIGN}3.2 dB"]
    said = ["1.00", "0.9973", ">\N{THIN SPACE}0.9999"]
    assert [*map(wording.similarity, similarities)] == said
    assert reader.evenly(4, 100) == [0, 1, 2, 3]
    picked = reader.evenly(1000, 100)
    assert len(set(picked)) == 100 and picked[0] == 0 and picked[-1] == 999
    assert reader.ranked([1.0, np.nan, 3.0, 3.0]) == [2, 3, 0]


def test_blocks_show_places_and_scores(digits):
    figure, said = draw(*digits), (
        "10 classes, 20 images", "0 alone in their class", "2 of 20 images missed",
        "one class: 2 of 20 images", "No start came", "Grey with a cross: the",
        "digits that ship with scikit-learn, in place of MNIST",
    )  # fmt: skip
    assert [words for words in said if words not in flat(figure)] == []
    blocks = [axes for axes in figure.axes if axes.images]
    ((rows, columns, _),) = {image.shape for image in pictures(figure)}
    # A pixel of a block is a pixel of the PNG.
    assert blocks[0].bbox.size == pytest.approx([columns, rows], abs=0.01)
    assert [len(axes.patches) for axes in blocks] == [0, 2, 0, 18]
    assert [len(axes.collections[0].get_segments()) for axes in blocks] == [0, 4, 0, 36]


def test_a_batch_that_is_not_there_is_replaced_and_said(tmp_path):
    given = cifar(tmp_path)
    found = flat(draw(*given, batch=3))
    assert "batch 1 in place of 3, which this scale lacks" in found
    assert "(batch 1), each pixel repeated 7 times" in found
    assert found.count("not run on batch 1") == 2
    assert "in place of 3" not in flat(draw(*given, batch=1))


def test_many_photos_are_thinned_out(tmp_path):
    figure = draw(*photos(tmp_path))
    assert "100 of 130 images are shown" in flat(figure)
    assert "in place of ImageNet" in flat(figure)
    assert max(pictures(figure)[0].shape) <= 10 * (mkor_blocks.MOST_PIXELS + 1) + 1


def test_singles_are_best_median_and_worst(tmp_path):
    given = singles(tmp_path)
    panels = reader.read(given[1].files, given[1].words)
    scores, samples = panels[0].values(0)["psnr"], mkor_singles.picks(panels, 0)
    best, middle, worst = (scores[samples[name]] for name in ("Best", "Median", "Worst"))
    assert scores.max() == best >= middle >= worst == scores.min()
    assert samples["Fished"] == 3
    found = texts(draw(*given))
    assert found.count("no image") == 3 - (3 in list(samples.values())[:3])
    assert "class 3" in found and "alone in its class" in found


def test_labels_that_were_drawn_for_a_photo_say_so(tmp_path):
    made, target = Factory(tmp_path), originals(6, batches=2)
    target.images[1], target.indices[1] = target.images[0], target.indices[0]
    made.by_class("MKOR", target)
    for batch, said in enumerate(("alone in its class", "label drawn, alone")):
        assert texts(draw(mkor_singles, made, batch=batch)).count(said) == 3


def test_headings_of_singles_keep_to_their_columns(tmp_path):
    module, made = singles(tmp_path)
    for panel in made.words["panels"]:
        panel["title"] = "Inverting gradients (GI),\nstrides for pools, at 32×32"
    made.words["panels"] *= 2
    made.files = {name: 2 * paths for name, paths in made.files.items()}
    figure = draw(module, made)
    renderer = figure.canvas.get_renderer()
    heads = [text for text in figure.texts if text.get_text().startswith("Inverting")]
    boxes = [text.get_window_extent(renderer) for text in heads]
    assert len(boxes) == 6
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
    # Nor do they reach up to the title.
    assert max(box.y1 for box in boxes) < figure.texts[0].get_window_extent(renderer).y0


def test_sweep_counts_images_alone_in_their_class(tmp_path):
    module, made = sweep(tmp_path)
    panels = reader.read(made.files, made.words)
    assert len(mkor_sweep.means(panels[0], "ssim_gauss")) == 2
    means = [float(mkor_sweep.means(panel, "psnr").mean()) for panel in panels]
    assert means[0] < means[1] < means[2]
    found = texts(draw(module, made))
    # 6 images of 10 classes: 6·(1 − 1/10)^5 = 3.5 expected, 6 as made; of one class none.
    assert found.count("3.5") == 2 and found.count("6.0") == 2
    headings = {f"At most {n} class{'es' * (n > 1)}" for n in (1, 5, 10)}
    assert headings - {*found} == {"At most 5 classes"}
