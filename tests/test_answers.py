"""Several answers a run, batches, twins and attacks that are made of others: files and scores."""

import numpy as np
import pandas as pd
import pytest

from chains import TARGETS, captured, conv, shared
from gradleak.attacks import reconstructions, runner
from gradleak.attacks.base import Reconstruction
from gradleak.attacks.optimization import initialization
from gradleak.attacks.postprocess import HybridGap, salt_and_pepper
from gradleak.client.defences import apply
from gradleak.client.defences.base import build as build_defence
from gradleak.data import targets
from gradleak.data.arrays import Dataset
from gradleak.errors import NumericsError
from gradleak.models import files
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import family_weights
from gradleak.models.losses import MarginLoss
from gradleak.models.numpy_autodiff import forward, weight_gradients
from gradleak.runtime.artifacts import read_tensors, write_tensors
from gradleak.scoring import scores
from gradleak.scoring.metrics.image import combination

LAYERS = conv(4, 3, activation="leaky_relu", slope=0.2), LinearSpec(1, False, gain=40.0)
NETWORK = Chain("net", (1, 8, 8), LAYERS)
CASE = dict.fromkeys(
    ("paper", "result", "attack", "defence", "images", "targets", "precision", "mode", "training"),
    "x",
)


def target_set(count, batch=1, first=0):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(12) % 3
    data = Dataset(pixels, labels, ["ant", "bee", "cow"], "tiny", "train", "by hand", "0" * 64)
    return targets.build(data, {**TARGETS, "batch": batch, "first": first}, count, batch)


@pytest.fixture
def cell(tmp_path):
    """Write model and gradient files for a target set; give their paths."""

    def make(chosen, labels="opposite", granted=True, defence=None):
        paths = {name: str(tmp_path / f"{name}.safetensors") for name in ("model", "gradient")}
        files.save(paths["model"], [NETWORK], family_weights([NETWORK], 1), {})
        models, more = files.read(paths["model"]), {"loss": "logistic", "labels": labels}
        tensors, metadata = captured(models, chosen, granted=granted, **more)
        if defence is not None:
            apply.defend_all(models, chosen, tensors, metadata, defence)
        write_tensors(paths["gradient"], tensors, metadata)
        return paths

    return make


def saved(tmp_path, answers, name="r"):
    """Reconstruction file of what a run answered, image after image."""
    out = runner.Results({}, [], [])
    for batch, answer in enumerate(answers):
        view = type("View", (), {"chain": NETWORK})()
        out.add((view, 0, batch), answer, (1, len(answers)), 0.5)
    path = str(tmp_path / f"{name}.safetensors")
    out.save(path, str(tmp_path / f"{name}.json"), {})
    return path


def table(path, chosen, cell_paths, labels="opposite"):
    """Scores by metric."""
    task = {"loss": "logistic", "labels": labels}
    rows = scores.score(path, chosen, files.read(cell_paths["model"]), CASE, task)
    return pd.DataFrame(rows, columns=scores.COLUMNS).set_index("metric")


@pytest.mark.parametrize("labels", ["opposite", "same"])
def test_labels_go_with_or_against_the_network(cell, labels):
    chosen = target_set(3)
    paths = cell(chosen, labels)
    models = files.read(paths["model"])
    views = [view for view, _, _ in runner.Views(paths["model"], paths["gradient"])]
    assert len(views) == 3
    for batch, view in enumerate(views):
        output = forward(NETWORK, models.of(NETWORK, 0), chosen.inputs(batch)[0])[0]
        assert view.label * np.sign(output) == (1 if labels == "same" else -1)
        assert (view.loss, view.batch, view.low, view.high) == ("logistic", 1, 0.0, 1.0)
        assert set(view.gradients) == {"conv1.weight", "fc1.weight"}
        # R-GAP eq. (9) and (11): the last layer gives the product of mu and the loss's derivative.
        product = float(np.sum(view.gradients["fc1.weight"] * view.weights["fc1.weight"]))
        expected = float(MarginLoss("logistic").product(view.label * output))
        assert product == pytest.approx(expected, rel=1e-6)


def test_a_batch_shares_the_mean_gradient(cell):
    both, alone = (
        read_tensors(cell(chosen)["gradient"])[0] for chosen in (target_set(1, 2), target_set(2))
    )
    assert both["net/label"].shape == (1, 1, 2)
    mean = alone["net/conv1.weight"][0].mean(axis=0)
    np.testing.assert_allclose(both["net/conv1.weight"][0, 0], mean, rtol=1e-9)


def test_a_label_that_is_not_granted_is_not_in_the_file(cell):
    paths = cell(target_set(1), granted=False)
    assert set(read_tensors(paths["gradient"])[0]) == {"net/conv1.weight", "net/fc1.weight"}
    (view, _, _), *_ = runner.Views(paths["model"], paths["gradient"])
    assert view.labels is None


