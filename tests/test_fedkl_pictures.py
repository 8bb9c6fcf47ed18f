"""FedKL's grids of pictures from synthetic files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkl_files import REASON, Panels, originals
from figure_words import flat, pictures, texts
from gradleak.errors import ArtifactError
from papers.fedkl.figures import pictures as fedkl_pictures

LINES = [("DLG", name) for name in ("True", "w/o KL", "w/ BN", "w/ KL")]
LINES += [("IG", name) for name in ("True", "w/o KL", "w/ KL")]
ROWS = [{"name": name, "group": group, "original": name == "True"} for group, name in LINES]
NETWORKS = (("MNIST", "LeNet"), ("C-10", "LeNet"), ("C-10", "ResNet-18"))
COLUMNS = [{"name": name, "group": group} for name, group in NETWORKS]
SETS = [originals("digits", (1, 16, 16)), originals("photos10"), originals("photos10", batches=3)]
NOISE = {1: 0.01, 2: 0.3, 3: None, 5: 0.1, 6: 0.4}


def table4(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Failed runs with and without an image; DLG with a norm on LeNet alone."""
    made = Panels(folder)
    for column, target in enumerate(SETS):
        for row, noise in NOISE.items():
            if column == 2 and row == 2:
                continue
            made.add(target, noise, keep=column == 1, model="net", row=row, column=column)
    words = {"title": "Grid", "note": "A note.", "rows": ROWS, "columns": COLUMNS}
    return made.files, {**words, "panels": made.words}


def table5(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row for each of three images; the second was not run with the lock."""
    made, target = Panels(folder), originals("photos224", (3, 64, 64), 3)
    made.add(target, 0.1, model="plain", column=1)
    made.add(target, [0.3, None, 0.4], status="not_applicable", model="locked", column=2)
    columns = [{"name": "True", "original": True}, {"name": "w/o KL"}, {"name": "w/ KL"}]
    words = {"title": "By image", "note": "A note.", "columns": columns, "panels": made.words}
    return made.files, words


def test_each_answer_lands_in_its_cell(tmp_path):
    files, words = table4(tmp_path)
    figure = fedkl_pictures.make(files, words, "smoke")
    frames = [axes for axes in figure.axes if axes.get_aspect() == 1 or axes.texts]
    assert len(frames) == len(ROWS) * len(COLUMNS)
    for place, axes in enumerate(frames):
        row, column = divmod(place, len(COLUMNS))
        original = SETS[column].images[0, 0].transpose(1, 2, 0) / 255.0
        said = [text.get_text() for text in axes.texts]
        if ROWS[row].get("original"):
            shown = np.asarray(axes.images[0].get_array()).reshape(original.shape)
            np.testing.assert_allclose(shown, original)
            assert said == ["class 0"]
        elif NOISE[row] is None:
            assert ("failed" in said) and ("×" in said)
            # The picture of a failed run is shown where there is one.
            assert bool(axes.images) == (column == 1)
            if column != 1:
                assert any(REASON.startswith(words.split()[0]) for words in said)
        elif (row, column) == (2, 2):
            assert said == ["–"] and not axes.images
        else:
            shown = np.asarray(axes.images[0].get_array()).reshape(original.shape)
            spread = float(np.std(shown - original))
            assert spread == pytest.approx(NOISE[row], rel=0.5)
            psnr = float(said[0].removesuffix(" dB").replace("−", "-"))
            assert psnr == pytest.approx(-20 * np.log10(NOISE[row]), abs=0.6)
            assert said[1].startswith("SSIM ")


def test_columns_say_what_stands_in(tmp_path):
    found = texts(fedkl_pictures.make(*table4(tmp_path), "smoke"))
    assert found.count("here digits") == 1 and found.count("here photos10") == 2
    assert found.count("LeNet") == 1 and found.count("DLG") == 1
    joined = " ".join(" ".join(found).split())
    assert "digits test image 30 (for MNIST); photos10 test image 30 (for CIFAR-10)" in joined
    assert "–: not among the experiments" in joined


def test_rows_and_columns_without_panels_are_left_out(tmp_path):
    files, words = table4(tmp_path)
    kept = [k for k, panel in enumerate(words["panels"]) if panel["row"] < 4 and panel["column"]]
    files = {name: [paths[k] for k in kept] for name, paths in files.items()}
    words = {**words, "panels": [words["panels"][k] for k in kept]}
    found = texts(fedkl_pictures.make(files, words, "smoke"))
    assert "MNIST" not in found and "IG" not in found and found.count("True") == 1
    assert found.count("w/ KL") == 1 and found.count("ResNet-18") == 1


def test_each_image_has_a_row(tmp_path):
    files, words = table5(tmp_path)
    figure = fedkl_pictures.make(files, words, "smoke")
    found = texts(figure)
    assert [word for word in found if word.startswith("class")] == ["class 0", "class 1", "class 2"]
    assert found.count("not applicable") == 1
    target = originals("photos224", (3, 64, 64), 3)
    shown = pictures(figure)
    assert len(shown) == 3 + 3 + 2
    for row, place in enumerate((0, 3, 5)):
        np.testing.assert_allclose(shown[place], target.images[row, 0].transpose(1, 2, 0) / 255)
    assert "photos224 test images 30 to 32 (for ImageNet)" in flat(figure)


def test_each_group_of_columns_has_originals_of_its_own(tmp_path):
    made = Panels(tmp_path)
    sets = [originals("photos224", (3, 64, 64), 2), originals("photos10", batches=3)]
    for group, target in enumerate(sets):
        made.add(target, 0.1, model="plain", column=2 * group + 1)
    lines = [(group, name) for group in ("one", "other") for name in ("True", "w/o KL")]
    columns = [{"name": n, "original": n == "True", "group": group} for group, n in lines]
    words = {"title": "By image", "columns": columns, "panels": made.words}
    figure = fedkl_pictures.make(made.files, words, "smoke")
    shown = pictures(figure)
    # As many rows as both have images.
    assert len(shown) == 2 * 4
    for row in range(2):
        for group, target in enumerate(sets):
            original = target.images[row, 0].transpose(1, 2, 0) / 255
            np.testing.assert_allclose(shown[4 * row + 2 * group], original)
    assert "class 0 / class 0" in flat(figure)


def test_images_that_an_attack_was_not_run_on_are_said(tmp_path):
    made, target = Panels(tmp_path), originals("photos224", (3, 64, 64), 3)
    made.add(target, 0.1, model="plain", column=1)
    made.add(target, [0.1], model="locked", column=2)
    words = table5(tmp_path / "words")[1] | {"panels": made.words}
    figure = fedkl_pictures.make(made.files, words, "smoke")
    assert texts(figure).count("not run") == 2


def test_panels_of_another_image_are_refused(tmp_path):
    files, words = table4(tmp_path)
    files["targets"][1] = files["targets"][5]
    with pytest.raises(ArtifactError, match=r"is of another image .* same targets in config"):
        fedkl_pictures.make(files, words, "smoke")
