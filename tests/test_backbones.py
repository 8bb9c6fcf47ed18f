"""Files of the networks that LPIPS looks through: read, refused, downloaded, made by their rule."""

import hashlib
import io
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision

import rule_trees
from backbone_files import tensors, write
from gradleak.data import backbones
from gradleak.runtime.artifacts import read_tensors
from refusals import refused
from settings_files import whole

NETWORKS = tuple(backbones.BACKBONES)


@pytest.mark.parametrize("network", NETWORKS)
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
    words = backbones.missing("vgg")
    assert "vgg16-397923af.pth" in words and "lpips/vgg.safetensors in data.root" in words
    with refused(tmp_path / "vgg.safetensors", "is missing", "lpips/vgg.safetensors"):
        backbones.read(tmp_path / "vgg.safetensors", "vgg")


class Harm:
    """A pickle that would run code."""

    def __reduce__(self):
        return Path.touch, (Path("harmed"),)


def saved(content, size=None):
    """The first bytes of what PyTorch saves."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()[:size]


OURS, THEIRS, PAGE = "alex.safetensors", "alexnet_features.pth", b"<html>Not found</html>" * 100


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (OURS, lambda: safetensors.torch.save(tensors("alex"))[:5000]),
        (OURS, lambda: PAGE),
        (THEIRS, lambda: PAGE),
        (THEIRS, lambda: pickle.dumps(Harm(), protocol=2)),
        (THEIRS, lambda: saved(tensors("alex"), 100_000)),
        (THEIRS, lambda: saved(torch.zeros(3))),
    ],
)
def test_a_damaged_file_is_refused(name, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(content())
    with refused(path, "AlexNet", "damaged or holds something else", "delete it"):
        backbones.read(path, "alex")
    assert not Path("harmed").exists()


def test_a_file_of_something_else_is_refused(tmp_path):
    path, key, alex = tmp_path / OURS, "features.3.weight", tensors("alex")
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
        assert remote.urls == (weights.url,)
        assert remote.name == weights.url.rpartition("/")[2]
        assert remote.name.endswith(f"-{remote.digest}.pth") and len(remote.digest) == 8
        assert remote.algorithm == "sha256"


@pytest.fixture
def served(server, monkeypatch):
    """A server that has an untrained AlexNet under a name with its checksum."""
    content = saved({**tensors("alex"), "classifier.1.weight": torch.ones(2, 2)})
    name = f"alexnet-owt-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    server.files[name] = content
    own = replace(backbones.BACKBONES["alex"], file=name)
    monkeypatch.setitem(backbones.BACKBONES, "alex", own)
    return server


def test_a_network_from_server_to_safetensors(served, tmp_path):
    path = tmp_path / "lpips" / "alex.safetensors"
    backbones.make(path, "alex", served.url)
    assert [each.name for each in path.parent.iterdir()] == ["alex.safetensors"]
    found, metadata = read_tensors(path)
    assert found.keys() == tensors("alex").keys() == backbones.read(path, "alex").keys()
    name, content = next(iter(served.files.items()))
    sha256 = hashlib.sha256(content).hexdigest()
    assert metadata["provenance"]["sources"] == {name: sha256}
    before = path.read_bytes()
    backbones.make(path, "alex", served.url)
    assert path.read_bytes() == before


@pytest.mark.parametrize("features", [False, True])
def test_a_file_put_there_by_hand_is_taken_and_kept(features, served, tmp_path):
    folder = tmp_path / "lpips"
    folder.mkdir()
    by_hand = folder / backbones.file_names("alex")[2 if features else 1]
    by_hand.write_bytes(next(iter(served.files.values())))
    backbones.make(folder / "alex.safetensors", "alex", served.url)
    assert served.requests == []
    assert sorted(each.name for each in folder.iterdir()) == ["alex.safetensors", by_hand.name]


def test_an_altered_official_file_is_refused(served, tmp_path):
    name, content = next(iter(served.files.items()))
    (tmp_path / name).write_bytes(content[:-1])
    with refused(name, "SHA-256 begins with", "delete it"):
        backbones.make(tmp_path / "alex.safetensors", "alex", served.url)
    (tmp_path / name).unlink()
    served.files[name] = content[:-1]
    with refused(served.url, name, "truncated or altered", "data.mirrors"):
        backbones.make(tmp_path / "alex.safetensors", "alex", served.url)
    assert not (tmp_path / "alex.safetensors").exists()


def test_without_a_server_it_says_where_the_file_belongs(served, tmp_path):
    served.files.clear()
    # And not the arrays, as for a data set.
    with refused(served.url, "HTTP 404", f"or put the file into {tmp_path / 'lpips'} by hand."):
        backbones.make(tmp_path / "lpips" / "alex.safetensors", "alex", served.url)


SCORES = "results/scores/embedded-smoke/{}/cnn3_v1_tanh/none/rgap.csv"


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """The rules up to scores, with one and the same experiment for two papers."""
    folder = tmp_path_factory.mktemp("workflow")
    settings = whole()
    settings["scale"] = "smoke"
    pair = settings["experiments"]["copa_pair"]
    settings["experiments"]["fedkl_pair"] = {**pair, "paper": "fedkl"}
    rule_trees.build(folder, ("data", "models", "training", "attack"), settings)
    return folder


def dry_run(folder, *targets):
    """Networks that would be made, and the inputs of the scores of either paper."""
    done = rule_trees.run(folder, "--dry-run", "--verbose", *targets)
    assert done.returncode == 0, done.stdout
    made = re.findall(r"^lpips_network +(\d+)$", done.stdout, re.MULTILINE)
    jobs = re.findall(r"input: ([^\n]*)\n +output: (\S+)\n", done.stdout)
    inputs = {output: named.split(", ") for named, output in jobs}
    return sum(map(int, made[:1])), *(
        inputs.get(SCORES.format(f"{p}_pair")) for p in ("fedkl", "copa")
    )


def test_what_is_there_is_an_input_of_fedkls_scores_and_made_by_no_rule(workflow):
    scores = [SCORES.format(f"{paper}_pair") for paper in ("fedkl", "copa")]
    made = [f"data/lpips/{network}.safetensors" for network in NETWORKS]
    number, fedkl, copa = dry_run(workflow, *made, *scores)
    assert number == 3
    weights = ["data/lpips/alex.safetensors", "data/lpips/vgg16-397923af.pth"]
    (workflow / "data" / "lpips").mkdir(parents=True)
    for name in weights:
        (workflow / name).write_bytes(b"")
    assert dry_run(workflow, *scores) == (0, [*fedkl, *weights], copa)
    assert dry_run(workflow, "lpips")[0] == 2
