"""Images of an audit: what they are made of, their order, the sentence where there are none."""

import numpy as np
import pytest
from PIL import Image

from audited import refused
from conftest import ROOT
from gradleak.data.arrays import Dataset
from gradleak.errors import ConfigError, DataError
from gradleak_audit.attack import samples
from gradleak_audit.attack.samples import from_dataset, from_embedded, from_folder, from_pixels
from gradleak_audit.run import Settings


def write(path, colour, size=(10, 10), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def data(count, classes, channels=3, side=8):
    images = np.random.default_rng(0).integers(0, 256, (count, channels, side, side), np.uint8)
    labels = np.arange(count, dtype=np.int64) // (count // classes)
    names = [f"class {k}" for k in range(classes)]
    return Dataset(images, labels, names, "cifar10", "test", "official", "abc")


def test_sub_folders_are_classes_that_take_turns_and_bad_ones_give_one_sentence(tmp_path):
    for number in range(3):
        write(tmp_path / "red" / f"{number}.png", (250, 0, number))
    write(tmp_path / "blue" / "only.png", (0, 0, 250))
    (tmp_path / "notes.txt").write_text("no image")
    found = from_folder(str(tmp_path), (3, 8, 8), 5)
    assert found.words[:2] == ("blue", "red") and len(found.words) == 5
    assert found.labels.tolist() == [0, 1, 1, 1]
    assert found.images[0, 2].min() == 250 and found.images[1:, 0].min() == 250
    assert found.images[1:, 2, 0, 0].tolist() == [0, 1, 2]
    assert found.labelled

    def refuse(kind, match, name="", size=(3, 8, 8), classes=5):
        with refused(match=match, kind=kind):
            from_folder(str(tmp_path / name), size, classes)

    refuse(ConfigError, "missing is not a folder", "missing")
    refuse(ConfigError, "2 sub-folders, but the network has 1 outputs", classes=1)
    refuse(ConfigError, r"\[4, 8, 8\] has 4 channels", size=(4, 8, 8))
    (tmp_path / "red" / "bad.png").write_bytes(b"\x89PNG no more")
    refuse(DataError, r"bad\.png cannot be read as an image")
    (tmp_path / "red" / "bad.png").unlink()
    write(tmp_path / "outside.png", (1, 2, 3))
    refuse(DataError, "in sub-folders and outside")
    (tmp_path / "empty").mkdir()
    refuse(DataError, "empty holds no images", "empty")


def test_without_sub_folders_labels_count_the_images(tmp_path):
    for number in range(5):
        write(tmp_path / f"{number}.png", 50 * number, mode="L")
    found = from_folder(str(tmp_path), (1, 6, 6), 3)
    assert sorted(found.labels.tolist()) == [0, 0, 1, 1, 2]
    assert found.labels[:3].tolist() == [0, 1, 2]
    assert not found.labelled


@pytest.mark.parametrize("size", [(3, 6, 6), (1, 6, 6), (3, 4, 12)])
def test_pictures_are_cropped_at_the_centre_and_resized(tmp_path, size):
    wide = size[1:] == (4, 12)
    picture = np.zeros((90 if wide else 40, 80, 3), np.uint8)
    picture[(slice(32, 58),) if wide else (slice(None), slice(20, 60))] = 200
    Image.fromarray(picture).save(tmp_path / "a.png")
    (found,) = from_folder(str(tmp_path), size, 2).images
    assert found.shape == size and found.dtype == np.uint8
    # Only the grey centre is left, its edges blurred: nothing was squeezed.
    assert found.min() > 170


def test_pictures_of_any_mode_can_be_read_and_one_held_upright_stays_upright(tmp_path):
    for mode in ("L", "RGB", "RGBA", "P", "1", "LA"):
        Image.new("RGB", (9, 9), (255, 255, 255)).convert(mode).save(tmp_path / "a.png")
        for channels in (1, 3):
            (found,) = from_folder(str(tmp_path), (channels, 5, 5), 2).images
            assert found.shape == (channels, 5, 5) and found.min() >= 250, mode
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    (found,) = from_folder(str(tmp_path), (3, 8, 8), 2).images
    assert (found[:, :4] == 255).all() and (found[:, 4:] == 0).all()


def test_a_data_set_is_resized_and_its_classes_take_turns():
    found = from_dataset(data(40, 4), (1, 12, 12), 10)
    assert found.images.shape == (40, 1, 12, 12)
    assert found.labels[:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert found.words[3] == "class 3" and len(found.words) == 10
    merged = from_dataset(data(40, 4), (3, 8, 8), 2)
    assert set(merged.labels) == {0, 1} and "modulo 2" in merged.title
    np.testing.assert_array_equal(merged.images[0], data(40, 4).images[0])


@pytest.mark.parametrize("size", [(1, 28, 28), (3, 32, 32), (3, 16, 20)])
def test_embedded_pictures_come_in_the_networks_size(size):
    found = from_embedded(size, 10)
    assert found.images.shape[1:] == size and len(found) >= samples.POOL
    assert sorted(found.labels[:10].tolist()) == list(range(10))
    assert found.source["origin"] == "embedded" and found.labelled


def test_pixels_of_ones_own():
    pixels = data(30, 3).images
    for given, labels in ((None, [0, 1, 2, 3] * 7 + [0, 1]), ([0, 1] * 15, [0, 1] * 15)):
        found = from_pixels(pixels, given, (3, 8, 8), max(labels) + 1)
        assert found.labels.tolist() == labels and found.labelled == (given is not None)
    for wrong, labels, match in (
        (pixels / 255.0, None, "is not uint8"),
        (pixels[0], None, "is not uint8"),
        (pixels, [0, 1], "2 labels for 30 images"),
        (pixels, [5] * 30, "from 0 to 1"),
    ):
        with refused(match=match):
            from_pixels(wrong, labels, (3, 8, 8), 2)


def test_the_first_image_of_a_batch_is_the_same_at_every_size_and_inputs_are_shifted_and_scaled():
    found = from_dataset(data(40, 4), (3, 8, 8), 4)
    for size in (1, 3, 5):
        batches = found.batches(4, size)
        assert batches.shape == (4, size) and batches[:, 0].tolist() == [0, 1, 2, 3]
        assert len(np.unique(batches)) == 4 * size
    targets = found.targets(found.batches(2, 2), -0.5, 0.25)
    expected = (found.images[[1, 3]] / 255.0 - 0.5) / 0.25
    np.testing.assert_allclose(targets.inputs(1), expected)
    assert targets.bounds == (-2.0, 2.0)
    np.testing.assert_allclose(targets.pixels(targets.inputs(1)), found.images[[1, 3]] / 255.0)


def test_an_answer_is_told_from_enough_others_under_every_batch_size():
    many, few = (from_dataset(data(count, 4), (3, 8, 8), 4) for count in (400, 24))
    assert len(many.pool(4, 4)) == samples.POOL and len(many.pool(4, 50)) == 200
    assert len(few.pool(4, 4)) == 24
    few.check(4, 4)
    others = f"24 images, .* takes 25, .*, and {samples.OTHERS} others"
    with refused(match=others, kind=DataError):
        few.check(4, 5)
    with refused(kind=DataError):
        few.check(13, 2)
    # The documentation says how many it takes.
    for scale, needed in (("laptop", 24), ("paper", 80)):
        settings = Settings(scale=scale)
        assert samples.Samples.needed(settings.amounts[0], settings.batches[-1]) == needed
        assert f"{needed} at" in (ROOT / "docs" / "audit.md").read_text()
