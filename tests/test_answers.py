"""Several answers a run, batches, twins and attacks that are made of others: files and scores."""

import numpy as np
import pandas as pd
import pytest

from chains import CASE, TARGETS, captured, conv, dataset, models, saved, shared
from gradleak.attacks import reconstructions, runner
from gradleak.attacks.base import Reconstruction
from gradleak.attacks.optimization import initialization
from gradleak.attacks.postprocess import HybridGap, salt_and_pepper
from gradleak.client.defences import apply
from gradleak.client.defences.base import build as build_defence
from gradleak.data import targets
from gradleak.errors import NumericsError
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.losses import MarginLoss
from gradleak.models.numpy_autodiff import forward, weight_gradients
from gradleak.runtime.artifacts import read_tensors
from gradleak.scoring import scores
from gradleak.scoring.metrics.image import combination

LAYERS = conv(4, 3, activation="leaky_relu", slope=0.2), LinearSpec(1, False, gain=40.0)
NETWORK = Chain("net", (1, 8, 8), LAYERS)
MODELS = models(NETWORK)
WEIGHTS = MODELS.of(NETWORK, 0)


def target_set(count, batch=1, first=0):
    settings = {**TARGETS, "batch": batch, "first": first}
    return targets.build(dataset(12, 1, 8, 8), settings, count, batch)


def cell(folder, chosen, labels="opposite", granted=True, defence=None):
    """Write model and gradient files for a target set; give their paths."""
    more = {"loss": "logistic", "labels": labels, "granted": granted}
    tensors, metadata = captured(MODELS, chosen, **more)
    if defence is not None:
        apply.defend_all(MODELS, chosen, tensors, metadata, defence)
    return saved(folder, MODELS, tensors, metadata)


def answered(tmp_path, answers, name="r"):
    """Reconstruction file of what a run answered, image after image."""
    out = runner.Results({}, [], [])
    for batch, answer in enumerate(answers):
        view = type("View", (), {"chain": NETWORK})()
        out.add((view, 0, batch), answer, (1, len(answers)), 0.5)
    path = str(tmp_path / f"{name}.safetensors")
    out.save(path, str(tmp_path / f"{name}.json"), {})
    return path


def table(path, chosen, labels="opposite"):
    """Scores by metric."""
    rows = scores.score(path, chosen, MODELS, CASE, {"loss": "logistic", "labels": labels})
    return pd.DataFrame(rows, columns=scores.COLUMNS).set_index("metric")


@pytest.mark.parametrize("labels", ["opposite", "same"])
def test_labels_go_with_or_against_the_network(tmp_path, labels):
    chosen = target_set(3)
    views = [view for view, _, _ in runner.Views(*cell(tmp_path, chosen, labels))]
    assert len(views) == 3
    for batch, view in enumerate(views):
        output = forward(NETWORK, WEIGHTS, chosen.inputs(batch)[0])[0]
        assert view.label * np.sign(output) == (1 if labels == "same" else -1)
        assert (view.loss, view.batch, view.low, view.high) == ("logistic", 1, 0.0, 1.0)
        assert set(view.gradients) == {"conv1.weight", "fc1.weight"}
        # R-GAP eq. (9) and (11): the last layer gives the product of mu and the loss's derivative.
        product = float(np.sum(view.gradients["fc1.weight"] * view.weights["fc1.weight"]))
        expected = float(MarginLoss("logistic").product(view.label * output))
        assert product == pytest.approx(expected, rel=1e-6)


def test_a_batch_shares_the_mean_gradient(tmp_path):
    both, alone = (
        read_tensors(cell(tmp_path, chosen)[1])[0] for chosen in (target_set(1, 2), target_set(2))
    )
    assert both["net/label"].shape == (1, 1, 2)
    mean = alone["net/conv1.weight"][0].mean(axis=0)
    np.testing.assert_allclose(both["net/conv1.weight"][0, 0], mean, rtol=1e-9)


def test_a_defence_changes_what_is_shared(tmp_path):
    defence = build_defence({"method": "gaussian_noise", "level": 0.5, "relative": True})
    plain, noisy = (
        read_tensors(cell(tmp_path, target_set(2), defence=each)[1])[0]["net/conv1.weight"][0]
        for each in (None, defence)
    )
    noise = noisy - plain
    assert np.abs(noise).min() > 0
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.5


def test_every_answer_has_its_rows(tmp_path):
    chosen = target_set(2)
    first = chosen.inputs(0)
    other = Reconstruction(first + 0.1, "done", kind="start 0", loss=2.0, evaluations=9)
    failed = Reconstruction(first, "diverged", kind="start 1", failure="The search diverged.")
    best = Reconstruction(first, "done", loss=1.0, evaluations=7, label=1, others=(other, failed))
    path = answered(tmp_path, [best, runner.NotAttacked("not_applicable", "No way.")])
    found = table(path, chosen)
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


def test_images_of_a_batch_are_matched(tmp_path):
    chosen = target_set(1, batch=3)
    shuffled = Reconstruction(chosen.inputs(0)[[2, 0, 1]] + 0.1, "done")
    found = table(answered(tmp_path, [shuffled]), chosen)
    assert found.loc["mse", "index"].to_list() == [0, 1, 2]
    np.testing.assert_allclose(found.loc["mse"].value, 0.01)
    assert "r2" not in found.index


