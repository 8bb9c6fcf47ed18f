"""The rules for data sets, in a small workflow of their own."""

import re

import numpy as np
import pytest
from safetensors.numpy import save_file

import rule_trees
from gradleak.data import arrays, catalogue
from settings_files import whole

USE = """
rule use:
    input: "data/cifar10-train.safetensors", "data/cifar10-test.safetensors"
    output: "used.txt"
    shell: "touch {output}"
"""


def run(folder, *targets, mirrors=None, imagenet=None):
    settings = whole()
    settings["data"] = {"root": "data", "mirrors": mirrors or {}, "imagenet": imagenet}
    rule_trees.build(folder, ("data",), settings, USE)
    return rule_trees.run(folder, *targets)


def jobs(done):
    """Number of jobs of each rule, from the table that a dry run prints."""
    return {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", done.stdout, re.MULTILINE)}


def by_hand(folder, dataset, split):
    shape = catalogue.info(dataset).shape
    path = folder / "data" / f"{dataset}-{split}.safetensors"
    path.parent.mkdir(exist_ok=True)
    tensors = {"images": np.zeros((2, *shape), np.uint8), "labels": np.zeros(2, np.int64)}
    save_file(tensors, path, metadata={"dataset": dataset, "split": split})


def test_exactly_one_rule_makes_each_data_set(tmp_path):
    files = [f"data/{d}-{s}.safetensors" for d, i in catalogue.CATALOGUE.items() for s in i.splits]
    done = run(tmp_path, "--dry-run", *files)
    assert done.returncode == 0, done.stdout
    expected = {"embedded_dataset": 7, "download_dataset": 3, "unpack_dataset": 6}
    assert jobs(done) == expected | {"import_imagenet": 1, "total": 17}


@pytest.mark.parametrize("name", ["imagenet-train", "xmnist-test"])
def test_no_rule_makes_what_the_catalogue_lacks(tmp_path, name):
    done = run(tmp_path, "--dry-run", f"data/{name}.safetensors")
    assert done.returncode != 0
    assert f"gradleak: No rule makes 'data/{name}.safetensors'" in done.stdout


def test_files_put_there_by_hand_are_sources_and_their_siblings_are_not(tmp_path):
    by_hand(tmp_path, "cifar10", "train")
    done = run(tmp_path, "--dry-run", "--forceall", "used.txt")
    assert jobs(done) == {"use": 1, "unpack_dataset": 1, "download_dataset": 1, "total": 3}
    assert "Unpack cifar10-test" in done.stdout and "cifar10-train" not in done.stdout


def test_embedded_arrays_are_made_once_and_not_again(tmp_path):
    target = "data/digits-test.safetensors"
    done = run(tmp_path, target)
    assert done.returncode == 0, done.stdout
    assert len(arrays.load(tmp_path / target, "digits", "test")) == 360
    again = run(tmp_path, target)
    assert "Nothing to be done" in again.stdout


def test_a_failed_download_keeps_its_part_and_says_what_to_do(tmp_path):
    part = tmp_path / "data" / "raw" / "cifar10" / "cifar-10-python.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    done = run(
        tmp_path, "data/cifar10-test.safetensors", mirrors={"cifar10": "http://127.0.0.1:9/none"}
    )
    assert done.returncode != 0
    assert "gradleak: Cannot download cifar-10-python.tar.gz" in done.stdout
    assert part.read_bytes() == b"half"
    assert sorted(path.name for path in part.parent.iterdir()) == [part.name]


@pytest.mark.parametrize("imagenet", [None, "absent"])
def test_imagenet_without_a_folder_says_what_to_do(tmp_path, imagenet):
    done = run(tmp_path, "data/imagenet-val.safetensors", imagenet=imagenet)
    assert done.returncode != 0
    assert "gradleak: data.imagenet" in done.stdout
    assert not (tmp_path / "data" / "imagenet-val.safetensors").exists()
