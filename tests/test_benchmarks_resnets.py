"""Plain references of the training engine and of searches do the same work as ours."""

import dataclasses

import numpy as np
import pytest
import torch

from benchmarks import ggl, grnn, inverting, lock, searches, speed, training
from chains import conv, net
from gradleak.data import arrays
from gradleak.data.arrays import Dataset
from gradleak.models import files
from gradleak.models.build import load
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import initial_weights
from gradleak.training.data import divide
from gradleak.training.recipe import Recipe

NORMED = {"padding": 1, "norm": "batch", "activation": "relu"}
LAST = {"stride": 2, "skip": 1, "projection": True, "pool": "global"}
LAYERS = conv(4, 3, 2, **NORMED), conv(4, 3, skip=1, **NORMED), conv(6, 3, **LAST, **NORMED)
NET = net(*LAYERS, LinearSpec(3), size=(3, 32, 32))
SIGMOID = conv(6, 5, 4, 2, bias=True, activation="sigmoid"), LinearSpec(3)
SMOOTH = Chain("smooth", (3, 32, 32), SIGMOID, spread=0.5)
CPU = torch.device("cpu")
COUNTS = {"train": 40, "validation": 16, "test": 8}
RECIPE = Recipe(2, batch=16, rate=0.02, crop=0, flip=False, precision="float32")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    labels = np.arange(64) % 3
    pixels = rng.integers(0, 150, (64, *NET.input)).astype(np.uint8)
    pixels[np.arange(64), labels] += 100
    return Dataset(pixels, labels.astype(np.int64), ["r", "g", "b"], "photos10", "train", "test")


@pytest.fixture(scope="module")
def split(data):
    return divide(data, COUNTS, seed=0, offset=-0.5, std=0.25, device=CPU)


@pytest.fixture(scope="module")
def stored(tmp_path_factory, data):
    """Models and images, as the pipeline stores them: what each measurement is given."""
    folder = tmp_path_factory.mktemp("stored")
    dataset, out = str(folder / "photos10-train.safetensors"), {}
    arrays.save(dataset, data, {})
    for chain, scale in ((NET, (-0.5, 0.25)), (SMOOTH, (0.0, 1.0))):
        model, weights = str(folder / f"{chain.name}.safetensors"), initial_weights(chain, 0)
        stacked = {f"{chain.name}/{name}": value[None] for name, value in weights.items()}
        files.save(model, [chain], stacked, {})
        given = {"model": model, "dataset": dataset, "source": ("photos10", "train")}
        out[chain.name] = given | {"scale": scale}
    return out


@pytest.mark.parametrize("workers", training.WORKERS)
def test_the_plain_loop_reaches_the_engines_weights(split, workers):
    case = (NET, initial_weights(NET, 0), split, RECIPE)
    (ours, weights), (plain, same) = training.ours(*case), training.plain(*case, workers=workers)
    assert (ours["kind"], ours["images"]) == (plain["kind"], plain["images"]) == ("float32", 32)
    assert plain["error"] == pytest.approx(ours["error"], rel=1e-4)
    assert plain["accuracy"] == pytest.approx(ours["accuracy"], abs=1 / 16 + 1e-9)
    for name, value in weights.items():
        np.testing.assert_allclose(value, same[name], rtol=1e-4, atol=1e-5)


def test_the_plain_loop_moves_its_images(split):
    loaders = [
        training._loader(split.train, recipe, 0, torch.Generator().manual_seed(0))
        for recipe in (dataclasses.replace(RECIPE, crop=2, flip=True), RECIPE)
    ]
    for (inputs, labels), (images, same) in zip(*loaders, strict=True):
        assert inputs.shape == images.shape == (16, *NET.input)
        assert torch.equal(labels, same) and not torch.equal(inputs, images)