def test_one_image_for_a_batch_is_a_combination(tmp_path):
    chosen = target_set(1, batch=2)
    originals = chosen.inputs(0)
    mixed = Reconstruction((0.7 * originals[0] + 0.2 * originals[1])[None], "closed form")
    found = table(answered(tmp_path, [mixed]), chosen)
    np.testing.assert_allclose(found.loc["coefficient"].value, [0.7, 0.2])
    assert found.loc[["r2"]].value.to_list() == [pytest.approx(1.0)]
    weights, explained = combination(originals, np.random.default_rng(9).normal(size=(1, 8, 8)))
    assert explained < 0.3 and np.abs(weights).max() < 1


def with_twin(chosen):
    """The first image with its margin, its twin and the twin's margin."""
    loss, original = MarginLoss("logistic"), chosen.inputs(0)
    mu = abs(float(forward(NETWORK, WEIGHTS, original[0])[0]))
    twin = next(m for m in loss.margins(float(loss.product(mu))) if abs(m - mu) > 1e-6)
    return original, mu, original * twin / mu, twin


def test_twins_are_told_from_the_image(tmp_path):
    chosen = target_set(1)
    _, mu, other, twin = with_twin(chosen)
    path = answered(tmp_path, [Reconstruction(other, "closed form")])
    found = table(path, chosen, "same").value
    assert found[["mu", "twin_scale"]].to_list() == pytest.approx([mu, twin / mu])
    largest = {"mse_twin": 1e-15, "twin_error": 1e-7, "gradient_mismatch": 1e-12}
    assert all(found[metric] < value for metric, value in largest.items())
    assert found["mse"] > 1e-4
    # Against the network's sign mu < 0, which has no twin.
    found = table(path, chosen).value
    assert found["mu"] == pytest.approx(-mu)
    assert "mse_twin" not in found


def test_weight_gradients_are_those_of_pytorch_and_of_the_twin(tmp_path):
    """R-GAP appendix B: at the twin every layer's gradient is that of the image."""
    chosen = target_set(1)
    image, _, twin, _ = with_twin(chosen)
    (view, _, _), *_ = runner.Views(*cell(tmp_path, chosen, "same"))
    found = weight_gradients(NETWORK, WEIGHTS, image[0], view.label, "logistic")
    other = shared(NETWORK, WEIGHTS, twin, [view.label], loss="logistic")
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
    one = answered(tmp_path, [good, bad, failure], "one")
    two = answered(tmp_path, [bad, failure, other], "two")
    # A swap of the files changes nothing but a tie.
    for paths, broke in (([one, two], "It broke."), ([two, one], "It broke too.")):
        found = HybridGap(of=["one", "other"]).make(paths)
        np.testing.assert_array_equal(found.images["net/images"][0, :2, 0], [smooth, noisy])
        assert [r["status"] for r in found.runs] == ["ok", "ok", "failed"]
        assert found.runs[2]["reason"] == broke


def test_starts_from_another_attack(tmp_path):
    chosen = target_set(2)
    twin = Reconstruction(chosen.inputs(0) * 0.1, "closed form", kind="twin")
    best = Reconstruction(chosen.inputs(0), "closed form", others=(twin,))
    path = answered(tmp_path, [best, runner.NotAttacked("failed", "It broke.")])
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


def attacked(folder, count, method, starts=None, granted=True, **settings):
    """Results, and the status and reason of each run."""
    paths = cell(folder, target_set(count), granted=granted)
    settings = {"method": method, "iterations": 3, **settings}
    found = runner.attack_all(*paths, settings, starts=starts)
    return found, *zip(*((run["status"], run["reason"]) for run in found.runs), strict=True)


def test_a_search_without_a_start_is_a_failed_run(tmp_path):
    """A run whose first attack failed stays as a row, and the others are attacked."""
    settings = {"start": "reconstruction", "of": "rgap"}
    # Gauss-Newton needs no start.
    _, status, _ = attacked(tmp_path, 2, "gauss_newton", Half(), **settings)
    assert status == ("ok", "ok")
    settings |= {"answer": "answer", "images": None}
    _, status, reason = attacked(tmp_path, 2, "dlg", Half(), **settings)
    assert status == ("failed", "ok") and "starts from gave no image" in reason[0]
    # Starts of the class, which was not granted.
    own = initialization.OfOneClass(target_set(6, first=6))
    settings = {"label": "unknown", "start": "class", "own_images": "own"}
    _, status, reasons = attacked(tmp_path, 2, "dlg", own, granted=False, **settings)
    assert status == ("failed", "failed")
    assert all("label: granted" in reason for reason in reasons)


def test_an_attack_on_fewer_images_leaves_the_others_out(tmp_path):
    found, *_ = attacked(tmp_path, 3, "dlg", images=2)
    assert {r["batch"] for r in found.runs} == {0, 1}
    assert found.images["net/images"].shape[:2] == (1, 2)