def test_a_defence_changes_what_is_shared(cell):
    defence = build_defence({"method": "gaussian_noise", "level": 0.5, "relative": True})
    plain, noisy = (
        read_tensors(cell(target_set(2), defence=each)["gradient"])[0]["net/conv1.weight"][0]
        for each in (None, defence)
    )
    noise = noisy - plain
    assert np.abs(noise).min() > 0
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.5


def test_every_answer_has_its_rows(cell, tmp_path):
    chosen = target_set(2)
    first = chosen.inputs(0)
    other = Reconstruction(first + 0.1, "done", kind="start 0", loss=2.0, evaluations=9)
    failed = Reconstruction(first, "diverged", kind="start 1", failure="The search diverged.")
    best = Reconstruction(first, "done", loss=1.0, evaluations=7, label=1, others=(other, failed))
    path = saved(tmp_path, [best, runner.NotAttacked("not_applicable", "No way.")])
    found = table(path, chosen, cell(chosen))
    mse = found.loc["mse"]
    assert mse.answer.to_list() == [0, 1, 2, 0]
    assert mse.kind.to_list() == ["answer", "start 0", "start 1", "answer"]
    assert mse.status.to_list() == ["ok", "ok", "failed", "not_applicable"]
    assert mse.value.to_list() == pytest.approx([0.0, 0.01, np.nan, np.nan], nan_ok=True)
    assert mse.reason.to_list()[2:] == ["The search diverged.", "No way."]
    assert found.loc["evaluations"].value.to_list() == [7, 9]
    images, _ = reconstructions.read(path)
    assert images["net/images"].shape == (1, 2, 3, 1, 1, 8, 8)
    np.testing.assert_array_equal(images["net/images"][0, 0, 0, 0], first[0])


def test_images_of_a_batch_are_matched(cell, tmp_path):
    chosen = target_set(1, batch=3)
    originals = chosen.inputs(0)
    path = saved(tmp_path, [Reconstruction(originals[[2, 0, 1]] + 0.1, "done")])
    found = table(path, chosen, cell(chosen))
    assert found.loc["mse", "index"].to_list() == [0, 1, 2]
    np.testing.assert_allclose(found.loc["mse"].value, 0.01)
    assert "r2" not in found.index


def test_one_image_for_a_batch_is_a_combination(cell, tmp_path):
    chosen = target_set(1, batch=2)
    originals = chosen.inputs(0)
    mixed = (0.7 * originals[0] + 0.2 * originals[1])[None]
    path = saved(tmp_path, [Reconstruction(mixed, "closed form")])
    found = table(path, chosen, cell(chosen))
    np.testing.assert_allclose(found.loc["coefficient"].value, [0.7, 0.2])
    assert found.loc[["r2"]].value.to_list() == [pytest.approx(1.0)]
    weights, explained = combination(originals, np.random.default_rng(9).normal(size=(1, 8, 8)))
    assert explained < 0.3
    assert np.abs(weights).max() < 1


def twin_of(mu):
    loss = MarginLoss("logistic")
    return next(m for m in loss.margins(float(loss.product(mu))) if abs(m - mu) > 1e-6)


def test_twins_are_told_from_the_image(cell, tmp_path):
    chosen = target_set(1)
    paths = cell(chosen, "same")
    models, original = files.read(paths["model"]), chosen.inputs(0)
    mu = abs(float(forward(NETWORK, models.of(NETWORK, 0), original[0])[0]))
    twin = twin_of(mu)
    path = saved(tmp_path, [Reconstruction(original * twin / mu, "closed form")])
    found = table(path, chosen, paths, "same").value
    assert found[["mu", "twin_scale"]].to_list() == pytest.approx([mu, twin / mu])
    largest = {"mse_twin": 1e-15, "twin_error": 1e-7, "gradient_mismatch": 1e-12}
    assert all(found[metric] < value for metric, value in largest.items())
    assert found["mse"] > 1e-4
    # Against the network's sign mu < 0, which has no twin.
    found = table(path, chosen, paths).value
    assert found["mu"] == pytest.approx(-mu)
    assert "mse_twin" not in found