def test_running_statistics_are_those_of_the_images(data):
    images = (data.images / 255).astype(np.float32)
    weights = searches.settled(NET, initial_weights(NET, 0), images)
    module = load(NET, weights, torch.float32)
    entered = module.conv1(torch.from_numpy(images)).detach().mean((0, 2, 3))
    np.testing.assert_allclose(weights["conv1_norm.running_mean"], entered, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def cases(stored):
    settled = {"net": True, "smooth": False}
    return {n: searches.stored(**stored[n], settle=s).case(3) for n, s in settled.items()}


WAYS = [
    (inverting, "net", {"iterations": 8, "rate": 0.1, "tv": 1e-4}, 1e-7, 1e-7),
    (grnn, "smooth", {"iterations": 6, "tv": 1e-3}, 1e-5, 1e-4),
]


@pytest.mark.parametrize(("way", "given", "settings", "rtol", "atol"), WAYS)
def test_both_ways_of_searching_walk_alike(cases, way, given, settings, rtol, atol):
    case = cases[given]

    def run(side, **more):
        found, _ = searches.searched(way.attack(side, settings | more, "float64"), case.views)
        return np.stack([answer.images for answer in found]), np.array([a.loss for a in found])

    (ours, values), (plain, lowest) = run("ours"), run("reference")
    assert ours.shape == plain.shape == case.images.shape
    np.testing.assert_allclose(ours, plain, atol=atol)
    np.testing.assert_allclose(values, lowest, rtol=rtol)
    assert (lowest < run("reference", iterations=1)[1]).all()


def test_all_ways_of_evaluating_a_population_give_the_same_distances(cases, data):
    view = cases["net"].views[0]
    images = torch.from_numpy(((data.images[10:17] / 255 - 0.5) / 0.25).astype(np.float32))[:, None]
    plain = ggl.reference(view, CPU)(images)
    assert plain.shape == (7,) and plain.std() > 0.0
    for size in (7, 1):
        ours = ggl.batched(view, size, CPU)(images)
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=0.0)


@pytest.mark.slow
def test_rows_hold_times_memory_and_errors(stored):
    settings = {**COUNTS, "epochs": 2, "batch": 16, "milestones": (0.5,), "seed": 0, "crop": 2}
    settings |= {"offset": -0.5, "std": 0.25, "size": None, "resize": "repeat", "precision": "auto"}
    given, more = stored["net"], {"device": "cpu", "rounds": 1}
    images = {name: given[name] for name in ("model", "dataset", "source")}
    rows = [
        training.training_row(settings=settings, threads=1, **images, **more),
        inverting.inverting_row(given, iterations=1, **more),
        ggl.population_row(given, population=5, **more),
        grnn.grnn_row(stored["smooth"], iterations=1, images=2, **more),
    ]
    found = speed.table(rows)
    assert list(found.columns) == speed.COLUMNS
    assert "; ".join(found["what"]) == (
        "training net, 1000 images; Inverting Gradients net, an iteration; GGL net, a candidate; "
        "GRNN smooth, an iteration"
    )
    numbers = found.drop(columns=["what", "note"]).to_numpy(float)
    assert np.isfinite(numbers).all() and (numbers > 0).all()
    np.testing.assert_allclose(found["ratio"], found["reference_s"] / found["ours_s"])
    assert "2 epochs of 32 images in batches of 16" in found["note"][0]
    assert "16 images, 1 iterations" in found["note"][1]
    assert float(found["note"][2].split("largest relative difference ")[1]) < 1e-4
    assert found["ours_error"][3] == pytest.approx(found["reference_error"][3], rel=1e-3)
    said = f"{1 / found['ours_s'][3]:.3g} iterations times images per second and core of ours"
    assert f"{said}, the authors' code makes 37" in found["note"][3]
    assert "2 images, 1 iterations" in found["note"][3]


@pytest.mark.parametrize("kind", ["resnet20", "lenet"])
def test_a_lock_is_timed_against_the_same_network_without(kind):
    rows = lock.lock_rows(device="cpu", threads=1, steps=2, kind=kind, width=2)
    said = f"training step {kind} with a lock"
    assert [entry["what"] for entry in rows] == [f"{said}, float32", f"{said}, auto"]
    assert "float32, cpu, 1 threads" in rows[0]["note"]
    for entry in rows:
        assert entry["ratio"] == entry["reference_s"] / entry["ours_s"] > 0
        assert "a step with the lock takes" in entry["note"]
        # ResNet-20 has a norm of its own.
        assert ("norm and lock against neither" in entry["note"]) == (kind == "lenet")


def test_locked_networks_have_the_parameters_that_fedkls_authors_count():
    plain, locked = lock.networks("resnet20", 16).values()
    # Their own count of the lock: 32,800.
    assert locked.parameters - plain.parameters == 32_800 - 2 * 16
    nets = lock.networks("lenet", 12)
    # The count of the LeNet that they lock, less two channels of the input and 24,600.
    assert nets["bare"].parameters == 40_426 - 24_600 - 2 * 12 * 25
    assert nets["plain"].parameters == nets["bare"].parameters + 2 * 12
    assert nets["locked"].parameters == nets["bare"].parameters + 24_600
    assert 24_600 / nets["locked"].parameters == pytest.approx(0.61, abs=0.01)
