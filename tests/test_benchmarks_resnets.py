"""Plain references of the training engine and of Inverting Gradients do the same work as ours."""

import dataclasses

import numpy as np
import pytest
import torch

from gradleak.benchmarks import ggl, inverting, lock, measure, speed, training
from gradleak.data import arrays
from gradleak.data.arrays import Dataset
from gradleak.errors import ArtifactError
from gradleak.models import files
from gradleak.models.activations import Activation
from gradleak.models.build import load
from gradleak.models.chain import Chain, ConvSpec, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.training.data import divide
from gradleak.training.recipe import Recipe

RELU = Activation("relu")
SIZE = {"kernel": (3, 3), "padding": (1, 1), "norm": "batch", "activation": RELU}
NET = Chain(
    "net",
    (3, 32, 32),
    (
        ConvSpec(4, stride=(2, 2), **SIZE),
        ConvSpec(4, skip=1, **SIZE),
        ConvSpec(6, stride=(2, 2), skip=1, projection=True, pool="global", **SIZE),
        LinearSpec(3),
    ),
)
COUNTS = {"train": 40, "validation": 16, "test": 8}
RECIPE = Recipe(2, batch=16, rate=0.02, crop=0, flip=False, precision="float32")
SETTINGS = {"iterations": 8, "rate": 0.1, "tv": 1e-4}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    labels = np.arange(64) % 3
    pixels = rng.integers(0, 150, (64, *NET.input)).astype(np.uint8)
    pixels[np.arange(64), labels] += 100
    return Dataset(pixels, labels.astype(np.int64), ["r", "g", "b"], "photos10", "train", "test")


@pytest.fixture(scope="module")
def split(data):
    cpu = torch.device("cpu")
    return divide(data, COUNTS, seed=0, offset=-0.5, std=0.25, device=cpu)


@pytest.fixture(scope="module")
def stored(tmp_path_factory, data):
    """A model file and arrays, as the pipeline stores them."""
    folder = tmp_path_factory.mktemp("stored")
    model, dataset = (str(folder / f"{name}.safetensors") for name in ("model", "photos10-train"))
    stacked = {f"net/{name}": value[None] for name, value in initial_weights(NET, 0).items()}
    files.save(model, [NET], stacked, {})
    arrays.save(dataset, data, {})
    return model, dataset


@pytest.mark.parametrize("workers", training.WORKERS)
def test_the_plain_loop_reaches_the_engines_weights(split, workers):
    case = (NET, initial_weights(NET, 0), split, RECIPE)
    ours, plain = training.ours(*case), training.plain(*case, workers=workers)
    assert ours.kind == plain.kind == "float32"
    assert plain.loss == pytest.approx(ours.loss, rel=1e-4)
    assert plain.accuracy == pytest.approx(ours.accuracy, abs=1 / 16 + 1e-9)
    for name, value in ours.weights.items():
        np.testing.assert_allclose(value, plain.weights[name], rtol=1e-4, atol=1e-5)


def test_the_plain_loop_moves_its_images(split):
    moved = dataclasses.replace(RECIPE, crop=2, flip=True)
    loader = training._loader(split.train, moved, 0, torch.Generator().manual_seed(0))
    still = training._loader(split.train, RECIPE, 0, torch.Generator().manual_seed(0))
    for (inputs, labels), (images, same) in zip(loader, still, strict=True):
        assert inputs.shape == images.shape == (16, *NET.input)
        assert torch.equal(labels, same)
        assert not torch.equal(inputs, images)


def test_running_statistics_are_those_of_the_images(data):
    images = (data.images / 255).astype(np.float32)
    weights = inverting.settled(NET, initial_weights(NET, 0), images)
    module = load(NET, weights, torch.float32)
    entered = module.conv1(torch.from_numpy(images))
    np.testing.assert_allclose(
        weights["conv1_norm.running_mean"], entered.detach().mean((0, 2, 3)), rtol=1e-4, atol=1e-5
    )


@pytest.fixture(scope="module")
def case(data):
    images = ((data.images / 255 - 0.5) / 0.25).astype(np.float32)
    weights = inverting.settled(NET, initial_weights(NET, 0), images)
    return inverting.make(NET, weights, images[:3], data.labels[:3], (-2.0, 2.0))


def test_both_ways_of_inverting_gradients_give_the_same_images(case):
    ours = inverting.ours(case, SETTINGS, "float64")
    plain = inverting.reference(case, SETTINGS, "float64")
    assert ours.images.shape == plain.images.shape == case.images.shape
    np.testing.assert_allclose(ours.images, plain.images, atol=1e-7)
    np.testing.assert_allclose(ours.values, plain.values, rtol=1e-7)
    first = inverting.reference(case, SETTINGS | {"iterations": 1}, "float64")
    assert (plain.values < first.values).all()


