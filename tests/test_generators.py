"""Generators: the autoencoder's training, its files, what config refuses, and the rules."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from conftest import sentence
from gradleak.config import loader
from gradleak.config.training import ConditionalVaeConfig
from gradleak.data.arrays import Dataset
from gradleak.errors import ArtifactError, ConfigError, DataError, NumericsError
from gradleak.runtime.artifacts import read_tensors, write_tensors
from gradleak.training.generators import conditional_vae, files, make, train
from gradleak.training.generators.conditional_vae import Autoencoder, Sizes
from pipeline_trees import changed, whole

SETTINGS = {
    "kind": "conditional_vae", "images": 60, "first": 4, "size": 8, "resize": "repeat",
    "epochs": 60, "batch": 20, "latent": 4, "width": 8, "rate": 1e-2, "seed": 1, "checkpoint": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    """Classes differ in colour, images of one in brightness."""
    rng = np.random.default_rng(0)
    labels = np.arange(70) % 3
    pixels = np.zeros((70, 3, 8, 8), np.uint8)
    pixels[np.arange(70), labels] = rng.integers(60, 250, (70, 1, 1))
    return Dataset(pixels, labels.astype(np.int64), ["r", "g", "b"], "photos10", "train", "test")


def trained(data, folder, settings=SETTINGS):
    names = {"weights": "safetensors", "curve": "curve.csv", "checkpoints": "checkpoints"}
    paths = {key: str(folder / f"vae.{name}") for key, name in names.items()}
    make.train_vae(data, settings, device="cpu", paths=paths, provenance={}, code="1")
    return paths


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("made"))


def test_training_lowers_the_loss(made):
    _, metadata = read_tensors(made["weights"])
    assert metadata["kind"] == "conditional_vae"
    assert metadata["source"].items() >= {"images": 60, "first": 4, "dataset": "photos10"}.items()
    assert metadata["trained"].items() >= {"epoch": 60, "device": "cpu"}.items()
    rows = np.genfromtxt(made["curve"], delimiter=",", names=True)
    assert list(rows.dtype.names) == list(train.CURVE)
    np.testing.assert_array_equal(rows["epoch"], np.arange(1, 61))
    assert rows["loss"][-1] < rows["loss"][0] - 20.0
    assert rows["mse"][-1] < 0.25 * rows["mse"][0]
    assert np.all(rows["kl"] >= 0.0)
    np.testing.assert_allclose(rows["loss"], 96 * np.log(rows["mse"]) + rows["kl"], rtol=1e-6)
    assert rows["rate"][0] == pytest.approx(1e-2, rel=0.01)
    assert 0.0 < rows["rate"][-1] < 1e-3
    assert not Path(made["checkpoints"]).exists()


def test_the_class_steers_the_image(made):
    generator = files.read(made["weights"])
    assert (generator.latent, generator.classes, generator.shape) == (4, 3, (3, 8, 8))
    labels = torch.arange(3).repeat_interleave(5)
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((15, 4))).float()
    images = generator.images(z, labels)
    assert images.shape == (15, 3, 8, 8)
    assert images.min() >= 0.0 and images.max() <= 1.0
    assert torch.equal(images.mean((2, 3)).argmax(1), labels)
    # And z what the class leaves open.
    spread = images.mean((2, 3)).gather(1, labels[:, None]).view(3, 5).std(1)
    assert (spread > 0.02).all()


OTHERS = [
    ({"rate": 2e-2}, r"other settings \(rate: 0.01, not 0.02\)"),
    ({"first": 5}, r"another data set \(first: 4, not 5\)"),
    ({"latent": 5}, "another network"),
    ({"seed": 2}, "other settings"),
]


def test_the_same_seed_gives_the_same_bytes_interrupted_or_not(data, made, tmp_path, monkeypatch):
    """And another training's checkpoint is refused."""
    true, calls = train.Trainer._epoch, []

    def dying(self, epoch, bar):
        calls.append(epoch)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return true(self, epoch, bar)

    monkeypatch.setattr(train.Trainer, "_epoch", dying)
    with pytest.raises(KeyboardInterrupt):
        trained(data, tmp_path)
    left = list((tmp_path / "vae.checkpoints").iterdir())
    assert [path.name for path in left] == [make.CHECKPOINT]
    assert not (tmp_path / "vae.safetensors").exists()
    for change, words in OTHERS:
        with pytest.raises(ArtifactError, match=f"is of {words}"):
            trained(data, tmp_path, SETTINGS | change)
    paths = trained(data, tmp_path)
    # Its seventh epoch, after the checkpoint of the sixth, is done again.
    assert calls[8:] == list(range(6, 60))
    for key in ("weights", "curve"):
        assert Path(paths[key]).read_bytes() == Path(made[key]).read_bytes()


