"""ImageNet from a folder, an archive or a manifest of one's own."""

import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from gradleak.data import arrays, own_folder
from gradleak.runtime.artifacts import read_tensors
from refusals import refused

COLOURS = {"n01": (200, 30, 30), "n02": (30, 200, 30), "n03": (30, 30, 200)}


@pytest.fixture
def folder(tmp_path):
    """Three classes: two images in the first, one in the others; one wide, one tall, one grey."""
    root = tmp_path / "photos"
    sizes = {"n01/a.png": (300, 280), "n01/b.png": (600, 260), "n02/c.JPEG": (260, 500)}
    for name, size in sizes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, COLOURS[path.parent.name]).save(path, quality=95)
    (root / "n03").mkdir()
    Image.new("L", (64, 64), 90).save(root / "n03" / "d.png")
    (root / "n03" / "notes.txt").write_text("no image")
    (root / "n03" / "._d.png").write_text("what macOS leaves behind")
    return root


def read(source):
    return own_folder.read(source, "imagenet", "val")


def check(source, *parts):
    with refused(*parts):
        read(source)


def archived(folder, kind):
    return folder.parent / shutil.make_archive(
        str(folder.parent / "archive"), kind, folder.parent, folder.name
    )


def test_class_folders_are_labelled_in_sorted_order_one_of_each_class_first(folder):
    data = read(folder)
    assert data.images.shape == (4, 3, 256, 256) and data.images.dtype == np.uint8
    assert data.labels.tolist() == [0, 1, 2, 0]
    assert data.classes == ["n01", "n02", "n03"] and data.origin == "own folder"
    assert data.images[0, :, 128, 128].tolist() == list(COLOURS["n01"])
    assert data.images[2, :, 0, 0].tolist() == [90, 90, 90]


def test_the_centre_is_kept(tmp_path):
    wide = np.zeros((256, 768, 3), np.uint8)
    wide[:, 256:512] = 255
    (tmp_path / "c").mkdir()
    Image.fromarray(wide).save(tmp_path / "c" / "wide.png")
    data = read(tmp_path)
    assert data.images.min() == 255


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
def test_an_archive_gives_what_its_folder_gives(folder, kind):
    found, wanted = read(archived(folder, kind)), read(folder)
    assert np.array_equal(found.images, wanted.images)
    assert np.array_equal(found.labels, wanted.labels) and found.classes == wanted.classes


def manifest(folder, rows, header="path,label,wnid,class_name"):
    (folder / "manifest.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize("kind", [None, "tar", "zip"])
def test_a_manifest_gives_order_labels_and_names(folder, kind):
    manifest(folder, ["n02/c.JPEG,7,n02,frog", "n01/a.png,3,n01,shark"])
    data = read(archived(folder, kind) if kind else folder)
    assert data.labels.tolist() == [7, 3]
    assert data.classes == ["0", "1", "2", "shark", "4", "5", "6", "frog"]
    assert data.images[1, :, 0, 0].tolist() == list(COLOURS["n01"])


def test_at_most_so_many_images_are_taken(folder, monkeypatch):
    monkeypatch.setattr(own_folder, "MOST", 3)
    assert read(folder).labels.tolist() == [0, 1, 2]


def test_written_arrays_are_loaded_and_name_their_source(folder, tmp_path):
    path = tmp_path / "imagenet-val.safetensors"
    archive = archived(folder, "tar")
    own_folder.write(path, archive, "imagenet", "val")
    assert len(arrays.load(path, "imagenet", "val")) == 4
    sources = read_tensors(path)[1]["provenance"]["sources"]
    assert sources == {"archive.tar": arrays.checksum(archive)}


def test_no_path_and_a_missing_path_are_refused(tmp_path):
    for source in (None, ""):
        with refused("data.imagenet is not set", "imagenet-val.safetensors"):
            own_folder.write(tmp_path / "imagenet-val.safetensors", source, "imagenet", "val")
    check(tmp_path / "absent", "data.imagenet", tmp_path / "absent", "does not exist")


def test_a_folder_without_images_or_with_images_outside_of_classes_is_refused(folder, tmp_path):
    shutil.copy(folder / "n01" / "a.png", folder / "loose.png")
    check(folder, "loose.png", "manifest.csv")
    shutil.rmtree(folder)
    (folder / "n01").mkdir(parents=True)
    (folder / "n01" / "notes.txt").write_text("")
    check(folder, folder, "holds no images", "subfolder")


@pytest.mark.parametrize("content", [b"no image at all", None])
def test_an_unreadable_image_is_named(folder, content):
    path = folder / "n01" / "b.png"
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    check(folder, path, "cannot be read as an image")


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
def test_a_truncated_archive_is_named(folder, kind):
    archive = archived(folder, kind)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 3])
    check(archive, archive, "cannot be read")


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("n01/absent.png,3,,", ("line 2", "n01/absent.png")),
        ("../secret.png,3,,", ("line 2", "../secret.png")),
        ("n01/a.png,x,,", ("line 2", "'x'")),
        ("n01/a.png,-1,,", ("line 2", "'-1'")),
        ("", ("lists no images",)),
    ],
)
def test_a_wrong_line_of_a_manifest_is_named(folder, row, parts):
    Image.new("RGB", (300, 300)).save(folder.parent / "secret.png")
    manifest(folder, [row] if row else [])
    check(folder, "manifest.csv", *parts)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_cannot_write_outside(tmp_path, kind):
    Image.new("RGB", (300, 300), (1, 2, 3)).save(tmp_path / "escaped.png")
    (tmp_path / "work/evil").mkdir(parents=True)
    archive, name = tmp_path / f"work/evil.{kind}", "../../evil/escaped.png"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.write(tmp_path / "escaped.png", name)
    else:
        with tarfile.open(archive, "w") as tar:
            tar.add(tmp_path / "escaped.png", name)
    (tmp_path / "escaped.png").unlink()
    check(archive, "holds no images")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["evil", archive.name, "work"]
    assert not list(tmp_path.parent.glob("**/escaped.png"))
