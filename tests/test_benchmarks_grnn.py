"""GRNN's plain reference does the same work as ours, and the row says what was measured."""

import numpy as np
import pytest

from gradleak.benchmarks import grnn, inverting, speed
from gradleak.data import arrays
from gradleak.data.arrays import Dataset
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights

SIGMOID = Activation("sigmoid")
NET = Chain(
    "net",
    (3, 32, 32),
    (ConvSpec(6, (5, 5), (4, 4), (2, 2), True, SIGMOID), LinearSpec(3)),
    spread=0.5,
)
SETTINGS = {"iterations": 6, "tv": 1e-3}


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(2)
    pixels = draw.integers(0, 256, (20, *NET.input)).astype(np.uint8)
    labels = (np.arange(20) % 3).astype(np.int64)
    return Dataset(pixels, labels, ["r", "g", "b"], "photos10", "train", "test")


@pytest.fixture(scope="module")
def case(data):
    images = (data.images[:3] / 255).astype(np.float32)
    return inverting.make(NET, initial_weights(NET, 0), images, data.labels[:3], (0.0, 1.0))


def test_both_ways_begin_alike_and_walk_alike(case):
    ours, plain = (way(case, SETTINGS, "float64") for way in (grnn.ours, grnn.reference))
    assert ours.images.shape == plain.images.shape == case.images.shape
    np.testing.assert_allclose(ours.values, plain.values, rtol=1e-5)
    np.testing.assert_allclose(ours.images, plain.images, atol=1e-4)
    first = grnn.reference(case, SETTINGS | {"iterations": 1}, "float64")
    assert (plain.values < first.values).all()


@pytest.mark.slow
def test_the_row_holds_times_memory_and_errors(tmp_path, data):
    model, dataset = (str(tmp_path / f"{name}.safetensors") for name in ("model", "photos10-train"))
    stacked = {f"net/{name}": value[None] for name, value in initial_weights(NET, 0).items()}
    files.save(model, [NET], stacked, {})
    arrays.save(dataset, data, {})
    found = grnn.grnn_row(
        model, dataset, {"iterations": 1}, source=("photos10", "train"), rounds=1, images=2
    )
    table = speed.table([found])
    assert list(table["what"]) == ["GRNN net, an iteration"]
    numbers = table.drop(columns=["what", "note"]).to_numpy(float)
    assert np.isfinite(numbers).all()
    assert (numbers > 0).all()
    assert found["ratio"] == found["reference_s"] / found["ours_s"]
    assert found["ours_error"] == pytest.approx(found["reference_error"], rel=1e-3)
    assert "2 images, 1 iterations" in found["note"]
    said = f"{1 / found['ours_s']:.3g} iterations times images per second and core of ours"
    assert f"{said}, the authors' code makes 37" in found["note"]