def test_a_training_that_diverges_is_named_and_keeps_its_curve(data, tmp_path, monkeypatch):
    true = train.Trainer._step

    def broken(self, inputs, labels, noise, rate, done):
        found = true(self, inputs, labels, noise, rate, done)
        return found * float("nan") if done >= 9 else found

    monkeypatch.setattr(train.Trainer, "_step", broken)
    with pytest.raises(NumericsError, match=r"diverged in epoch 4 .* lower rate: 0.01"):
        trained(data, tmp_path)
    kept = tmp_path / "vae.checkpoints"
    assert {path.name for path in kept.iterdir()} == {make.CHECKPOINT, "curve.csv"}
    assert len((kept / "curve.csv").read_text().splitlines()) == 4


def test_images_are_as_many_as_there_are_and_enlarged_as_those_of_targets(data, tmp_path):
    short = SETTINGS | {"epochs": 1}
    paths = trained(data, tmp_path, short | {"images": 10**6, "first": 30})
    assert read_tensors(paths["weights"])[1]["source"]["images"] == 40
    with pytest.raises(DataError, match="first: 70 leaves no image, since photos10-train has 70"):
        trained(data, tmp_path, short | {"first": 70})
    images = make._images(data, SETTINGS | {"size": 16}, torch.device("cpu"))
    assert images.pixels.shape == (60, 16, 16, 3)
    expected = data.images[4:64].repeat(2, 2).repeat(2, 3)
    np.testing.assert_array_equal(images.pixels.permute(0, 3, 1, 2), expected)
    np.testing.assert_array_equal(images.labels, data.labels[4:64])


