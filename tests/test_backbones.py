"""Files of the networks that LPIPS looks through: read, refused, downloaded, made by their rule."""

import hashlib
import io
import pickle
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision

import faults
from backbone_files import tensors, write
from conftest import refused
from gradleak.data import backbones
from gradleak.runtime.artifacts import read_tensors
from pipeline_trees import build, whole


@pytest.mark.parametrize("network", backbones.BACKBONES)
def test_torchvisions_files_and_ours_are_read_alike(network, tmp_path):
    expected = tensors(network)
    (ours,) = write(tmp_path, network)
    theirs, alone = (tmp_path / name for name in backbones.file_names(network)[1:])
    torch.save({**expected, "classifier.1.weight": torch.ones(2, 2)}, theirs)
    torch.save(expected, alone)
    for path in (ours, theirs, alone):
        found = backbones.read(path, network)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key].numpy()) for key in expected)


def test_files_are_found_under_their_names_ours_first(tmp_path):
    folder = tmp_path / "lpips"
    assert backbones.present(folder) == []
    write(folder, "alex")
    for name in ("alexnet-owt-7be5be79.pth", "squeezenet1_1_features.pth", "alex.pth"):
        (folder / name).write_bytes(b"")
    found = backbones.present(folder)
    ours = {"alex": "alex.safetensors", "squeeze": "squeezenet1_1_features.pth"}
    assert found == [str(folder / name) for name in ours.values()]
    assert backbones.by_network(found) == {k: str(folder / name) for k, name in ours.items()}


def test_what_is_missing_says_how_to_get_it(tmp_path):
    words, path = backbones.missing("vgg"), tmp_path / "vgg.safetensors"
    assert "vgg16-397923af.pth" in words and "lpips/vgg.safetensors in data.root" in words
    with refused(path, "is missing", "lpips/vgg.safetensors"):
        backbones.read(path, "vgg")


class Harm:
    """A pickle that would run code."""

    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


OURS, THEIRS, PAGE = "alex.safetensors", "alexnet_features.pth", b"<html>Not found</html>" * 100


def test_a_damaged_file_or_one_of_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key, alex = "features.3.weight", tensors("alex")
    for name, content in (
        (OURS, safetensors.torch.save(alex)[:5000]),
        (OURS, PAGE),
        (THEIRS, PAGE),
        (THEIRS, pickle.dumps(Harm(), protocol=2)),
        (THEIRS, saved(alex)[:100_000]),
        (THEIRS, saved(torch.zeros(3))),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with refused(path, "AlexNet", "damaged or holds something else", "delete it"):
            backbones.read(path, "alex")
        assert not Path("harmed").exists()
    path = tmp_path / OURS
    for change, words in (
        (tensors("vgg"), "features.0.weight has shape (64, 3, 3, 3) where (64, 3, 11, 11)"),
        ({key: alex[key].half()}, f"{key} has type float16 where float32"),
        ({key: alex[key] * float("nan")}, f"{key} holds NaN"),
        ({key: None}, f"{key} is missing"),
    ):
        weights = {name: value for name, value in (alex | change).items() if value is not None}
        safetensors.torch.save_file(weights, path)
        with refused(path, "does not hold the weights of AlexNet", words, "delete it"):
            backbones.read(path, "alex")


def test_files_and_checksums_are_torchvisions():
    for network, kind in (("alex", "AlexNet"), ("squeeze", "SqueezeNet1_1"), ("vgg", "VGG16")):
        weights = getattr(torchvision.models, f"{kind}_Weights").IMAGENET1K_V1
        remote = backbones.BACKBONES[network].remote()
        assert (remote.urls, remote.algorithm) == ((weights.url,), "sha256")
        assert remote.name == weights.url.rpartition("/")[2]
        assert remote.name.endswith(f"-{remote.digest}.pth") and len(remote.digest) == 8


@pytest.fixture
def served(server, monkeypatch, tmp_path):
    """An untrained AlexNet on a server under a name with its checksum; a way to make ours."""
    content = saved({**tensors("alex"), "classifier.1.weight": torch.ones(2, 2)})
    sha256 = hashlib.sha256(content).hexdigest()
    server.name, server.content, server.sha256 = f"alexnet-{sha256[:8]}.pth", content, sha256
    server.files[server.name] = content
    own = replace(backbones.BACKBONES["alex"], file=server.name)
    monkeypatch.setitem(backbones.BACKBONES, "alex", own)
    server.path = tmp_path / "lpips" / OURS
    server.path.parent.mkdir()
    server.make = partial(backbones.make, server.path, "alex", server.url)
    return server


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def test_a_network_from_server_to_safetensors(served):
    served.path.parent.rmdir()
    served.make()
    assert names(served.path.parent) == [OURS]
    found, metadata = read_tensors(served.path)
    assert found.keys() == tensors("alex").keys() == backbones.read(served.path, "alex").keys()
    assert metadata["provenance"]["sources"] == {served.name: served.sha256}
    before = served.path.read_bytes()
    served.make()
    assert served.path.read_bytes() == before


@pytest.mark.parametrize("kind", [1, 2])
def test_a_file_put_there_by_hand_is_taken_and_kept(kind, served):
    by_hand = served.path.with_name(backbones.file_names("alex")[kind])
    by_hand.write_bytes(served.content)
    served.make()
    assert served.requests == []
    assert names(served.path.parent) == [OURS, by_hand.name]


def test_an_altered_or_absent_official_file_is_refused(served):
    there = served.path.with_name(served.name)
    there.write_bytes(served.content[:-1])
    with refused(served.name, "SHA-256 begins with", "delete it"):
        served.make()
    there.unlink()
    served.files[served.name] = served.content[:-1]
    with refused(served.url, served.name, "truncated or altered", "data.mirrors"):
        served.make()
    served.files.clear()
    # And not the arrays, as for a data set.
    with refused(served.url, "HTTP 404", f"or put the file into {served.path.parent} by hand."):
        served.make()
    assert not served.path.exists()


PAIRS = "results/scores/embedded-smoke/{}_pair/cnn3_v1_tanh/none/rgap.csv"
SCORES = [PAIRS.format(paper) for paper in ("fedkl", "copa")]


def dry_run(folder, *targets):
    """Networks that would be made, and the inputs of the scores of either paper."""
    done = faults.run(folder, "--cores", 1, "--dry-run", "--verbose", *targets)
    assert done.returncode == 0, done.stdout
    made = re.findall(r"^lpips_network +(\d+)$", done.stdout, re.MULTILINE)
    jobs = re.findall(r"input: ([^\n]*)\n +output: (\S+)\n", done.stdout)
    inputs = {output: named.split(", ") for named, output in jobs}
    return sum(map(int, made[:1])), *map(inputs.get, SCORES)


def test_what_is_there_is_an_input_of_fedkls_scores_and_made_by_no_rule(tmp_path):
    settings = whole() | {"scale": "smoke"}
    pair = settings["experiments"]["copa_pair"]
    settings["experiments"]["fedkl_pair"] = {**pair, "paper": "fedkl"}
    build(tmp_path, ("data", "models", "training", "attack"), settings)
    made = [f"data/lpips/{network}.safetensors" for network in backbones.BACKBONES]
    number, fedkl, copa = dry_run(tmp_path, *made, *SCORES)
    assert number == 3
    weights = ["data/lpips/alex.safetensors", "data/lpips/vgg16-397923af.pth"]
    (tmp_path / "data" / "lpips").mkdir(parents=True)
    for name in weights:
        (tmp_path / name).write_bytes(b"")
    assert dry_run(tmp_path, *SCORES) == (0, [*fedkl, *weights], copa)
    assert dry_run(tmp_path, "lpips")[0] == 2
