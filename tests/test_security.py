"""What comes from outside: nothing in it is run, and nothing of it leads elsewhere."""

import ast
import os
import pickle
import stat
import tarfile

import numpy as np
import pytest
import torch
from torchvision import datasets

from conftest import ROOT, refused
from gradleak.config import loader
from gradleak.config.schema import Config
from gradleak.data import arrays, backbones, official, own_folder, pickles
from gradleak.errors import ConfigError, GradleakError
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import atomic, read_tensors, write_json
from gradleak.settings import registry
from gradleak.settings.fields import ID_PATTERN
from gradleak.training.generators import biggan
from pipeline_trees import changed, whole
from test_data_official import cifar, md5, tarred

RAW = whole()
FOLDERS = ("src", "papers", "benchmarks", "workflow")
CODE = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))


class Harm:
    """Unpickled carelessly, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


# Every reader of a file that somebody else wrote, given a pickle.
READERS = {
    "LPIPS, safetensors": ("alex.safetensors", lambda p: backbones.read(p, "alex")),
    "LPIPS, torch": ("alexnet_features.pth", lambda p: backbones.read(p, "alex")),
    "BigGAN": ("biggan.bin", lambda p: biggan.convert(str(p), None)),
    "arrays": ("mnist-test.safetensors", lambda p: arrays.load(p, "mnist", "test")),
    "artifacts": ("x.safetensors", read_tensors),
    "archive of images": ("own.tar", lambda p: own_folder.read(p, "imagenet", "val")),
    "a folder's image": ("own/a/b.png", lambda p: own_folder.read(p.parents[1], "imagenet", "val")),
}


@pytest.mark.parametrize("protocol", ["bare", "torch"])
@pytest.mark.parametrize(("name", "read"), READERS.values(), ids=READERS.keys())
def test_no_reader_runs_a_pickle(tmp_path, name, read, protocol):
    path, harm = tmp_path / name, tmp_path / "harm"
    path.parent.mkdir(parents=True, exist_ok=True)
    if protocol == "torch":
        torch.save({"a": Harm(harm)}, path)
    else:
        path.write_bytes(pickle.dumps({"a": Harm(harm)}, protocol=2))
    with refused(path.name, kind=GradleakError):
        read(path)
    assert not harm.exists()
    pickle.loads(pickle.dumps(Harm(harm))).close()
    assert harm.exists()  # by a careless reader


@pytest.mark.parametrize("place", ["batch of the split", "another batch", "names of classes"])
def test_cifar_s_batches_run_nothing(tmp_path, monkeypatch, server, place):
    """Even where the archive has the official checksum: torchvision would unpickle it."""
    classes, harm = [f"c{k}" for k in range(10)], tmp_path / "harm"
    small, _, _ = cifar(datasets.CIFAR10, "labels", classes)
    meta = dict(small.meta)
    names = [name for name, _ in (*small.train_list, *small.test_list)]
    fine = pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 3]})
    members = dict.fromkeys(names, fine) | {meta["filename"]: pickle.dumps({meta["key"]: classes})}
    target = {"batch of the split": "test_batch", "another batch": names[0]}
    members[target.get(place, meta["filename"])] = pickle.dumps(Harm(harm))
    small.train_list, small.test_list = (
        [[name, md5(members[name])] for name, _ in given]
        for given in (small.train_list, small.test_list)
    )
    small.meta = {**meta, "md5": md5(members[meta["filename"]])}
    server.files[small.filename] = tarred(small.base_folder, members)
    small.tgz_md5 = md5(server.files[small.filename])
    monkeypatch.setattr(official, "torchvision_class", lambda dataset: small)
    official.download(tmp_path / "raw" / "MD5SUMS", "cifar10", server.url)
    with refused("is refused: it asks for"):
        official.unpack(tmp_path / "x.safetensors", tmp_path / "raw", "cifar10", "test")
    assert not harm.exists() and not (tmp_path / "x.safetensors").exists()


def test_arrays_and_labels_pass():
    content = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "x": b"\xff"}
    for protocol in range(pickle.HIGHEST_PROTOCOL):
        pickles.vet(pickle.dumps(content, protocol=protocol), "batch")
    # The form of the official batches: protocol 2, numpy.core.
    text = pickle.dumps({"data": np.arange(4, dtype=np.uint8)}, protocol=2)
    old = text.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in old
    pickles.vet(old, "batch")


UNFIT = [b"", b"\x80", b"<html>", b"\x80\x04K", pickle.dumps(os.getcwd), b"cos\nsystem\n(S'x'\ntR."]


@pytest.mark.parametrize("content", UNFIT)
def test_what_is_no_plain_pickle_is_refused(content):
    with pytest.raises(pickle.UnpicklingError, match=r"batch is (refused|no whole pickle)"):
        pickles.vet(content, "batch")


FIELDS = Config.model_fields.items()
SECTIONS = [name for name, field in FIELDS if str(field.annotation).startswith("dict[")]
assert {"targets", "models", "attacks", "experiments", "scales", "audit"} <= set(SECTIONS)
assert len(SECTIONS) == 13
OUTSIDE = ["../../x", "/etc/x", "a{b}", "a\n", "..", "", "-rf"]


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("word", OUTSIDE)
def test_no_id_leads_elsewhere(section, word):
    entries = dict(RAW.get(section, {}))
    entries[word] = next(iter(entries.values()))
    with refused(f"config.yaml: {section}: {word!r} is not an id; use", kind=ConfigError):
        loader.load({**RAW, section: entries})


@pytest.mark.parametrize("key", ["targets", "models", "defences", "attacks", "training", "server"])
@pytest.mark.parametrize("word", OUTSIDE[:3])
def test_no_reference_leads_elsewhere(key, word):
    many = isinstance(RAW["experiments"]["copa_pair"].get(key), list)
    with refused("is not an id", kind=ConfigError):
        loader.load(changed(RAW, f"experiments.copa_pair.{key}", [word] if many else word))


def test_attacks_name_others_by_ids_alone():
    """Keys of attacks that become paths: their types take ids."""
    members = [registry.class_of("attacks", method) for method in registry.modules("attacks")]
    keys = ("of", "own_images", "generator")
    found = [(one, key) for one in members for key in keys if key in one.model_fields]
    assert len(found) >= 5
    for member, key in found:
        assert ID_PATTERN in str(member.model_json_schema()["properties"][key]), key


PLACES = [
    ("root", "a{b}", "braces are wildcards"),
    ("root", "a\nb", "line ends"),
    ("imagenet", "{dataset}", "braces are wildcards"),
    ("mirrors", {"cifar10": "file:///etc"}, "http:// or https://"),
    ("mirrors", {"cifar10": "ftp://host/x"}, "http:// or https://"),
    ("mirrors", {"lpips": "/etc"}, "http:// or https://"),
]


@pytest.mark.parametrize(("key", "value", "words"), PLACES)
def test_folders_and_addresses_of_config(key, value, words):
    with refused(f"config.yaml: data.{key}", words, kind=ConfigError):
        loader.load(changed(RAW, f"data.{key}", value))
    fine = {"root": "../my data", "imagenet": "/far/away", "mirrors": {"mnist": "http://x/y"}}
    assert loader.load({**RAW, "data": fine}).data.root == "../my data"


@pytest.mark.parametrize("root", ["..", "../..", "../x/..", "/", "/tmp/../etc", "."])
def test_no_sidecar_lies_outside_its_folder(root, tmp_path, monkeypatch):
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    place = job_records.path_of(f"{root}/cifar10-test.safetensors")
    assert os.path.normpath(place).startswith("results/provenance/")


def test_every_download_has_a_checksum():
    files = [f for name in ("mnist", "cifar10", "cifar100") for f in official.remote_files(name)]
    files += [network.remote(None) for network in backbones.BACKBONES.values()]
    assert len(files) == 9
    for file in files:
        assert len(file.digest) == 32 if file.algorithm == "md5" else len(file.digest) >= 8
        # One of MNIST's addresses has no TLS; the checksum is what counts.
        assert all(url.startswith(("https://", "http://yann.lecun.com/")) for url in file.urls)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "device", "absolute"])
def test_an_archive_s_links_lead_nowhere(tmp_path, kind):
    (tmp_path / "secret.png").write_bytes(b"secret")
    archive = tmp_path / "own.tar"
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo(f"{tmp_path}/" * (kind == "absolute") + "a/escaped.png")
        kinds = {"symlink": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE}
        entry.type = (kinds | {"device": tarfile.CHRTYPE}).get(kind, tarfile.REGTYPE)
        entry.linkname = str(tmp_path / "secret.png")
        tar.addfile(entry)
    with refused():
        own_folder.read(archive, "imagenet", "val")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.tar", "secret.png"]


def test_the_code_calls_nothing_that_runs_what_it_reads():
    forbidden = {"pickle.load", "pickle.loads", "marshal.loads", "joblib.load", "eval", "exec"}
    forbidden |= {"yaml.load", "yaml.unsafe_load", "os.system", "os.popen", "shutil.unpack_archive"}
    forbidden |= {"tar.extractall", "tar.extract", "zipped.extractall", "zipped.extract"}
    loads, runs = 0, []
    for path in CODE:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert name not in forbidden, f"{path}: {name}"
            assert keywords.get("allow_pickle") in (None, "False"), path
            assert keywords.get("shell") in (None, "False"), path
            if name == "torch.load":
                loads += 1
                assert keywords["weights_only"] == "True", path
            if name.endswith("exec_module"):
                runs.append(path.name)
    assert loads == 4
    assert runs == ["source.py"], "the file of a network under audit alone, whose owner names it"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_files_are_readable_as_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        with atomic(tmp_path / "a.txt") as temporary:
            temporary.write_text("x")
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        write_json(tmp_path / "b.json", {})
    finally:
        os.umask(before)
    for name in ("a.txt", "b.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask
