"""Downloading and unpacking, against a local server with small files in the official formats.

The server also stalls, breaks off, or sends other bytes.
"""

import gzip
import hashlib
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
import yaml
from torchvision import datasets

import faults
from conftest import refused
from gradleak.data import arrays, download, official
from gradleak.errors import ArtifactError, ConfigError
from gradleak.runtime import progress
from gradleak.runtime.artifacts import read_tensors
from pipeline_trees import whole

CONTENT = b"0123456789" * 1000
PATIENCE = 0.5


def md5(content):
    return hashlib.md5(content).hexdigest()


def remote(server, content=CONTENT, name="file.bin", **more):
    server.files[name] = content
    more = {"digest": md5(content), "instead": official.INSTEAD, **more}
    return download.RemoteFile(name, (f"{server.url}/{name}",), **more)


def tarred(base, members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def cifar(parent, label_key, classes, label=None):
    """A small CIFAR archive: the official members, four images in each."""
    generator = np.random.default_rng(1)
    members, images, labels = {}, {}, {}
    for name, _ in (*parent.train_list, *parent.test_list):
        images[name] = generator.integers(0, 256, (4, 3072), dtype=np.uint8)
        labels[name] = [label] * 4 if label is not None else [1, 0, 3, 2]
        members[name] = pickle.dumps({"data": images[name], label_key: labels[name]})
    meta = parent.meta
    members[meta["filename"]] = pickle.dumps({meta["key"]: classes})
    archive = tarred(parent.base_folder, members)

    changed = {
        "tgz_md5": md5(archive),
        "train_list": [[name, md5(members[name])] for name, _ in parent.train_list],
        "test_list": [[name, md5(members[name])] for name, _ in parent.test_list],
        "meta": {**meta, "md5": md5(members[meta["filename"]])},
    }
    stacked = {
        split: np.concatenate([images[name] for name, _ in listed])
        for split, listed in (("train", parent.train_list), ("test", parent.test_list))
    }
    return type("Small", (parent,), changed), {parent.filename: archive}, stacked


def mnist():
    """Small MNIST files: five images to train, three to test."""
    generator = np.random.default_rng(2)
    files, images, resources = {}, {}, []
    names = [name for name, _ in datasets.MNIST.resources]
    for image_name, label_name, split, n in ((*names[:2], "train", 5), (*names[2:], "test", 3)):
        images[split] = generator.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = np.arange(n, dtype=np.uint8)
        head = struct.pack(">IIII", 2051, n, 28, 28)
        files[image_name] = gzip.compress(head + images[split].tobytes())
        files[label_name] = gzip.compress(struct.pack(">II", 2049, n) + labels.tobytes())
        resources += [(image_name, md5(files[image_name])), (label_name, md5(files[label_name]))]
    return type("SmallMNIST", (datasets.MNIST,), {"resources": resources}), files, images


@pytest.fixture
def downloaded(tmp_path, monkeypatch, server):

    def download(dataset, small, files):
        monkeypatch.setattr(official, "torchvision_class", lambda dataset: small)
        server.files.update(files)
        official.download(tmp_path / "raw" / "MD5SUMS", dataset, server.url)
        return tmp_path / "raw"

    return download


@pytest.fixture
def file(server):
    return remote(server)


def test_the_official_addresses_and_checksums_are_torchvisions():
    (cifar10,) = official.remote_files("cifar10")
    assert cifar10.urls == (datasets.CIFAR10.url,) and cifar10.digest == datasets.CIFAR10.tgz_md5
    files = official.remote_files("mnist")
    assert [(file.name, file.digest) for file in files] == datasets.MNIST.resources
    assert files[0].urls == tuple(base + files[0].name for base in datasets.MNIST.mirrors)
    (mirrored,) = official.remote_files("cifar100", "http://localhost/x")
    assert mirrored.urls == (f"http://localhost/x/{datasets.CIFAR100.filename}",)
    with refused("'imagenet'", "mnist, cifar10, cifar100", kind=ConfigError):
        official.remote_files("imagenet")


@pytest.mark.parametrize(
    ("dataset", "parent", "key"),
    [("cifar10", datasets.CIFAR10, "labels"), ("cifar100", datasets.CIFAR100, "fine_labels")],
)
def test_cifar_from_server_to_arrays(tmp_path, downloaded, dataset, parent, key):
    classes = [f"c{k}" for k in range(int(dataset.removeprefix("cifar")))]
    small, files, images = cifar(parent, key, classes)
    raw = downloaded(dataset, small, files)
    assert (raw / "MD5SUMS").read_text() == f"{small.tgz_md5}  {parent.filename}\n"
    for split in ("train", "test"):
        path = tmp_path / f"{dataset}-{split}.safetensors"
        official.unpack(path, raw, dataset, split)
        found = arrays.load(path, dataset, split)
        assert np.array_equal(found.images.reshape(-1, 3072), images[split])
        assert found.labels[:4].tolist() == [1, 0, 3, 2]
        assert found.classes == classes and found.origin == "official"
        provenance = read_tensors(path)[1]["provenance"]
        assert provenance["sources"] == {parent.filename: small.tgz_md5}


def test_mnist_from_server_to_arrays(tmp_path, downloaded, server):
    small, files, images = mnist()
    first = next(iter(files))
    # What is there already is not fetched again.
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / first).write_bytes(files[first])
    raw = downloaded("mnist", small, files)
    assert [name for name, _ in server.requests] == list(files)[1:]
    for split in ("train", "test"):
        path = tmp_path / f"mnist-{split}.safetensors"
        official.unpack(path, raw, "mnist", split)
        found = arrays.load(path, "mnist", split)
        assert np.array_equal(found.images[:, 0], images[split])
        assert found.labels.tolist() == list(range(len(images[split])))
        assert found.classes == [str(k) for k in range(10)]
        # As after a kill.
        before = path.read_bytes()
        arrays.sidecar(path).unlink()
        official.unpack(path, raw, "mnist", split)
        assert path.read_bytes() == before and arrays.sidecar(path).exists()
    (tmp_path / "file").write_text("")
    with refused(tmp_path / "file/mnist-test.safetensors", kind=ArtifactError):
        official.unpack(tmp_path / "file/mnist-test.safetensors", raw, "mnist", "test")


