"""Data sets as files: what is written is what is read, and anything else is refused by name."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import REAL_DATA
from gradleak.data import arrays, catalogue
from gradleak.errors import ArtifactError, ConfigError
from refusals import refused


def small(dataset="cifar10", split="test", n=6):
    generator = np.random.default_rng(0)
    info = catalogue.info(dataset)
    images = generator.integers(0, 256, (n, *info.shape), dtype=np.uint8)
    labels = np.arange(n, dtype=np.int64) % info.classes
    names = [f"class {k}" for k in range(info.classes)]
    return arrays.Dataset(images, labels, names, dataset, split, "official")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cifar10-test.safetensors"


def load(path):
    return arrays.load(path, "cifar10", "test")


def check(path, *parts):
    with refused(*parts):
        load(path)


def by_hand(path, dataset="cifar10", split="test", classes=True, **changes):
    data = small(dataset, split)
    tensors = {"images": data.images, "labels": data.labels, **changes}
    metadata = {"dataset": dataset, "split": split}
    if classes:
        metadata["classes"] = json.dumps(data.classes)
    save_file(tensors, path, metadata=metadata)
    return path


def test_save_then_load_gives_the_same_images_and_the_checksum_of_the_file(path):
    data = small()
    digest = arrays.save(path, data)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert arrays.sidecar(path).read_text() == f"{digest}  {path.name}\n"
    found = load(path)
    assert np.array_equal(found.images, data.images) and np.array_equal(found.labels, data.labels)
    assert found.classes == data.classes
    known = {"dataset": "cifar10", "split": "test", "origin": "official"}
    assert found.identity() == known | {"sha256": digest}
    assert not arrays.is_by_hand(path)


def test_a_missing_file_is_refused(path):
    assert not arrays.is_by_hand(path)
    check(path, path, "missing", "Snakemake")


@pytest.mark.parametrize("harm", ["truncated", "altered"])
def test_a_harmed_file_is_refused_with_both_checksums(path, harm):
    expected = arrays.save(path, small())
    content = path.read_bytes()
    content = content[:-10] if harm == "truncated" else content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes(content)
    check(path, path, hashlib.sha256(content).hexdigest(), expected, "delete it")
    assert not arrays.is_by_hand(path)


def test_a_checksum_file_that_is_missing_or_holds_none_is_refused(path):
    arrays.save(path, small())
    arrays.sidecar(path).write_text("nothing\n")
    check(path, arrays.sidecar(path), "no SHA-256")
    arrays.sidecar(path).unlink()
    check(path, arrays.sidecar(path), "copy it as well")


def test_arrays_put_there_by_hand_are_read_and_named_so(path):
    found = load(by_hand(path))
    assert arrays.is_by_hand(path) and found.origin == "by hand"
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found.classes[3] == "class 3"
    assert load(by_hand(path, classes=False)).classes == [str(k) for k in range(10)]


def test_a_truncated_file_put_there_by_hand_stays_by_hand_and_is_refused(path):
    by_hand(path)
    path.write_bytes(path.read_bytes()[:-10])
    assert arrays.is_by_hand(path)
    check(path, path, "truncated", hashlib.sha256(path.read_bytes()).hexdigest(), "replace it")


def test_another_split_or_array_is_refused(path):
    check(by_hand(path, split="train"), path, "split", "'train'", "'test'")
    save_file({"x": np.zeros(3)}, path)
    check(path, path, "['x']", "'images' and 'labels'")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"images": np.zeros((6, 3, 32, 32), np.float32)}, ("float32", "uint8")),
        ({"labels": np.zeros(6, np.int32)}, ("int32", "int64")),
        ({"images": np.zeros((6, 3, 28, 28), np.uint8)}, ("(6, 3, 28, 28)", "(N, 3, 32, 32)")),
        ({"images": np.zeros((6, 3072), np.uint8)}, ("(6, 3072)", "(N, 3, 32, 32)")),
        ({"labels": np.zeros(5, np.int64)}, ("6 images", "(5,)")),
        ({"labels": np.array([0, 1, 10, 3, 4, 5])}, ("label 10 at index 2", "0 to 9")),
        ({"labels": np.array([0, 1, 2, 3, -1, 5])}, ("label -1 at index 4", "0 to 9")),
    ],
)
def test_wrong_arrays_are_refused(path, changes, parts):
    check(by_hand(path, **changes), path, *parts)


def test_wrong_arrays_and_unwritable_folders_are_named(path, tmp_path):
    data = small()
    data.labels[2] = 11
    with refused(path, "label 11"):
        arrays.save(path, data)
    assert list(tmp_path.iterdir()) == []
    path.write_text("")
    with refused(path / path.name, kind=ArtifactError):
        arrays.save(path / path.name, small())


def test_take_gives_the_images_asked_for():
    data = small()
    images, labels = data.take([4, 1])
    assert np.array_equal(images, data.images[[4, 1]]) and labels.tolist() == [4, 1]
    for index in (6, -1):
        with refused(f"Index {index} ", "cifar10-test", "6 images", "0 to 5"):
            data.take([0, index])


def test_stand_ins_replace_real_data_sets_only_when_images_are_embedded():
    stand_ins = {"mnist": "digits", "cifar10": "photos10", "cifar100": "photos100"}
    for real, stand_in in {**stand_ins, "imagenet": "photos224"}.items():
        assert catalogue.resolve(real, "embedded") == stand_in
        assert catalogue.resolve(stand_in, "embedded") == stand_in
        assert catalogue.resolve(real, "real") == real
        assert catalogue.info(real).channels == catalogue.info(stand_in).channels


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: catalogue.resolve("cifar11", "real"), ("'cifar11'", "cifar10")),
        (lambda: catalogue.resolve("cifar10", "fake"), ("'fake'", "embedded, real")),
        (lambda: catalogue.check_split("imagenet", "test"), ("imagenet", "'test'", "val")),
    ],
)
def test_unknown_names_are_refused(call, parts):
    with refused(*parts, kind=ConfigError):
        call()


def test_the_pattern_ties_each_data_set_to_its_own_splits():
    pattern = catalogue.pairs_pattern([("cifar10", "test"), ("imagenet", "val")])
    whole = re.compile(rf"(?P<dataset>{pattern})-(?P<split>.+)\.safetensors$")
    names = ["cifar10-test", "cifar10-train", "imagenet-val", "xcifar10-test", "cifar10-test2"]
    assert [bool(whole.match(f"{name}.safetensors")) for name in names] == [1, 0, 1, 0, 0]
    assert re.match(catalogue.pairs_pattern([]), "cifar10-test.safetensors") is None


REAL = {"cifar10-train": 50000, "cifar100-test": 10000, "mnist-train": 60000, "mnist-test": 10000}


@pytest.mark.skipif(not REAL_DATA, reason="GRADLEAK_DATA_ROOT names no folder with real arrays")
@pytest.mark.parametrize("name", REAL)
def test_real_arrays_have_the_official_shapes_and_means(name):
    dataset, _, split = name.partition("-")
    path = Path(REAL_DATA) / f"{name}.safetensors"
    data = arrays.load(path, dataset, split)
    side = 28 if dataset == "mnist" else 32
    assert data.images.shape == (REAL[name], 1 if dataset == "mnist" else 3, side, side)
    assert set(np.unique(data.labels)) == set(range(catalogue.info(dataset).classes))
    if name == "cifar10-train":
        means = data.images.mean(axis=(0, 2, 3)) / 255
        assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
        assert [data.classes[label] for label in data.labels[[1, 3]]] == ["truck", "deer"]
