"""Data sets as files: written as read, all else refused; the embedded stand-ins of real ones."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from conftest import REAL_DATA, refused
from gradleak.data import arrays, catalogue, embedded
from gradleak.errors import ArtifactError, ConfigError
from gradleak.runtime.artifacts import read_tensors


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
    assert not arrays.is_by_hand(path)
    check(path, path, "missing", "Snakemake")
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


def test_a_harmed_file_is_refused_with_both_checksums(path):
    expected = arrays.save(path, small())
    whole = path.read_bytes()
    for content in (whole[:-10], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(content)
        check(path, path, hashlib.sha256(content).hexdigest(), expected, "delete it")
        assert not arrays.is_by_hand(path)
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
    path.write_bytes(path.read_bytes()[:-10])
    assert arrays.is_by_hand(path)
    check(path, path, "truncated", hashlib.sha256(path.read_bytes()).hexdigest(), "replace it")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"split": "train"}, ("split", "'train'", "'test'")),
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
    save_file({"x": np.zeros(3)}, path)
    check(path, path, "['x']", "'images' and 'labels'")
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
    with refused("'cifar11'", "cifar10", kind=ConfigError):
        catalogue.resolve("cifar11", "real")
    with refused("'fake'", "embedded, real", kind=ConfigError):
        catalogue.resolve("cifar10", "fake")
    with refused("imagenet", "'test'", "val", kind=ConfigError):
        catalogue.check_split("imagenet", "test")


def test_the_pattern_ties_each_data_set_to_its_own_splits():
    pattern = catalogue.pairs_pattern([("cifar10", "test"), ("imagenet", "val")])
    whole = re.compile(rf"(?P<dataset>{pattern})-(?P<split>.+)\.safetensors$")
    names = ["cifar10-test", "cifar10-train", "imagenet-val", "xcifar10-test", "cifar10-test2"]
    assert [bool(whole.match(f"{name}.safetensors")) for name in names] == [1, 0, 1, 0, 0]
    assert re.match(catalogue.pairs_pattern([]), "cifar10-test.safetensors") is None


EMBEDDED = catalogue.pairs("embedded")


@pytest.fixture(scope="module")
def built():
    return {pair: embedded.build(*pair) for pair in EMBEDDED}


@pytest.mark.parametrize("pair", EMBEDDED, ids="-".join)
def test_sizes_and_labels(built, pair):
    data, info = built[pair], catalogue.info(pair[0])
    assert data.images.shape == (info.count(pair[1]), *info.shape)
    assert len(data.classes) == len(set(data.classes)) == info.classes
    assert set(data.labels.tolist()) == set(range(info.classes))
    assert data.images.nbytes < 160e6
    assert len({image.tobytes() for image in data.images}) == len(data)


@pytest.mark.parametrize("dataset", ["digits", "photos10", "photos100"])
def test_no_image_is_in_both_splits(built, dataset):
    one, other = (built[dataset, split].images for split in ("train", "test"))
    assert not {image.tobytes() for image in one} & {image.tobytes() for image in other}


def test_the_first_ten_are_one_of_each_class_in_order_and_show_the_photo_itself(built):
    for split in ("train", "test"):
        assert built["photos10", split].images.std(axis=(1, 2, 3)).min() > 8, "contrast"
    for pair in (("photos10", "train"), ("digits", "train"), ("photos224", "val")):
        assert built[pair].labels[:10].tolist() == list(range(10))
    assert [built["photos10", "train"].classes[k] for k in (1, 3)] == ["motorcycle", "cat"]
    # Enlarged, each is closest to its own photo's portrait at 224 pixels, not to another's.
    small = built["photos10", "train"].images[:10].astype(float)
    large = built["photos224", "val"].images[:10].astype(float)
    shrunk = large.reshape(10, 3, 32, 7, 32, 7).mean(axis=(3, 5))
    distance = np.abs(small[:, None] - shrunk[None]).mean(axis=(2, 3, 4))
    assert distance.argmin(axis=1).tolist() == list(range(10))
    assert distance.diagonal().max() < 5


def test_the_same_bytes_twice(tmp_path):
    for dataset, split in (("digits", "test"), ("photos10", "test")):
        paths = [tmp_path / str(k) / f"{dataset}-{split}.safetensors" for k in range(2)]
        for path in paths:
            embedded._photo.cache_clear()
            embedded._crops.cache_clear()
            embedded.write(path, dataset, split)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert arrays.load(paths[0], dataset, split).origin == "embedded"
        provenance = read_tensors(paths[0])[1]["provenance"]
        assert provenance == {"settings": {"dataset": dataset, "split": split}}


def test_absent_photos_real_data_sets_and_unknown_splits_are_refused():
    photo = embedded.Photo("x", "skimage.data", "absent.png", embedded.PHOTOS[0].portrait)
    with refused("installed skimage lacks absent.png ", "requirements.lock"):
        embedded._photo(photo, None)
    with refused("'cifar10' is not embedded"):
        embedded.build("cifar10", "train")
    with refused("'photos224' has no split 'train'", kind=ConfigError):
        embedded.build("photos224", "train")


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