@pytest.mark.parametrize("side", [4, 8, 12, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_sides_and_colours(side, channels):
    module = Autoencoder(Sizes((channels, side, side), 5, latent=3, width=8))
    labels = torch.tensor([0, 4])
    images = module.decoder.images(torch.randn(2, 3), labels)
    assert images.shape == (2, channels, side, side)
    mean, spread = module.encoder(images, labels)
    assert mean.shape == spread.shape == (2, 3)
    # A class without images gives what the classes share.
    z, (one, other) = torch.randn(1, 3), torch.tensor([[0], [3]])
    assert torch.equal(module.decoder.images(z, one), module.decoder.images(z, other))


def test_the_loss_is_that_of_a_gaussian_of_the_best_variance_and_pytorchs_divergence():
    error = torch.tensor(0.04, dtype=torch.float64)
    numbers, constant = 50, 0.5 * 50 * (np.log(2 * np.pi) + 1.0)
    found = conditional_vae.loss_of(error, torch.tensor(3.0), numbers) + constant
    likelihood = torch.distributions.Normal(0.0, error.sqrt()).log_prob(error.sqrt()) * numbers
    assert found == pytest.approx(float(-likelihood + 3.0))
    module = Autoencoder(Sizes((1, 8, 8), 2, latent=3, width=8))
    images, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
    _, found = module(images, labels, torch.zeros(4, 3))
    mean, spread = module.encoder(images, labels)
    ours = torch.distributions.Normal(mean, (0.5 * spread).exp())
    known = torch.distributions.kl_divergence(ours, torch.distributions.Normal(0.0, 1.0))
    torch.testing.assert_close(found, known.sum(1).mean())


def test_files_and_sizes_that_cannot_be_are_refused(made, tmp_path):
    for shape in ((3, 30, 30), (3, 8, 16), (1, 9, 9)):
        assert "set another size, for instance 32" in sentence(ConfigError, Sizes, shape, 10)
    assert "width: 12 " in sentence(ConfigError, Sizes, (3, 32, 32), 10, width=12)
    tensors, metadata = read_tensors(made["weights"])
    other = str(tmp_path / "other.safetensors")
    assert "is missing" in sentence(ArtifactError, files.read, other)
    for arrays, record, words in (
        (tensors, metadata | {"kind": "models"}, "no generator (kind: models)"),
        ({"enter.weight": tensors["enter.weight"]}, metadata, "is damaged"),
        (tensors, metadata | {"sizes": {"shape": [3, 30, 30]}}, "is damaged"),
    ):
        write_tensors(other, arrays, record)
        assert words in sentence(ArtifactError, files.read, other)


@pytest.fixture
def raw():
    """config.yaml with generators, an attack that searches one, and an experiment."""
    found = whole()
    found["generators"] |= {
        "small": {"kind": "conditional_vae", "dataset": "cifar10", "images": 40, "epochs": 1},
        "big": {"kind": "biggan", "weights": "own/biggan.bin", "size": 224},
    }
    found["attacks"]["searching"] = {"method": "ggl", "generator": "small"}
    found["experiments"]["searched"] = {
        "paper": "fedkl", "targets": "rgap_resnet", "models": ["rgap_resnet18"], "seeds": 1,
        "defences": ["none"], "attacks": ["searching"],
    }  # fmt: skip
    return found


def test_defaults_are_those_of_the_code():
    section = ConditionalVaeConfig.model_fields
    for kind in (train.Recipe, Sizes):
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                assert section[field.name].default == field.default, field.name


CASES = [
    ("attacks.searching.generator", "smal", ["generator: 'smal'", "did you mean 'small'"]),
    ("attacks.searching.population", 1, ["attacks.searching.population", "1"]),
    ("attacks.searching.generations", "many", ["generations", "'many'"]),
    ("attacks.searching.bound", 0.0, ["attacks.searching.bound", "0.0"]),
    ("generators.small.kind", "gan", ["generators.small.kind: 'gan'", "conditional_vae, biggan"]),
    ("generators.small.imges", 3, ["'generators.small.imges'", "did you mean 'images'"]),
    ("generators.small.epochs", "epchs", ["generators.small.epochs", "'epchs'"]),
    ("generators.small.dataset", "cifar100", ["small of cifar100's classes", "of cifar10"]),
    ("generators.small.size", 64, ["images of [3, 64, 64]", "have [3, 32, 32]"]),
    ("generators.small.split", "test", ["trained on image 0 of cifar10-test", "another split"]),
    ("generators.big.truncation", 1.5, ["generators.big.truncation", "1.5"]),
    ("generators.big.weights", "", ["generators.big.weights", "at least 1"]),
    ("attacks.searching.generator", "big", ["big of imagenet's classes", "of cifar10"]),
    ("targets.own.batch", 2, ["searches for single images", "batches of 2"]),
]


@pytest.mark.parametrize(("path", "value", "words"), CASES)
def test_config_refuses_in_one_sentence(raw, path, value, words):
    # The other attacks on these targets have their own words for a batch.
    raw["targets"]["own"] = raw["targets"]["rgap_resnet"].copy()
    raw["experiments"]["searched"]["targets"] = "own"
    message = sentence(ConfigError, loader.load, changed(raw, path, value))
    assert [word for word in words if word not in message] == []


def test_images_of_the_same_split_are_held_apart(raw):
    assert loader.load(raw).attacks["searching"].population == 50
    raw["generators"]["small"] |= {"split": "test", "first": 10}
    assert loader.load(raw).generators["small"].first == 10
    drawn = {"dataset": "cifar10", "split": "test", "count": 1, "draw": "random"}
    raw["targets"]["drawn"] = drawn
    raw["experiments"]["searched"]["targets"] = "drawn"
    with pytest.raises(ConfigError, match="trained on drawn images of cifar10-test"):
        loader.load(raw)


@pytest.mark.slow
def test_an_attack_trains_the_generator_that_it_searches(raw, tree, snakemake):
    raw["generators"]["small"] |= {"latent": 4, "width": 8}
    raw["attacks"]["searching"] |= {"generations": 2, "population": 4}
    raw["models"]["searched"] = {
        "input": [3, 32, 32],
        "layers": [{"conv": 4, "kernel": 3, "stride": 2, "activation": "sigmoid"}, {"fc": 10}],
    }
    raw["experiments"]["searched"] |= {"targets": "rgap_cifar", "models": ["searched"]}
    (tree / "config.yaml").write_text(yaml.safe_dump(raw | {"scale": "smoke"}))
    case = "embedded-smoke"
    target = f"results/scores/{case}/searched/searched/none/searching.csv"
    snakemake(tree, "--cores", "2", "--", target)
    scores = pd.read_csv(tree / target)
    errors = scores[scores["metric"] == "mse"]
    assert list(errors["status"]) == ["ok"]
    assert errors["value"].between(0.0, 1.0).all()
    made = tree / f"results/generators/{case}"
    source = read_tensors(made / "small.safetensors")[1]["source"]
    assert (source["dataset"], source["images"]) == ("photos10", 40)
    assert list(pd.read_csv(made / "small.curve.csv")["epoch"]) == [1]

    # BigGAN without its weights.
    missing = f"results/generators/{case}/big.safetensors"
    done = snakemake(tree, "--cores", "2", "--", missing, check=False)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "own/biggan.bin is missing: BigGAN's weights are not downloaded by themselves" in said
    assert not (tree / missing).exists()
