"""R-GAP's bad input through to the row: saturation, tensors and labels that cannot be used."""

import dataclasses

import numpy as np
import pytest

from chains import chain, conv, convolutional, fully_connected, image, seen, view
from gradleak.attacks.closed_form.rgap import RGap
from gradleak.attacks.runner import attack_all
from gradleak.client.defences.gaussian_noise import GaussianNoise
from gradleak.errors import NumericsError
from gradleak.models import files
from gradleak.models.initial import initial_weights
from gradleak.runtime.artifacts import write_tensors


def rows_of(network, tmp_path, gain=1.0, change=None, settings=None, level=0.0, labels=None):
    """Records of R-GAP on one image, through the files of the pipeline."""
    weights = {k: (gain * v).astype(np.float32) for k, v in initial_weights(network, 0).items()}
    given, target, label = seen(network, weights=weights)
    shared = dict(given.gradients)
    if level:
        shared = GaussianNoise(level=level, relative=True).apply(network, shared, 1)
    shared["label"] = np.array(labels or [label])
    if change is not None:
        change(shared)
    paths = {name: str(tmp_path / f"{name}.safetensors") for name in ("model", "gradient")}
    own = {f"{network.name}/{k}": v[None] for k, v in weights.items()}
    files.save(paths["model"], [network], own, {})
    metadata = {"loss": "logistic", "seeds": 1, "images": 1, "batch": 1, "low": 0.0, "high": 1.0}
    slots = {f"{network.name}/{k}": np.asarray(v)[None, None] for k, v in shared.items()}
    write_tensors(paths["gradient"], slots, metadata)
    found = attack_all(paths["model"], paths["gradient"], {"method": "rgap", **(settings or {})})
    return found.runs, found.images[f"{network.name}/images"], target