def test_all_ways_of_evaluating_a_population_give_the_same_distances(case, data):
    view, device = case.views[0], torch.device("cpu")
    images = torch.from_numpy(((data.images[10:17] / 255 - 0.5) / 0.25).astype(np.float32))[:, None]
    plain = ggl.reference(view, device)(images)
    assert plain.shape == (7,)
    assert plain.std() > 0.0
    for ours in (ggl.batched(view, 7, device), ggl.single(view, device)):
        torch.testing.assert_close(ours(images), plain, rtol=1e-4, atol=0.0)


@pytest.mark.slow
def test_rows_hold_times_memory_and_errors(stored):
    model, dataset = stored
    settings = {
        **COUNTS,
        "epochs": 2,
        "batch": 16,
        "milestones": (0.5,),
        "seed": 0,
        "offset": -0.5,
        "std": 0.25,
        "size": None,
        "resize": "repeat",
        "crop": 2,
        "precision": "auto",
    }
    source = ("photos10", "train")
    more = {"source": source, "rounds": 1}
    rows = [
        training.training_row(model, dataset, settings, device="cpu", threads=1, **more),
        inverting.inverting_row(
            model, dataset, SETTINGS | {"iterations": 1}, scale=(-0.5, 0.25), **more
        ),
        ggl.population_row(model, dataset, population=5, scale=(-0.5, 0.25), **more),
    ]
    found = speed.table(rows)
    assert list(found.columns) == speed.COLUMNS
    assert list(found["what"]) == [
        "training net, 1000 images",
        "Inverting Gradients net, an iteration",
        "GGL net, a candidate",
    ]
    numbers = found.drop(columns=["what", "note"])
    assert np.isfinite(numbers.to_numpy(float)).all()
    assert (numbers > 0).all(axis=None)
    np.testing.assert_allclose(found["ratio"], found["reference_s"] / found["ours_s"])
    assert "2 epochs of 32 images in batches of 16" in found["note"][0]
    assert "16 images, 1 iterations" in found["note"][1]
    assert float(found["note"][2].split("largest relative difference ")[1]) < 1e-4


def test_a_lock_is_timed_against_the_same_network_without():
    rows = lock.lock_rows(device="cpu", threads=1, steps=2, width=2)
    assert [entry["what"] for entry in rows] == [
        "training step resnet20 with a lock, float32",
        "training step resnet20 with a lock, auto",
    ]
    assert "float32, cpu, 1 threads" in rows[0]["note"]
    for entry in rows:
        assert entry["ours_s"] > 0
        assert entry["ratio"] == entry["reference_s"] / entry["ours_s"]
        assert "a step with the lock takes" in entry["note"]
    plain, locked = lock.networks("resnet20", 16).values()
    # FedKL's authors' own count of the lock: 32,800.
    assert locked.parameters - plain.parameters == 32_800 - 2 * 16


def test_a_lock_of_lenet_is_timed_against_a_norm_and_against_neither():
    rows = lock.lock_rows(device="cpu", threads=1, steps=2, kind="lenet", width=2)
    assert [entry["what"] for entry in rows] == [
        "training step lenet with a lock, float32",
        "training step lenet with a lock, auto",
    ]
    for entry in rows:
        assert entry["ratio"] == entry["reference_s"] / entry["ours_s"]
        assert "norm and lock against neither" in entry["note"]
    nets = lock.networks("lenet", 12)
    # The count of the LeNet that FedKL's authors lock, less two channels of the input and 24,600.
    assert nets["bare"].parameters == 40_426 - 24_600 - 2 * 12 * 25
    assert nets["plain"].parameters == nets["bare"].parameters + 2 * 12
    assert nets["locked"].parameters == nets["bare"].parameters + 24_600
    assert 24_600 / nets["locked"].parameters == pytest.approx(0.61, abs=0.01)


def test_jobs_take_turns_and_the_fastest_counts(monkeypatch):
    seconds, called = iter([3.0, 1.0, 2.0, 4.0]), []

    def answer(module, arguments, *, threads):
        called.append(arguments[0])
        return {"seconds": next(seconds)}

    monkeypatch.setattr(measure, "answer", answer)
    best = measure.alternately("m", {"a": {"x": 1}, "b": {"x": 2}}, rounds=2, threads=1)
    assert called == ['{"x": 1}', '{"x": 2}'] * 2
    assert best == {"a": {"seconds": 2.0}, "b": {"seconds": 1.0}}


def test_a_measurement_that_fails_is_one_sentence():
    with pytest.raises(ArtifactError, match=r"benchmarks\.training ended with status 1 .*KeyError"):
        measure.answer("gradleak.benchmarks.training", ["{}"], threads=1)
