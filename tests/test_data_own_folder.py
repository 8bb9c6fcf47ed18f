"""ImageNet from a folder, an archive or a manifest of one's own; the rules for all data sets."""

import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

import faults
from conftest import refused
from gradleak.data import arrays, catalogue, own_folder
from gradleak.runtime.artifacts import read_tensors
from pipeline_trees import build, jobs_of, whole
from test_provenance import by_hand

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


def test_class_folders_are_labelled_in_sorted_order_one_of_each_class_first(folder, monkeypatch):
    data = read(folder)
    assert data.images.shape == (4, 3, 256, 256) and data.images.dtype == np.uint8
    assert data.labels.tolist() == [0, 1, 2, 0]
    assert data.classes == ["n01", "n02", "n03"] and data.origin == "own folder"
    assert data.images[0, :, 128, 128].tolist() == list(COLOURS["n01"])
    assert data.images[2, :, 0, 0].tolist() == [90, 90, 90]
    monkeypatch.setattr(own_folder, "MOST", 3)
    assert read(folder).labels.tolist() == [0, 1, 2]


def test_the_centre_is_kept(tmp_path):
    wide = np.zeros((256, 768, 3), np.uint8)
    wide[:, 256:512] = 255
    (tmp_path / "c").mkdir()
    Image.fromarray(wide).save(tmp_path / "c" / "wide.png")
    assert read(tmp_path).images.min() == 255


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
def test_an_archive_gives_what_its_folder_gives_and_a_truncated_one_is_named(folder, kind):
    archive = archived(folder, kind)
    found, wanted = read(archive), read(folder)
    assert np.array_equal(found.images, wanted.images)
    assert np.array_equal(found.labels, wanted.labels) and found.classes == wanted.classes
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 3])
    check(archive, archive, "cannot be read")


def manifest(folder, rows, header="path,label,wnid,class_name"):
    (folder / "manifest.csv").write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize("kind", [None, "tar", "zip"])
def test_a_manifest_gives_order_labels_and_names(folder, kind):
    manifest(folder, ["n02/c.JPEG,7,n02,frog", "n01/a.png,3,n01,shark"])
    data = read(archived(folder, kind) if kind else folder)
    assert data.labels.tolist() == [7, 3]
    assert data.classes == ["0", "1", "2", "shark", "4", "5", "6", "frog"]
    assert data.images[1, :, 0, 0].tolist() == list(COLOURS["n01"])


def test_written_arrays_name_their_source_and_one_that_is_missing_is_refused(folder, tmp_path):
    path = tmp_path / "imagenet-val.safetensors"
    archive = archived(folder, "tar")
    own_folder.write(path, archive, "imagenet", "val")
    assert len(arrays.load(path, "imagenet", "val")) == 4
    sources = read_tensors(path)[1]["provenance"]["sources"]
    assert sources == {"archive.tar": arrays.checksum(archive)}
    for source in (None, ""):
        with refused("data.imagenet is not set", path.name):
            own_folder.write(path, source, "imagenet", "val")
    check(tmp_path / "absent", "data.imagenet", tmp_path / "absent", "does not exist")


def test_a_folder_without_images_or_with_images_outside_of_classes_is_refused(folder, tmp_path):
    shutil.copy(folder / "n01" / "a.png", folder / "loose.png")
    check(folder, "loose.png", "manifest.csv")
    shutil.rmtree(folder)
    (folder / "n01").mkdir(parents=True)
    (folder / "n01" / "notes.txt").write_text("")
    check(folder, folder, "holds no images", "subfolder")


def test_an_unreadable_image_is_named(folder):
    path = folder / "n01" / "b.png"
    for content in (path.read_bytes()[:200], b"no image at all"):
        path.write_bytes(content)
        check(folder, path, "cannot be read as an image")


def test_a_wrong_line_of_a_manifest_is_named(folder):
    Image.new("RGB", (300, 300)).save(folder.parent / "secret.png")
    for path, label, words in (
        ("n01/absent.png", "3", "n01/absent.png"),
        ("../secret.png", "3", "../secret.png"),
        ("n01/a.png", "x", "'x'"),
        ("n01/a.png", "-1", "'-1'"),
    ):
        manifest(folder, [f"{path},{label},,"])
        check(folder, "manifest.csv", "line 2", words)
    manifest(folder, [])
    check(folder, "manifest.csv", "lists no images")


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


USE = """
rule use:
    input: "data/cifar10-train.safetensors", "data/cifar10-test.safetensors"
    output: "used.txt"
    shell: "touch {output}"
"""


def run_rules(folder, *targets, mirrors=None, imagenet=None):
    settings = whole()
    settings["data"] = {"root": "data", "mirrors": mirrors or {}, "imagenet": imagenet}
    build(folder, ("data",), settings, USE)
    return faults.run(folder, "--cores", 1, *targets)


def test_exactly_one_rule_makes_each_data_set_and_none_what_the_catalogue_lacks(tmp_path):
    files = [f"data/{d}-{s}.safetensors" for d, i in catalogue.CATALOGUE.items() for s in i.splits]
    done = run_rules(tmp_path, "--dry-run", *files)
    assert done.returncode == 0, done.stdout
    expected = {"embedded_dataset": 7, "download_dataset": 3, "unpack_dataset": 6}
    assert jobs_of(done.stdout) == expected | {"import_imagenet": 1, "total": 17}
    for name in ("imagenet-train", "xmnist-test"):
        done = faults.run(tmp_path, "--cores", 1, "--dry-run", f"data/{name}.safetensors")
        assert done.returncode != 0
        assert f"gradleak: No rule makes 'data/{name}.safetensors'" in done.stdout


def test_files_put_there_by_hand_are_sources_and_their_siblings_are_not(tmp_path):
    by_hand(tmp_path / "data/cifar10-train.safetensors", "cifar10", "train")
    done = run_rules(tmp_path, "--dry-run", "--forceall", "used.txt")
    assert jobs_of(done.stdout) == {
        "use": 1,
        "unpack_dataset": 1,
        "download_dataset": 1,
        "total": 3,
    }
    assert "Unpack cifar10-test" in done.stdout and "cifar10-train" not in done.stdout


def test_embedded_arrays_are_made_once_and_not_again(tmp_path):
    target = "data/digits-test.safetensors"
    done = run_rules(tmp_path, target)
    assert done.returncode == 0, done.stdout
    assert len(arrays.load(tmp_path / target, "digits", "test")) == 360
    assert "Nothing to be done" in faults.run(tmp_path, "--cores", 1, target).stdout


def test_a_failed_download_keeps_its_part_and_says_what_to_do(tmp_path):
    part = tmp_path / "data/raw/cifar10/cifar-10-python.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    mirrors = {"cifar10": "http://127.0.0.1:9/none"}
    done = run_rules(tmp_path, "data/cifar10-test.safetensors", mirrors=mirrors)
    assert done.returncode != 0
    assert "gradleak: Cannot download cifar-10-python.tar.gz" in done.stdout
    assert part.read_bytes() == b"half"
    assert sorted(path.name for path in part.parent.iterdir()) == [part.name]


@pytest.mark.parametrize("imagenet", [None, "absent"])
def test_imagenet_without_a_folder_says_what_to_do(tmp_path, imagenet):
    done = run_rules(tmp_path, "data/imagenet-val.safetensors", imagenet=imagenet)
    assert done.returncode != 0
    assert "gradleak: data.imagenet" in done.stdout
    assert not (tmp_path / "data" / "imagenet-val.safetensors").exists()