def test_weight_gradients_are_those_of_pytorch_and_of_the_twin(cell):
    """R-GAP appendix B: at the twin every layer's gradient is that of the image."""
    chosen = target_set(1)
    paths = cell(chosen, "same")
    weights, image = files.read(paths["model"]).of(NETWORK, 0), chosen.inputs(0)[0]
    mu = abs(float(forward(NETWORK, weights, image)[0]))
    (view, _, _), *_ = runner.Views(paths["model"], paths["gradient"])
    found = weight_gradients(NETWORK, weights, image, view.label, "logistic")
    twin, label = image * twin_of(mu) / mu, np.array([view.label])
    other = shared(NETWORK, weights, twin[None], label, loss="logistic")
    for layer, value in found.items():
        expected = view.gradients[f"{layer}.weight"]
        np.testing.assert_allclose(value, expected.ravel(), atol=1e-12)
        slack = 1e-12 * np.abs(expected).max()
        np.testing.assert_allclose(other[f"{layer}.weight"], expected, rtol=1e-8, atol=slack)


def test_the_hybrid_takes_the_answer_with_less_noise(tmp_path):
    smooth, noisy = np.full((1, 1, 8, 8), 0.4), target_set(3).inputs(0)
    assert salt_and_pepper(smooth) < 1e-12 < salt_and_pepper(noisy)
    failure, other = (runner.NotAttacked("failed", f"It broke{more}.") for more in ("", " too"))
    good, bad = Reconstruction(smooth, "a"), Reconstruction(noisy, "a")
    one = saved(tmp_path, [good, bad, failure], "one")
    two = saved(tmp_path, [bad, failure, other], "two")
    attack = HybridGap(of=["one", "other"])
    found = attack.make([one, two])
    images = found.images["net/images"][0, :, 0]
    np.testing.assert_array_equal(images[:2], [smooth, noisy])
    assert [r["status"] for r in found.runs] == ["ok", "ok", "failed"]
    assert found.runs[2]["reason"] == "It broke."
    # A swap of the files changes nothing but a tie.
    swapped = attack.make([two, one]).images["net/images"][0, :2, 0]
    np.testing.assert_array_equal(swapped, images[:2])


def test_starts_from_another_attack(tmp_path):
    chosen = target_set(2)
    twin = Reconstruction(chosen.inputs(0) * 0.1, "closed form", kind="twin")
    best = Reconstruction(chosen.inputs(0), "closed form", others=(twin,))
    path = saved(tmp_path, [best, runner.NotAttacked("failed", "It broke.")])
    for kind, scale in (("answer", 1.0), ("twin", 0.1)):
        found = initialization.FromReconstruction(path, kind)
        np.testing.assert_array_equal(found.of("net", 0, 0, None), scale * chosen.inputs(0)[None])
        assert np.isnan(found.of("net", 0, 1, None)).all()


def test_starts_of_one_class():
    own = target_set(6, first=6)
    starts = initialization.OfOneClass(own)
    found = starts.of("net", 0, 0, np.array([1]))
    np.testing.assert_array_equal(found, np.stack([own.inputs(i) for i in (1, 4)]))
    for classes, words in ((np.array([7]), "has the class 7"), (None, "label: granted")):
        with pytest.raises(NumericsError, match=words):
            starts.of("net", 0, 0, classes)


class Half:
    """Starts of an attack that failed on the first image."""

    def of(self, chain, seed, batch, classes):
        return np.full((1, 1, *NETWORK.input), np.nan if batch == 0 else 0.5)


def attacked(paths, method, starts=None, **settings):
    settings = {"method": method, "iterations": 3, **settings}
    return runner.attack_all(paths["model"], paths["gradient"], settings, starts=starts)


FROM_ANOTHER = {"start": "reconstruction", "of": "rgap"}


def test_gauss_newton_needs_no_start(cell):
    found = attacked(cell(target_set(2)), "gauss_newton", Half(), **FROM_ANOTHER)
    assert [r["status"] for r in found.runs] == ["ok", "ok"]


def test_a_search_without_a_start_is_a_failed_run(cell):
    """A run whose first attack failed stays as a row, and the others are attacked."""
    settings = {**FROM_ANOTHER, "answer": "answer", "images": None}
    found = attacked(cell(target_set(2)), "dlg", Half(), **settings)
    assert [r["status"] for r in found.runs] == ["failed", "ok"]
    assert "starts from gave no image" in found.runs[0]["reason"]


def test_a_start_that_cannot_be_given_is_a_failed_run(cell):
    """Starts of the class, which was not granted: rows say so, and nothing is raised."""
    own = initialization.OfOneClass(target_set(6, first=6))
    settings = {"label": "unknown", "start": "class", "own_images": "own"}
    found = attacked(cell(target_set(2), granted=False), "dlg", own, **settings)
    assert [r["status"] for r in found.runs] == ["failed", "failed"]
    assert all("label: granted" in r["reason"] for r in found.runs)


def test_an_attack_on_fewer_images_leaves_the_others_out(cell):
    found = attacked(cell(target_set(3)), "dlg", images=2)
    assert {r["batch"] for r in found.runs} == {0, 1}
    assert found.images["net/images"].shape[:2] == (1, 2)
