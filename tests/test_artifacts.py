"""Files: whole or not at all, equal bytes for equal inputs, damage named; provenance."""

import os
import sys

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from conftest import PACKAGES, run
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import atomic, read_tensors, write_csv, write_tensors


def test_equal_inputs_give_equal_bytes_whatever_their_order(tmp_path):
    one, two = np.arange(6.0).reshape(2, 3), np.array([1, 2])
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_tensors(first, {"x": one, "y": two}, {"k": 1, "l": [1, "é"], "m": None})
    write_tensors(second, {"y": two, "x": one}, {"m": None, "l": [1, "é"], "k": 1})
    assert first.read_bytes() == second.read_bytes()
    tensors, metadata = read_tensors(first)
    np.testing.assert_array_equal(tensors["x"], one)
    assert metadata == {"k": 1, "l": [1, "é"], "m": None}


def test_a_failed_write_leaves_the_earlier_file_and_no_temporary(tmp_path):
    path = tmp_path / "table.csv"
    write_csv(path, pd.DataFrame({"a": [1.0, np.nan]}))
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == 'a\n1\n""\n'
    assert [f.name for f in tmp_path.iterdir()] == ["table.csv"]


def test_missing_truncated_and_foreign_files_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(ArtifactError, match=r"x\.safetensors is missing"):
        read_tensors(path)
    write_tensors(path, {"x": np.arange(100.0)}, {})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ArtifactError, match=r"x\.safetensors is damaged.*delete it"):
        read_tensors(path)
    save_file({"x": np.zeros(1)}, path)
    with pytest.raises(ArtifactError, match="not made by this pipeline"):
        read_tensors(path)


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"Cannot write .*out\.csv.*choose a folder"):
        write_csv(tmp_path / "file" / "out.csv", pd.DataFrame({"a": [1]}))


FULL = """
import resource, signal, sys
import numpy as np
from gradleak.errors import ArtifactError
from gradleak.runtime.artifacts import write_tensors

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_tensors("x.safetensors", {"x": np.zeros(10**6)}, {})
except ArtifactError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    # A limit on the file's size stands for the end of the disk: the write itself fails.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PACKAGES)}
    done = run(sys.executable, "-c", FULL, cwd=tmp_path, env=environment, check=True)
    assert done.stdout.startswith("Cannot write ") and "free space" in done.stdout
    assert not list(tmp_path.iterdir())
