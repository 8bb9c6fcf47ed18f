"""Tables: found to be whole when they are read, and of no danger to a spreadsheet."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifact_files import NET, target_set
from chains import fully_connected
from gradleak.analysis.copa_index import COLUMNS as SECURITY
from gradleak.analysis.copa_index import index_table
from gradleak.claims import Evidence
from gradleak.errors import ArtifactError
from gradleak.models.files import ModelFile
from gradleak.models.initial import family_weights
from gradleak.runtime import csv_text
from gradleak.runtime.artifacts import read_csv, write_csv, write_rows

ROWS = [{"model": "a, b", "seed": 0, "value": 1.5}, {"model": "c", "seed": 1, "value": np.nan}]
COLUMNS = ["model", "seed", "value"]


def written(path, check=True):
    write_rows(path, COLUMNS, ROWS, check=check)
    return path


def test_both_writers_give_the_same_bytes_and_readers_get_what_was_written(tmp_path):
    one, two = written(tmp_path / "one.csv"), tmp_path / "two.csv"
    write_csv(two, pd.DataFrame(ROWS), check=True)
    assert one.read_bytes() == two.read_bytes()
    pd.testing.assert_frame_equal(read_csv(one, COLUMNS), pd.DataFrame(ROWS), check_dtype=False)
    # Whoever reads it without us has one more column.
    assert list(pd.read_csv(one).columns) == [*COLUMNS, csv_text.CHECK]
    assert "check" not in written(tmp_path / "plain.csv", check=False).read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "", "it is empty"),
        (lambda text: text[:-1], "it ends within a row"),
        (lambda text: text[: text.index("\n") + 1], "it has no rows"),
        (lambda text: text[: text[:-1].rindex("\n") + 1], "it has 1 rows where 2 were written"),
        (lambda text: text.replace("1.5", "1.6"), "a cell differs"),
        (lambda text: text.replace("value", "valve"), "a cell differs"),
        (lambda text: text.replace("c,1", "c"), "a cell differs"),
        (lambda text: text.replace("\n", "\r\n"), "a cell differs"),
        (lambda text: text + text.splitlines(True)[-1], "it has 3 rows where 2 were written"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, change, words):
    path = written(tmp_path / "x.csv")
    path.write_bytes(change(path.read_text()).encode())
    with pytest.raises(ArtifactError, match=rf"x\.csv is damaged \(.*({words}).*\); delete it"):
        read_csv(path)


UNCHECKED = [
    (b"a,b\n1,2\n3\n", "line 3 has 1 cells where 2 are expected"),
    (b"a,b\n1,2\n3,4,5\n", "line 3 has 3 cells"),
    (b"a,b\n", "it has no rows"),
    (b"\n", "it is empty"),
    (b"a,b\n1,\xff\n", "utf-8"),
    (b"a\n1\n", "it has no column 'b'"),
]


@pytest.mark.parametrize(("content", "words"), UNCHECKED)
def test_a_table_without_a_check_is_read_by_its_form(tmp_path, content, words):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"x\.csv is damaged \(.*{words}"):
        read_csv(path, ["b"])


def test_a_table_that_was_written_without_rows_is_whole(tmp_path):
    """Ranks of a network without convolutions: the table has one row for each of them."""
    chain = fully_connected(3, side=8)
    models = ModelFile((chain,), family_weights((chain,), 1))
    path, other = tmp_path / "x.csv", tmp_path / "other.csv"
    write_csv(path, index_table(models, target_set(), seeds=1), check=True)
    write_rows(other, SECURITY, [], check=True)
    assert path.read_bytes() == other.read_bytes()
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


# --- Formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("http://x")', "+1+1", "-2+3|cmd", "@SUM(A1)", "\t=1", "\r=1"]
)
def test_text_that_a_spreadsheet_would_run_is_quoted_and_read_back(tmp_path, text):
    rows = [{"name": text, "value": -1.5}, {"name": "plain", "value": 2.0}]
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    write_rows(one, ["name", "value"], rows)
    write_csv(two, pd.DataFrame(rows))
    assert one.read_bytes() == two.read_bytes()
    raw = pd.read_csv(one)
    assert not raw["name"][0].startswith(csv_text.FORMULA) and list(raw["value"]) == [-1.5, 2.0]
    assert list(read_csv(one)["name"]) == [text.replace("\r", " "), "plain"]


@pytest.mark.parametrize("text", ["-1.5", "+3", "-1e-9", "-inf", "", "a=b", "'quoted", "x-1"])
def test_numbers_and_other_text_stay_as_they_are(text):
    assert csv_text.as_text(text) is text and csv_text.as_text(-1.5) == -1.5


@given(st.text(alphabet=st.characters(exclude_characters="\r\n", codec="utf-8")))
def test_text_comes_back(text):
    cell = csv_text.as_text(text)
    assert not cell.startswith(csv_text.FORMULA) or csv_text._is_number(cell)
    # Text of one's own that begins with a quote before a formula loses it.
    assert csv_text.as_written(cell) == text or text.startswith("'")


def test_a_type_of_column_does_not_change_by_what_stands_in_another(tmp_path):
    frame = pd.DataFrame({"a": pd.Series([1.0, 2.5], dtype=object), "b": ["=x", "y"]})
    write_csv(tmp_path / "x.csv", frame)
    assert (tmp_path / "x.csv").read_text() == "a,b\n1.0,'=x\n2.5,y\n"