def test_progress_is_shown(monkeypatch, tmp_path, file, capsys):
    monkeypatch.setattr(progress, "LINES", 0.0)
    monkeypatch.setattr(progress._DISPLAY, "job", "download")
    download.fetch(file, tmp_path)
    assert "download: 0.0 of 0.0 MB, file.bin" in capsys.readouterr().err


def test_a_cut_transfer_is_resumed_within_the_call(tmp_path, server, file):
    server.cuts = [3000, 2000]
    path = download.fetch(file, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=3000-", "bytes=5000-"]
    assert not download.part_path(path).exists()


@pytest.mark.parametrize("stalls", [False, True])
def test_a_transfer_that_ends_early_is_resumed_by_the_next_call(
    tmp_path, server, file, stalls, monkeypatch
):
    monkeypatch.setattr(download, "TIMEOUT", (PATIENCE, PATIENCE))
    server.cuts, server.stalls = [3000], stalls
    what = f"{file.urls[0]}: sent nothing for {PATIENCE} s" if stalls else "broke off"
    with refused("file.bin", f"{what} after 3000 bytes of 10000", "run again", tmp_path):
        download.fetch(file, tmp_path, attempts=1)
    assert download.part_path(tmp_path / "file.bin").read_bytes() == CONTENT[:3000]
    assert not (tmp_path / "file.bin").exists()
    server.stalls = False
    assert download.fetch(file, tmp_path, attempts=1).read_bytes() == CONTENT
    assert server.requests[1:] == [("file.bin", "bytes=3000-")]


def test_a_server_that_never_answers_is_told_after_the_time_out(
    tmp_path, server, file, monkeypatch
):
    assert download.TIMEOUT == (10.0, 60.0) and download.ATTEMPTS == 3, "docs/faults.md says so"
    monkeypatch.setattr(download, "TIMEOUT", (PATIENCE, PATIENCE))
    server.stalls = True
    said = f"Cannot download file.bin ({file.urls[0]}: no answer within {PATIENCE} s); "
    with refused(said, "run again to resume"):
        download.fetch(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_ranges_a_cut_transfer_starts_anew(tmp_path, server, file):
    server.cuts, server.ranges = [3000], False
    assert download.fetch(file, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("part", [b"x" * 3000, b"x" * 10000, b"x" * 20000, CONTENT])
def test_a_part_that_does_not_fit_is_fetched_anew(tmp_path, server, file, part):
    download.part_path(tmp_path / "file.bin").write_bytes(part)
    assert download.fetch(file, tmp_path).read_bytes() == CONTENT
    assert (len(server.requests) == 1) == (part == CONTENT)


def test_an_altered_download_is_refused_and_not_kept(tmp_path, server, file):
    server.files["file.bin"] = b"z" + CONTENT[1:]
    with refused("file.bin", md5(server.files["file.bin"]), file.digest, "try again"):
        download.fetch(file, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_first_digits_of_a_checksum_are_enough(tmp_path, server):
    digest, found = (hashlib.sha256(word).hexdigest()[:8] for word in (b"weights", b"heights"))
    file = remote(server, b"weights", "weights.pth", digest=digest, algorithm="sha256")
    assert download.fetch(file, tmp_path).read_bytes() == b"weights"
    (tmp_path / "weights.pth").write_bytes(b"heights")
    with refused(f"its SHA-256 begins with {found} where {digest} is expected", "delete it"):
        download.fetch(file, tmp_path)


@pytest.mark.parametrize("harmed", [CONTENT[10:], b"1" + CONTENT])
def test_a_harmed_file_in_the_folder_is_refused(tmp_path, server, file, harmed):
    (tmp_path / "file.bin").write_bytes(harmed)
    with refused(tmp_path / "file.bin", md5(harmed), file.digest, "delete it"):
        download.fetch(file, tmp_path)
    assert server.requests == []


def test_a_file_or_a_server_that_cannot_be_reached_is_named(tmp_path, server, file):
    server.files.clear()
    more = ("by hand", "data: root:", "--config 'data={root: FOLDER}'")
    with refused("file.bin", server.url, "HTTP 404", *more):
        download.fetch(file, tmp_path)
    assert len(server.requests) == 1
    server.close()
    with refused("file.bin", file.urls[0], "Connection refused", "by hand"):
        download.fetch(file, tmp_path)


def test_a_second_address_is_tried_and_an_unwritable_folder_named(tmp_path, server, file):
    urls = (f"{server.url}/absent.bin", *file.urls)
    path = download.fetch(download.RemoteFile(file.name, urls, file.digest), tmp_path)
    assert path.read_bytes() == CONTENT
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "raw"
    with refused(folder / "file.bin", "Not a directory", "data: root:", "={root: FOLDER}"):
        download.fetch(file, folder)


@pytest.mark.parametrize("harm", ["missing", "truncated", "altered"])
def test_unpacking_refuses_harmed_official_files(tmp_path, downloaded, harm):
    small, files, _ = mnist()
    raw = downloaded("mnist", small, files)
    name, expected = small.resources[1]
    content = files[name][:-5] if harm == "truncated" else files[name][:-1] + b"!"
    (raw / name).write_bytes(content)
    if harm == "missing":
        (raw / name).unlink()
    found = () if harm == "missing" else (md5(content),)
    with refused(raw / name, expected, f"delete the folder {raw}", *found):
        official.unpack(tmp_path / "mnist-test.safetensors", raw, "mnist", "test")
    assert [entry.name for entry in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize("wrong", ["batch", "label"])
def test_what_the_files_cannot_hold_is_refused_and_not_written(tmp_path, downloaded, wrong):
    classes = [f"c{k}" for k in range(10)]
    small, files, _ = cifar(datasets.CIFAR10, "labels", classes, label=10 * (wrong == "label"))
    words = ("label 10 at index 0", "0 to 9", tmp_path / "cifar10-test.safetensors")
    if wrong == "batch":
        small.test_list = [["test_batch", md5(b"another")]]
        words = (tmp_path / "raw" / small.filename, "corrupted", "delete the folder")
    raw = downloaded("cifar10", small, files)
    with refused(*words):
        official.unpack(tmp_path / "cifar10-test.safetensors", raw, "cifar10", "test")
    assert [entry.name for entry in tmp_path.iterdir()] == ["raw"]


@pytest.mark.slow
def test_a_rule_that_downloads_resumes_and_refuses_other_bytes(tree, server):
    settings = whole(tree / "config.yaml")
    settings["data"] = {"root": "data", "mirrors": {"cifar10": server.url}, "imagenet": None}
    (tree / "config.yaml").write_text(yaml.safe_dump(settings))
    name, raw = "cifar-10-python.tar.gz", tree / "data/raw/cifar10"
    server.files[name], server.cuts = CONTENT, [1000, 1000, 1000]

    def said():
        done = faults.run(tree, "--", "data/raw/cifar10/MD5SUMS")
        assert done.returncode == 1
        return faults.words(done.stdout)

    first = said()
    assert f"gradleak: Cannot download {name}" in first
    assert "broke off after 3000 bytes of 10000" in first and "run again to resume" in first
    assert (raw / f"{name}.part").read_bytes() == CONTENT[:3000]
    second = said()
    assert server.requests[3] == (name, "bytes=3000-")
    assert f"sent a truncated or altered {name}" in second
    assert "it was deleted, so try again" in second and list(raw.glob("*")) == []