@pytest.mark.parametrize("rows", ["plain", "balanced"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_saturated_sigmoid_fails_and_says_where(rows, bias, tmp_path):
    network = convolutional("sigmoid", bias)
    (row,), images, _ = rows_of(network, tmp_path, 40.0, settings={"rows": rows})
    facts = {layer["layer"]: layer for layer in row["layers"]}
    assert row["status"] == "failed" and np.isnan(images).all()
    clipped = facts["fc1"]["clipped"]
    assert clipped > 100 and facts["fc1"]["stop"].endswith(f", {clipped} of 384 values saturated")
    assert f"fc1: {facts['fc1']['stop']}" in row["stop"]
    assert f"conv2: {facts['conv2']['stop']}" in row["stop"]
    assert f"{clipped} of 384 values are saturated in the input of fc1" in row["reason"]
    assert "above failure_residual: 0.25" in row["reason"]
    # Weights that saturate less leave an answer that is as exact as before.
    (row,), images, target = rows_of(network, tmp_path, 5.0, settings={"rows": rows})
    assert row["status"] == "ok" and "saturated" not in row["stop"]
    np.testing.assert_allclose(images[0, 0, 0, 0], target, atol=1e-9)


def test_an_input_that_is_mostly_saturated_or_behind_which_all_is_exact_fails(tmp_path):
    (row,), _, _ = rows_of(convolutional("tanh", True), tmp_path, 40.0)
    assert row["status"] == "failed"
    assert "The input of fc1: 298 of 384 values saturated" in row["reason"]
    assert "'tanh'" in row["reason"]
    layers = [conv(12, 3, activation="sigmoid"), conv(24, 3, activation="leaky_relu", slope=0.2)]
    network = chain(*layers, classes=1, bias=False, last="identity")
    for rows in ("plain", "balanced"):
        (row,), _, _ = rows_of(network, tmp_path, 40.0, settings={"rows": rows})
        assert "of 432 values are saturated in the input of conv2" in row["reason"]
        assert "equations of conv1 contradict each other" in row["reason"]


def test_noise_and_batches_are_no_failures(tmp_path):
    # Noise puts values of conv2's input beyond the Sigmoid's range, and conv1 contradicts itself.
    (row,), _, _ = rows_of(convolutional("sigmoid"), tmp_path, 5.0, level=0.01)
    _, second, first = row["layers"]
    assert second["clipped"] > 0.05 * 432
    assert first["residual"] > RGap().failure_residual
    assert row["status"] == "ok" and f"{second['clipped']} of 432 values saturated" in row["stop"]
    network = fully_connected(60, 20)
    images = np.stack([image(network, k, 0.0) for k in range(5)])
    mixed = view(network, images, [1, -1, 1, -1, 1], loss="logistic", low=0.0)
    found = RGap().run(mixed, 0)
    assert found.layers[-1].residual > RGap().failure_residual and not found.failure


def test_the_rule_counts_saturation_and_contradiction_together():
    network = convolutional("sigmoid")
    given, _, _ = seen(network)
    found = RGap().run(given, 0)

    def verdict(clipped, residual, behind=0.0, free=0, batch=1):
        last, second, first = found.layers
        last = dataclasses.replace(last, clipped=clipped, free=free, residual=behind)
        layers = last, second, dataclasses.replace(first, residual=residual)
        changed = dataclasses.replace(found, layers=layers)
        return RGap().failure(changed, dataclasses.replace(given, batch=batch), {})

    assert "conv1 contradict" in verdict(20, 0.3)
    assert verdict(19, 0.3) == verdict(20, 0.2) == ""
    assert verdict(384, 0.9, behind=0.01) == verdict(384, 0.9, free=1) == ""
    assert verdict(384, 0.9, batch=2) == ""


@pytest.mark.parametrize("name", ["conv1.weight", "conv2.bias", "fc1.weight"])
def test_a_zero_or_missing_tensor_is_refused_by_name(name, tmp_path):
    network = convolutional("sigmoid", True)

    zero = {"change": lambda shared: shared.update({name: 0.0 * shared[name]})}
    (row,), images, _ = rows_of(network, tmp_path, **zero)
    assert row["status"] == "failed" and np.isnan(images).all()
    assert f"gradient of {name} is zero everywhere" in row["reason"]
    (row,), _, _ = rows_of(network, tmp_path, change=lambda shared: shared.pop(name))
    assert row["status"] == "failed"
    assert f"gradient of small lacks {name}, and the walk needs every layer's" in row["reason"]


def test_weights_that_are_missing_or_not_finite_are_named():
    given, _, _ = seen(convolutional("sigmoid"))
    left = {name: value for name, value in given.weights.items() if name != "conv2.weight"}
    broken = {**given.weights, "conv2.weight": given.weights["conv2.weight"] * np.nan}
    for weights, words in (
        (left, "set of weights of small lacks conv2.weight"),
        (broken, "weight conv2.weight of small holds NaN or infinity"),
    ):
        with pytest.raises(NumericsError, match=words):
            RGap().run(dataclasses.replace(given, weights=weights), 0)


@pytest.mark.parametrize("label", [0, 3, -2])
@pytest.mark.parametrize("last_bias", [False, True])
def test_a_label_that_is_no_sign_is_refused(label, last_bias, tmp_path):
    network = convolutional("sigmoid", last_bias=last_bias)
    (row,), _, _ = rows_of(network, tmp_path, labels=[label])
    assert row["status"] == "failed"
    assert row["reason"].startswith(f"Label {label} was granted, but small is attacked through")
    assert "whose y is -1 or 1" in row["reason"]


@pytest.mark.parametrize("bias", [False, True])
def test_a_label_that_is_no_class_is_refused(bias):
    network = chain(conv(4, 3), conv(6, 3), bias=bias)
    given = view(network, image(network))
    for label in (-1, 4):
        with pytest.raises(NumericsError, match=f"Label {label} was .* has classes 0 to 3"):
            RGap().run(dataclasses.replace(given, labels=(label,)), 0)
