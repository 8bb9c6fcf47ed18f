"""The embedded stand-ins: same bytes each time, nothing shared between splits, no download."""

import numpy as np
import pytest

from gradleak.data import arrays, catalogue, embedded
from gradleak.errors import ConfigError
from gradleak.runtime.artifacts import read_tensors
from refusals import refused

SIZES = {
    ("digits", "train"): 1437, ("digits", "test"): 360, ("photos10", "train"): 2000,
    ("photos10", "test"): 500, ("photos100", "train"): 4000, ("photos100", "test"): 1000,
    ("photos224", "val"): 1000,
}  # fmt: skip


@pytest.fixture(scope="module")
def built():
    return {pair: embedded.build(*pair) for pair in SIZES}


def test_every_embedded_data_set_of_the_catalogue_is_built():
    assert set(SIZES) == set(catalogue.pairs("embedded"))


@pytest.mark.parametrize("pair", SIZES, ids="-".join)
def test_sizes_and_labels(built, pair):
    data, info = built[pair], catalogue.info(pair[0])
    assert data.images.shape == (SIZES[pair], *info.shape)
    assert len(data.classes) == len(set(data.classes)) == info.classes
    assert set(data.labels.tolist()) == set(range(info.classes))
    assert data.images.nbytes < 160e6
    assert len({image.tobytes() for image in data.images}) == len(data)


@pytest.mark.parametrize("dataset", ["digits", "photos10", "photos100"])
def test_no_image_is_in_both_splits(built, dataset):
    train = {image.tobytes() for image in built[dataset, "train"].images}
    assert not train & {image.tobytes() for image in built[dataset, "test"].images}


def test_the_first_ten_are_one_of_each_class_in_order(built):
    for split in ("train", "test"):
        assert built["photos10", split].images.std(axis=(1, 2, 3)).min() > 8, "contrast"
    for pair in (("photos10", "train"), ("digits", "train"), ("photos224", "val")):
        assert built[pair].labels[:10].tolist() == list(range(10))
    assert [built["photos10", "train"].classes[k] for k in (1, 3)] == ["motorcycle", "cat"]


def test_the_first_ten_show_the_photo_itself(built):
    """Enlarged, each is closest to its own photo's portrait at 224 pixels, not to another's."""
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


def test_a_package_without_the_photo_is_named():
    photo = embedded.Photo("x", "skimage.data", "absent.png", embedded.PHOTOS[0].portrait)
    with refused("installed skimage lacks absent.png ", "requirements.lock"):
        embedded._photo(photo, None)


def test_real_data_sets_and_unknown_splits_are_refused():
    with refused("'cifar10' is not embedded"):
        embedded.build("cifar10", "train")
    with refused("'photos224' has no split 'train'", kind=ConfigError):
        embedded.build("photos224", "train")
