"""Files: whole or not at all, damage named, equal bytes; tables are no danger to a spreadsheet."""

import os
import sys
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from artifact_files import NET, target_set
from chains import fully_connected
from conftest import PACKAGES, run
from gradleak.analysis.copa_index import COLUMNS as SECURITY
from gradleak.analysis.copa_index import index_table
from gradleak.claims import Evidence
from gradleak.errors import ArtifactError
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights
from gradleak.runtime import artifacts, csv_text
from gradleak.runtime.artifacts import read_csv, read_tensors, write_csv

COLUMNS = ["model", "seed", "value"]
TABLE = pd.DataFrame([("a, b", 0, 1.5), ("c", 1, np.nan)], columns=COLUMNS)


def test_equal_inputs_give_equal_bytes_whatever_their_order(tmp_path):
    one, two = np.arange(6.0).reshape(2, 3), np.array([1, 2])
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    artifacts.write_tensors(first, {"x": one, "y": two}, {"k": 1, "l": [1, "é"], "m": None})
    artifacts.write_tensors(second, {"y": two, "x": one}, {"m": None, "l": [1, "é"], "k": 1})
    assert first.read_bytes() == second.read_bytes()
    tensors, metadata = read_tensors(first)
    np.testing.assert_array_equal(tensors["x"], one)
    assert metadata == {"k": 1, "l": [1, "é"], "m": None}


def test_a_failed_write_leaves_the_earlier_file_and_no_temporary(tmp_path):
    path = tmp_path / "table.csv"
    write_csv(path, pd.DataFrame({"a": [1.0, np.nan]}))
    with pytest.raises(RuntimeError), artifacts.atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == 'a\n1\n""\n'
    assert [f.name for f in tmp_path.iterdir()] == ["table.csv"]


def test_foreign_files_and_unwritable_folders_are_named(tmp_path):
    """`test_damage` has what is missing or not whole."""
    save_file({"x": np.zeros(1)}, tmp_path / "file")
    with pytest.raises(ArtifactError, match="not made by this pipeline"):
        read_tensors(tmp_path / "file")
    with pytest.raises(ArtifactError, match=r"Cannot write .*out\.csv.*choose a folder"):
        write_csv(tmp_path / "file" / "out.csv", TABLE)


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


def written(folder, frame=TABLE, check=True):
    """The file of a table, which is the same by either way of writing it."""
    one, two = folder / "x.csv", folder / "other.csv"
    write_csv(one, frame, check=check)
    artifacts.write_rows(two, list(frame), frame.to_dict("records"), check=check)
    assert one.read_bytes() == two.read_bytes()
    return one


def test_readers_get_what_was_written(tmp_path):
    pd.testing.assert_frame_equal(read_csv(written(tmp_path), COLUMNS), TABLE, check_dtype=False)
    # Whoever reads it without us has one more column.
    assert list(pd.read_csv(tmp_path / "x.csv").columns) == [*COLUMNS, csv_text.CHECK]
    assert "check" not in written(tmp_path, check=False).read_text()
    # A type of column does not change by what stands in another.
    frame = pd.DataFrame({"a": pd.Series([1.0, 2.5], dtype=object), "b": ["=x", "y"]})
    write_csv(tmp_path / "x.csv", frame)
    assert (tmp_path / "x.csv").read_text() == "a,b\n1.0,'=x\n2.5,y\n"


DAMAGES = [
    (lambda text: "", "it is empty"),
    (lambda text: text[:-1], "it ends within a row"),
    (lambda text: text[: text.index("\n") + 1], "it has no rows"),
    (lambda text: text[: text[:-1].rindex("\n") + 1], "it has 1 rows where 2 were written"),
    (lambda text: text.replace("1.5", "1.6"), "a cell differs"),
    (lambda text: text.replace("value", "valve"), "a cell differs"),
    (lambda text: text.replace("c,1", "c"), "a cell differs"),
    (lambda text: text.replace("\n", "\r\n"), "a cell differs"),
    (lambda text: text + text.splitlines(True)[-1], "it has 3 rows where 2 were written"),
    # Of a table without a check the form is read.
    (lambda _: "model,b\n1,2\n3\n", "line 3 has 1 cells where 2 are expected"),
    (lambda _: "model,b\n1,2\n3,4,5\n", "line 3 has 3 cells"),
    (lambda _: "model,b\n", "it has no rows"),
    (lambda _: "\n", "it is empty"),
    (lambda _: "model,b\n1,\udcff\n", "utf-8"),
    (lambda _: "a\n1\n", "it has no column 'model'"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGES)
def test_a_damaged_table_is_named(tmp_path, change, words):
    path = written(tmp_path)
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match=rf"x\.csv is damaged \(.*({words}).*\); delete it"):
        read_csv(path, ["model"])


def test_a_table_that_was_written_without_rows_is_whole(tmp_path):
    """Ranks of a network without convolutions: the table has one row for each of them."""
    chain = fully_connected(3, side=8)
    models = ModelFile((chain,), family_weights((chain,), 1))
    path = written(tmp_path, index_table(models, target_set(), seeds=1))
    assert list(read_csv(path).columns) == SECURITY
    assert Evidence.read(security=[path]).tables["security"].empty
    path.write_text(path.read_text().replace("rank,", ""))
    with pytest.raises(ArtifactError, match=r"x\.csv is damaged \(a cell differs"):
        read_csv(path)


@given(end=st.integers(0, 10**6))
def test_no_part_of_a_table_of_ranks_is_taken_for_the_whole(tmp_path_factory, end):
    """A cut `results/security/*.csv` once gave a smaller n and the same verdict."""
    path = tmp_path_factory.getbasetemp() / "ranks.csv"
    write_csv(path, ranks(), check=True)
    assert set(Evidence.read(security=[path]).tables["security"]["seed"]) == {"0", "1"}
    text = path.read_text()
    path.write_text(text[: end % len(text)])
    with pytest.raises(ArtifactError, match=r"ranks\.csv is damaged \(it .*; delete it and ask"):
        Evidence.read(security=[path])


@cache
def ranks():
    """c(M) of one network under two draws."""
    return index_table(ModelFile((NET,), family_weights([NET], 2)), target_set(), seeds=2)


FORMULAS = ['=HYPERLINK("http://x")', "+1+1", "-2+3|cmd", "@SUM(A1)", "\t=1", "\r=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_a_spreadsheet_would_run_is_quoted_and_read_back(tmp_path, text):
    frame = pd.DataFrame({"name": [text, "plain"], "value": [-1.5, 2.0]})
    raw = pd.read_csv(written(tmp_path, frame, check=False))
    assert not raw["name"][0].startswith(csv_text.FORMULA) and list(raw["value"]) == [-1.5, 2.0]
    assert list(read_csv(tmp_path / "x.csv")["name"]) == [text.replace("\r", " "), "plain"]


@pytest.mark.parametrize("text", ["-1.5", "+3", "-1e-9", "-inf", "", "a=b", "'quoted", "x-1"])
def test_numbers_and_other_text_stay_as_they_are(text):
    assert csv_text.as_text(text) is text and csv_text.as_text(-1.5) == -1.5


@given(st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8")))
def test_text_comes_back(text):
    cell = csv_text.as_text(text)
    assert not cell.startswith(csv_text.FORMULA) or csv_text._is_number(cell)
    # Text of one's own that begins with a quote before a formula loses it.
    assert csv_text.as_written(cell) == text or text.startswith("'")
