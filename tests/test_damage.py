"""Damaged artifacts: one sentence that names the file and says what to do, or the same result."""

import json
import re
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from artifact_files import KIND, LOCKED, READERS, make, same
from chains import chain, conv
from conftest import sentence
from gradleak.errors import GradleakError
from gradleak.models.initial import initial_weights, parameter_shapes
from gradleak.runtime.artifacts import METADATA_KEY, read_tensors, write_tensors

NORMED = chain(conv(2, 3, padding=1, bias=True, norm="batch"), conv(2, 3, padding=1, skip=1))


def readers(*but):
    return pytest.mark.parametrize("name", [name for name in READERS if name not in but])


def said(name, paths):
    return sentence(GradleakError, READERS[name], paths)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    paths = make(tmp_path_factory.mktemp("whole"))
    return paths, {name: read(paths) for name, read in READERS.items()}


@pytest.fixture
def copied(whole, tmp_path):
    """Undamaged files, but a copy of the one that a reader reads."""

    def copy(name):
        kind = KIND.get(name, name)
        source = Path(whole[0][kind])
        path = Path(shutil.copy(source, tmp_path / source.name))
        if Path(f"{source}.sha256").exists():
            shutil.copy(f"{source}.sha256", tmp_path)
        return whole[0] | {kind: str(path)}, path

    return copy


def refused(whole, name, paths, path):
    """Read a damaged file: whether it was refused as it should be, otherwise all is as before."""
    try:
        found = READERS[name](paths)
    except GradleakError as error:
        text = str(error)
        assert "\n" not in text and str(path) in text
        assert re.search("delete it|ask Snakemake for it|give one of", text), text
        return True
    assert same(whole[1][name], found)
    return False


def test_shapes_are_those_of_the_weights_that_are_drawn():
    for network in (LOCKED, NORMED):
        drawn = initial_weights(network, 0)
        assert parameter_shapes(network) == {name: value.shape for name, value in drawn.items()}


@pytest.mark.parametrize("damage", ["empty", "half", "cut", "a folder", "gone"])
@readers()
def test_a_file_that_is_not_whole_is_named(whole, copied, name, damage):
    paths, path = copied(name)
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
        assert "is a folder" in said(name, paths)
    elif damage != "gone":
        path.write_bytes(content[: {"empty": 0, "half": len(content) // 2, "cut": -1}[damage]])
    assert refused(whole, name, paths, path)


@readers()
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bit=st.integers(0, 2**30), header=st.booleans())
def test_a_flipped_bit_changes_nothing_or_is_told(whole, copied, name, bit, header):
    """In the header of a file of arrays, or anywhere; of some arrays a reader reads a part."""
    paths, path = copied(name)
    content = bytearray(path.read_bytes())
    end = 8 + struct.unpack("<Q", content[:8])[0] if name != "scores" else len(content)
    bit %= 8 * (end if header or name == "stored" else len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    refused(whole, name, paths, path)


def rewritten(path, change):
    """Change arrays and metadata of a file, its checksums left as they are."""
    with safe_open(path, framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        text = file.metadata()[METADATA_KEY]
    text = change(tensors, text) or text
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path, {METADATA_KEY: text})


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"a": 1} x', "\x00", "{" * 9999])
@readers("scores")
def test_metadata_that_are_no_record_are_named(whole, copied, name, text):
    paths, path = copied(name)
    rewritten(path, lambda tensors, old: text)
    assert refused(whole, name, paths, path)


@readers("scores", "stored")
def test_a_missing_array_is_named(whole, copied, name):
    for key in read_tensors(whole[0][name])[0]:
        paths, path = copied(name)
        rewritten(path, lambda tensors, text, key=key: tensors.pop(key) is None)
        assert refused(whole, name, paths, path)
        assert name == "dataset" or f"'{key}' is missing" in said(name, paths)


def test_numbers_that_changed_are_told_of_metadata_too(copied):
    paths, path = copied("targets")
    rewritten(path, lambda tensors, text: text.replace('"offset": -0.5', '"offset": -0.4'))
    assert "its metadata differ from what was written" in said("targets", paths)


# --- Files that are whole, but hold something else: of other code, or written by hand -------------


def remade(path, change):
    """Change arrays and metadata of a file, and write it as this pipeline does."""
    tensors, metadata = read_tensors(path)
    change(tensors, metadata)
    write_tensors(path, tensors, metadata)


# Nothing depends on these.
UNUSED = "provenance training initialisation unusable fingerprints mode labels precision lock"


@readers("scores", "dataset")
def test_a_key_that_is_missing_or_of_another_type_is_named(whole, copied, name):
    for key in sorted(read_tensors(whole[0][KIND.get(name, name)])[1].keys() - set(UNUSED.split())):
        paths, path = copied(name)
        remade(path, lambda tensors, metadata, key=key: metadata.pop(key))
        assert refused(whole, name, paths, path)
        for value in ("word", -1, [1], {"a": 1}):
            paths, path = copied(name)
            remade(path, lambda _, metadata, key=key, value=value: metadata.update({key: value}))
            with suppress(GradleakError):  # A value of the right type is read as it stands.
                READERS[name](paths)


@readers("scores", "dataset", "stored")
def test_arrays_of_another_shape_or_type_are_named(whole, copied, name):
    changes = {
        "another dimension": lambda array: array[None],
        "one value": lambda array: array.reshape(-1)[:1],
        "nothing": lambda array: array[:0],
        "half precision": lambda array: array.astype(np.float16),
        "whole numbers": lambda array: np.zeros(array.shape, np.int8),
    }
    for key, array in read_tensors(whole[0][name])[0].items():
        for what, change in changes.items():
            changed = change(array) if array.ndim or what == "another dimension" else array[None]
            if (changed.shape, changed.dtype) == (array.shape, array.dtype):
                continue
            paths, path = copied(name)
            remade(path, lambda tensors, _, key=key, new=changed: tensors.update({key: new}))
            assert refused(whole, name, paths, path), (key, what)


def test_an_answer_that_is_ok_has_an_image(copied):
    paths, path = copied("reconstruction")

    def change(tensors, metadata):
        place = next(one for one in metadata["runs"] if one["status"] == "ok")
        tensors["net/images"][place["seed"], place["batch"], place["answer"]] = np.nan

    remade(path, change)
    assert "its images hold NaN or infinity" in said("reconstruction", paths)


def test_a_file_without_checksums_is_read(whole, copied):
    """As those are that were written before there were any."""
    paths, path = copied("model")

    def change(tensors, text):
        kept = json.loads(text)
        return json.dumps({key: kept[key] for key in kept if not key.startswith("crc32")})

    rewritten(path, change)
    assert not refused(whole, "model", paths, path)
