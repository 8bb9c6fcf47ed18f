"""FedKL's pictures, attackers who know something of a lock, and images of one colour."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from figure_files import REASON, Files, flat, pictures, rows, run, target_set, texts
from gradleak.data import targets
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import write_csv
from gradleak.scoring.metrics.image import mse, psnr, ssim
from papers.fedkl.figures import adaptive
from papers.fedkl.figures import pictures as grids
from papers.fedkl.tables import constants
from papers.fedkl.tables.adaptive import COLUMNS, make, runs


def originals(dataset="photos10", shape=(3, 16, 16), batches=2):
    """Smooth random images, another set for each data set."""
    small, seed = (shape[0], 4, 4), sum(map(ord, dataset))
    found = target_set(batches, 1, small, dataset, first=30, seed=seed)
    wide = found.images.repeat(shape[1] // 4, axis=-2).repeat(shape[2] // 4, axis=-1)
    return replace(found, images=wide)


class Panels(Files):
    """Writes a target set, reconstructions and scores for each panel of a figure."""

    def __init__(self, folder):
        super().__init__(folder)
        self.words, self.rng = [], np.random.default_rng(0)

    def add(self, target, noise, *, keep=False, status="failed", **words):
        """A panel whose answers are the originals with `noise`, one level for all or one each.

        None is a run that failed; with `keep` the file has an image of it all the same.
        """
        count = len(target.images)
        levels = noise if isinstance(noise, list) else [noise] * count
        images = np.full((1, count, 1, 1, *target.shape), np.nan)
        runs, scores = [], []
        for batch, level in enumerate(levels):
            original, failed = target.inputs(batch)[0], level is None
            found = original + (level or 0.0) * self.rng.standard_normal(original.shape)
            values = dict.fromkeys(("mse", "psnr", "ssim"))
            if keep or not failed:
                images[0, batch, 0, 0] = found
            if not failed:
                values = {"mse": mse(original, found), "psnr": psnr(original, found)}
                values |= {"ssim": ssim(original, np.clip(found, 0, 1)), "lpips_alex": 0.5}
            runs.append(run(words["model"], batch, *(REASON, status) * failed))
            scores += rows(runs[-1], int(target.indices[batch, 0]), values)
        attack = words.get("attack", "")
        self.save({words["model"]: images}, runs, [{**r, "attack": attack} for r in scores], target)
        self.words.append({"title": "", "experiment": "e", "defence": "none", **words})


LINES = [("DLG", name) for name in ("True", "w/o KL", "w/ BN", "w/ KL")]
LINES += [("IG", name) for name in ("True", "w/o KL", "w/ KL")]
ROWS = [{"name": name, "group": group, "original": name == "True"} for group, name in LINES]
NETWORKS = (("MNIST", "LeNet"), ("C-10", "LeNet"), ("C-10", "ResNet-18"))
COLUMNS4 = [{"name": name, "group": group} for name, group in NETWORKS]
SETS = [originals("digits", (1, 16, 16)), originals(), originals(batches=3)]
PHOTOS = originals("photos224", (3, 64, 64), 3)
NOISE = {1: 0.01, 2: 0.3, 3: None, 5: 0.1, 6: 0.4}


def table4(folder):
    """Failed runs with and without an image; DLG with a norm on LeNet alone."""
    made = Panels(folder)
    for (column, target), (row, noise) in product(enumerate(SETS), NOISE.items()):
        if (column, row) != (2, 2):
            made.add(target, noise, keep=column == 1, model="net", row=row, column=column)
    words = {"title": "Grid", "note": "A note.", "rows": ROWS, "columns": COLUMNS4}
    return made.files, {**words, "panels": made.words}


def table5(folder, noise=(0.3, None, 0.4)):
    """A row for each of three images; the second was not run with the lock."""
    made = Panels(folder)
    made.add(PHOTOS, 0.1, model="plain", column=1)
    made.add(PHOTOS, [*noise], status="not_applicable", model="locked", column=2)
    columns = [{"name": "True", "original": True}, {"name": "w/o KL"}, {"name": "w/ KL"}]
    words = {"title": "By image", "note": "A note.", "columns": columns, "panels": made.words}
    return made.files, words


def seen(target, image=0):
    """An original as a figure shows it."""
    return target.images[image, 0].transpose(1, 2, 0) / 255.0


def test_each_answer_lands_in_its_cell(tmp_path):
    figure = grids.make(*table4(tmp_path), "smoke")
    frames = [axes for axes in figure.axes if axes.get_aspect() == 1 or axes.texts]
    assert len(frames) == len(ROWS) * len(COLUMNS4)
    for place, axes in enumerate(frames):
        row, column = divmod(place, len(COLUMNS4))
        original, said = seen(SETS[column]), [text.get_text() for text in axes.texts]
        shown = [np.asarray(image.get_array()).reshape(original.shape) for image in axes.images]
        if ROWS[row]["original"]:
            np.testing.assert_allclose(shown[0], original)
            assert said == ["class 0"]
        elif NOISE[row] is None:
            assert {"failed", "×"} <= set(said)
            # The picture of a failed run is shown where there is one.
            assert bool(shown) == (column == 1)
            assert shown or any(REASON.startswith(words.split()[0]) for words in said)
        elif (row, column) == (2, 2):
            assert said == ["–"] and not shown
        else:
            assert float(np.std(shown[0] - original)) == pytest.approx(NOISE[row], rel=0.5)
            level = float(said[0].removesuffix(" dB").replace("−", "-"))
            assert level == pytest.approx(-20 * np.log10(NOISE[row]), abs=0.6)
            assert said[1].startswith("SSIM ")
    found, joined = texts(figure), flat(figure)
    assert found.count("here digits") == 1 and found.count("here photos10") == 2
    assert found.count("LeNet") == 1 and found.count("DLG") == 1
    assert "digits test image 30 (for MNIST); photos10 test image 30 (for CIFAR-10)" in joined
    assert "–: not among the experiments" in joined


def test_rows_and_columns_without_panels_are_left_out(tmp_path):
    files, words = table4(tmp_path)
    kept = [k for k, panel in enumerate(words["panels"]) if panel["row"] < 4 and panel["column"]]
    files = {name: [paths[k] for k in kept] for name, paths in files.items()}
    words = {**words, "panels": [words["panels"][k] for k in kept]}
    found = texts(grids.make(files, words, "smoke"))
    assert "MNIST" not in found and "IG" not in found and found.count("True") == 1
    assert found.count("w/ KL") == 1 and found.count("ResNet-18") == 1


def test_each_image_has_a_row(tmp_path):
    figure = grids.make(*table5(tmp_path), "smoke")
    found, shown = texts(figure), pictures(figure)
    assert [word for word in found if word.startswith("class")] == ["class 0", "class 1", "class 2"]
    assert found.count("not applicable") == 1
    assert len(shown) == 3 + 3 + 2
    for row, place in enumerate((0, 3, 5)):
        np.testing.assert_allclose(shown[place], seen(PHOTOS, row))
    assert "photos224 test images 30 to 32 (for ImageNet)" in flat(figure)
    fewer = grids.make(*table5(tmp_path / "fewer", [0.1]), "smoke")
    assert texts(fewer).count("not run") == 2


def test_each_group_of_columns_has_originals_of_its_own(tmp_path):
    made, sets = Panels(tmp_path), [originals("photos224", (3, 64, 64)), SETS[2]]
    for group, target in enumerate(sets):
        made.add(target, 0.1, model="plain", column=2 * group + 1)
    lines = product(("one", "other"), ("True", "w/o KL"))
    columns = [{"name": n, "original": n == "True", "group": group} for group, n in lines]
    words = {"title": "By image", "columns": columns, "panels": made.words}
    figure = grids.make(made.files, words, "smoke")
    shown = pictures(figure)
    # As many rows as both have images.
    assert len(shown) == 2 * 4
    for row, (group, target) in product(range(2), enumerate(sets)):
        np.testing.assert_allclose(shown[4 * row + 2 * group], seen(target, row))
    assert "class 0 / class 0" in flat(figure)


def test_panels_of_another_image_are_refused(tmp_path):
    files, words = table4(tmp_path)
    files["targets"][1] = files["targets"][5]
    with pytest.raises(ArtifactError, match=r"is of another image .* same targets in config"):
        grids.make(files, words, "smoke")


# --- Attackers who know something of a lock ------------------------------------------------------

CASES = {"no lock": "no\nlock", "guess": "guess", "fit": "fit", "both": "both"}
KNOWN = {
    "no lock": [0.01, 0.02, 0.01],
    "guess": [None, 0.5, 0.4],
    "fit": [0.1, 0.2, 0.1],
    "both": [0.05, 1e-7, None],
}
TARGETS = {"MNIST": originals("digits", (1, 16, 16), 3), "CIFAR-10": originals(batches=3)}
# Noise on each of four images by case; None is a failed run.
FOUR = {
    "no lock": [0.01, 0.02, 0.03, None],
    "guess": [0.3, None, None, None],
    "fit": [0.02, 0.04, 0.06, 0.1],
}
RUN = {"images": "embedded", "scale": "smoke"}


def words_of(method, case, dataset="MNIST"):
    return {"network": "LeNet", "dataset": dataset, "method": method, "case": case}


def known(folder):
    """LeNet on two data sets; GRNN does not fit, and fails without a key."""
    made = Panels(folder)
    for dataset, method, case in product(TARGETS, ("DLG", "GRNN"), KNOWN):
        if (method, case) != ("GRNN", "fit"):
            noise = None if (method, case) == ("GRNN", "guess") else KNOWN[case]
            words = words_of(method, case, dataset)
            made.add(TARGETS[dataset], noise, model="net", attack=method, **words)
    words = {"title": "Adaptive", "note": "A note.", "cases": CASES, "panels": made.words}
    return made.files, words


def frames(figure):
    """Axes with points by (line, attack)."""
    drawn = [axes for axes in figure.axes if axes.get_ylim() != (0, 1) and not axes.images]
    drawn = [axes for axes in drawn if len(axes.get_yticks())]
    return {divmod(place, 2): axes for place, axes in enumerate(drawn)}


def test_points_and_medians_are_those_of_the_scores(tmp_path):
    files, words = known(tmp_path)
    drawn = frames(adaptive.make(files, words, "smoke"))
    assert len(drawn) == 4
    found = make(files, {**words, "base": "no lock"}, RUN).set_index(
        ["column", "dataset", "metric"]
    )
    for panel, path in zip(words["panels"], files["scores"], strict=True):
        method, case, dataset = (panel[key] for key in ("method", "case", "dataset"))
        axes = drawn[list(TARGETS).index(dataset), ["DLG", "GRNN"].index(method)]
        # GRNN, which does not fit, has no place for that.
        x = [c for c in CASES if c != "fit" or method == "DLG"].index(case)
        values = runs(path, "net")["psnr"].dropna().clip(*adaptive.SPAN)
        points = [p for p in axes.lines if p.get_linestyle() == "None" and len(p.get_xdata())]
        here = [p for p in points if round(float(np.mean(p.get_xdata()))) == x]
        if values.empty:
            assert not here
            continue
        np.testing.assert_allclose(here[0].get_ydata(), values)
        said = {text.get_text(): text.get_position()[0] for text in axes.texts}
        middle = found.loc[(f"{method}: {case}", dataset, "psnr_median"), "ours"]
        assert said[f"{middle:.1f}"] == x


def test_failed_runs_and_missing_cases_are_marked(tmp_path):
    files, words = known(tmp_path)
    # One data set lacks what is tried on the other.
    words["panels"].pop()
    figure = adaptive.make({name: some[:-1] for name, some in files.items()}, words, "smoke")
    drawn, found = frames(figure), flat(figure)
    dlg, grnn, less = (
        [text.get_text() for text in drawn[at].texts] for at in ((0, 0), (0, 1), (1, 1))
    )
    assert less.count("–") == 1
    assert dlg.count("× 1") == 2 and dlg.count("n 3") == 4 and "–" not in dlg
    assert "× 3" in grnn and "failed" in grnn and "–" not in grnn
    for fact in (
        "digits test images 30 to 32 (for MNIST); photos10 test images 30 to 32 (for CIFAR-10)",
        "–: not among the experiments",
        "×: failed runs",
        "Values beyond −10 and 80 dB are drawn there",
    ):
        assert fact in found


def test_pictures_are_of_the_attack_with_most_cases(tmp_path):
    figure = adaptive.make(*known(tmp_path), "smoke")
    # The original, then all but the case that failed.
    spreads = [
        np.std(shown.reshape(16, 16) - seen(TARGETS["MNIST"])[..., 0]) for shown in pictures(figure)
    ]
    np.testing.assert_allclose(spreads, [0, 0.01, 0.1, 0.05], rtol=0.3)
    found = texts(figure)
    assert "Example:\nDLG on\nLeNet,\nMNIST" in found and "original" in found
    assert any(REASON.startswith(words.split("\n")[0]) for words in found if words)


def test_of_attacks_with_as_many_cases_the_one_that_works_is_pictured(tmp_path):
    made = Panels(tmp_path)
    for method, case in product(("DLG", "IG"), ("no lock", "guess")):
        noise = 0.1 if method == "IG" else None
        made.add(TARGETS["MNIST"], noise, model="net", attack=method, **words_of(method, case))
    words = {"title": "Adaptive", "cases": CASES, "panels": made.words}
    assert "Example:\nIG on\nLeNet,\nMNIST" in texts(adaptive.make(made.files, words, "smoke"))


# --- Their table ---------------------------------------------------------------------------------


def table(panels, scores):
    return make({"scores": scores}, {"panels": panels, "base": "no lock"}, RUN)


@pytest.fixture
def written(tmp_path):
    """Panels and files of scores; the second attack was not run without a lock."""
    made, target = Panels(tmp_path), originals(batches=4)
    for method, case in product(("DLG", "IG"), FOUR):
        if (method, case) != ("IG", "no lock"):
            model = "plain" if case == "no lock" else "locked"
            words = {"model": model, "attack": method.lower(), **words_of(method, case)}
            made.add(target, FOUR[case], **words)
    return made.words, made.files["scores"]


def cell(found, column):
    return found[found["column"] == column].set_index("metric")


def test_a_cell_has_mean_median_spread_and_counts(written):
    panels, scores = written
    found = table(panels, scores)
    assert list(found.columns) == COLUMNS
    assert set(found["images"]) == {"embedded"} and set(found["scale"]) == {"smoke"}
    own, values = cell(found, "DLG: fit"), runs(scores[2], "locked")["mse"]
    stated = own.loc[["mse", "mse_median", "mse_sd"], "ours"]
    assert list(stated) == pytest.approx([values.mean(), values.median(), values.std()])
    assert own.loc["mse", "low"] < values.mean() < own.loc["mse", "high"]
    assert own.loc["psnr", "ours"] > 20 and own.loc["lpips_alex", "ours"] == 0.5
    assert own.loc["mse", "n_ok"] == 4
    same = {"n": 4, "row": "LeNet, MNIST", "attack": "dlg", "model": "locked", "result": "e"}
    assert all((own[key] == value).all() for key, value in same.items())


def test_failed_runs_are_counted_and_count_as_worst(tmp_path, written):
    panels, scores = written
    found = table(panels, scores)
    base, guess = cell(found, "DLG: no lock"), cell(found, "DLG: guess")
    assert base.loc["mse", "n_ok"] == 3 and np.isnan(base.loc["mse", "ours"])
    assert "since runs failed" in base.loc["mse", "note"]
    # The median lies between the second and the third of four, of which the last failed.
    assert base.loc["psnr_median", "ours"] == pytest.approx(-20 * np.log10(0.025), abs=0.7)
    assert guess.loc["mse", "n_ok"] == 1
    assert guess.loc[["mse_median", "mse_sd"], "ours"].isna().all()
    # A cell of nothing but failures stays.
    made = Panels(tmp_path / "failed")
    made.add(originals(batches=4), None, **panels[1])
    scores[1] = made.files["scores"][0]
    guess = cell(table(panels, scores), "DLG: guess")
    assert {"mse", "psnr_median", "ssim_sd", "mse_ratio"} <= set(guess.index)
    assert guess["ours"].isna().all() and guess["n"].eq(4).all() and guess["n_ok"].eq(0).all()


def test_cases_are_compared_on_the_same_runs(written):
    panels, scores = written
    found = table(panels, scores)
    fit = cell(found, "DLG: fit")
    medians = [cell(found, f"DLG: {case}").loc["mse_median", "ours"] for case in ("fit", "no lock")]
    assert fit.loc["mse_ratio", "ours"] == pytest.approx(medians[0] / medians[1])
    assert fit.loc["mse_ratio", "n"] == 4 and fit.loc["mse_ratio", "n_ok"] == 3
    assert fit.loc["psnr_change", "ours"] == pytest.approx(-6, abs=1)
    assert "mse_ratio" not in cell(found, "DLG: no lock").index
    # Without the case that others are compared with there is nothing to compare.
    assert "mse_ratio" not in cell(found, "IG: fit").index
    # An attack on fewer images is compared on these alone.
    rows = pd.read_csv(scores[2], keep_default_na=False)
    write_csv(scores[2], rows[rows["batch"] < 2])
    fewer = cell(table(panels, scores), "DLG: fit")
    assert fewer.loc["mse", "n"] == 2 and fewer.loc["mse_ratio", "n"] == 2
    assert fewer.loc["mse_ratio", "ours"] == pytest.approx(4, rel=0.4)


def test_a_metric_that_was_not_computed_has_no_row_and_another_network_is_refused(written):
    panels, scores = written
    for path in scores:
        rows = pd.read_csv(path, keep_default_na=False)
        write_csv(path, rows[rows["metric"] != "lpips_alex"])
    assert not table(panels, scores)["metric"].str.contains("lpips").any()
    panels[0]["model"] = "another"
    with pytest.raises(ArtifactError, match="has no rows of another; delete it"):
        table(panels, scores)


def test_images_of_one_colour_are_held_against_all_images(tmp_path):
    colours = np.array([[51, 204, 0], [102, 255, 0]], dtype=np.uint8)
    images = np.broadcast_to(colours[:, None, :, None, None], (2, 1, 3, 8, 8))
    path = str(tmp_path / "set.safetensors")
    targets.save(path, replace(target_set(), images=np.ascontiguousarray(images), offset=-0.5), {})
    found = constants.make({"sets": [path]}, {"sets": ["two"]}, {})
    assert list(found.columns) == constants.COLUMNS
    assert set(found["targets"]) == {"two"} and set(found["images"]) == {2}
    rmse = found[found["metric"] == "rmse_255"].set_index("answer")
    each = np.sqrt((colours.astype(float) ** 2).sum(axis=1) / 3)
    assert list(rmse.loc["black", ["mean", "best"]]) == pytest.approx([each.mean(), each.min()])
    assert rmse.loc["mean colour", "mean"] == pytest.approx(25.5 * np.sqrt(2 / 3))
    assert rmse["mean"].idxmin() == rmse["best"].idxmin() == "mean colour"
    peaks = found[found["metric"] == "psnr"].set_index("answer")
    assert peaks.loc["black", "best"] == pytest.approx(20 * np.log10(255 / each.min()))
