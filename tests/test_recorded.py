"""A recorded run is judged again from what the record keeps, without running anything."""

import json
import re
import shutil

import pandas as pd
import pytest

from claims_synthetic import FILE, ROOT, changed, copa_scores, index_rows, security_rows
from conftest import sentence
from gradleak.claims import recorded, tally
from gradleak.claims.outcome import VERDICTS
from gradleak.claims.statistics import against_words
from gradleak.errors import ArtifactError
from gradleak.runtime.zipped import write_zip

CASE = {"images": "real", "scale": "laptop"}
ONE = "copa.table2.fig1.v1.truck.copa.mse"


@pytest.fixture
def papers(tmp_path):
    (tmp_path / "papers/copa").mkdir(parents=True)
    for name in ("claims.yaml", "explanations.yaml"):
        shutil.copy(FILE.with_name(name), tmp_path / "papers/copa" / name)
    return tmp_path / "papers"


def record(folder, scores):
    """A record of COPA's runs, with verdicts as they come out."""
    place = folder / "record/copa"
    place.mkdir(parents=True)
    files = {"scores/real-laptop/copa_pair/a": scores}
    files["security/real-laptop/copa_pair/b"] = security_rows()
    members = {
        f"results/{name}.csv": pd.DataFrame(rows).to_csv(index=False).encode()
        for name, rows in files.items()
    }
    write_zip(place / recorded.EVIDENCE, members)
    pd.DataFrame(index_rows()).to_csv(place / "copa_index.csv", index=False)
    # Another family of networks, which is not pooled with these.
    other = pd.DataFrame(index_rows()).drop(columns=["mse_rgap", "expansion"])
    other.to_csv(place / "copa_layer_index.csv", index=False)
    (place / recorded.RUN).write_text(json.dumps(CASE))
    made = {**dict.fromkeys(recorded.TOOK, 1), "artifact": "figures/a.pdf", "rule": "figure"}
    pd.DataFrame([{**made, "cpu_seconds": 60}]).to_csv(place / recorded.ARTIFACTS, index=False)
    return folder / "record"


def run(folder, papers, *more):
    return recorded.main([str(folder), "--papers", str(papers), *more])


def test_a_record_is_judged_again_and_says_what_changed(tmp_path, papers, capsys):
    folder = record(tmp_path, copa_scores())
    assert run(folder, papers, "--write") == 0
    rows = pd.read_csv(folder / "copa/claims.csv").set_index("id")
    ours = pd.read_csv(folder / "copa/claims_ours.csv")
    parts = pd.read_csv(folder / "copa/claims_parts.csv")
    assert set(rows.whose) == set(parts.whose) == {"paper"} and set(ours.whose) == {"ours"}
    assert set(parts.part_of) <= set(rows.index) and rows.part_of.isna().all()
    assert rows.loc[ONE, "verdict"] == "reproduced" and rows.loc[ONE, "evidence"] == "copa_pair"
    counts = pd.read_csv(folder / "summary.csv").set_index("whose")
    assert counts.loc["paper", "claims"] == len(rows) and counts.loc["ours", "claims"] == len(ours)
    assert list(counts.loc["paper", ["figures", "jobs", "cpu_minutes"]]) == [1, 1, 1]
    assert counts.loc["paper", "tests"] >= counts.loc["paper", "hold"] > 0
    capsys.readouterr()
    assert run(folder, papers) == 0
    # Another tolerance gives another verdict, which is named and not written.
    text = (papers / "copa/claims.yaml").read_text()
    changed_text = text.replace("[0.0512, 61.0389,", "[0.9512, 61.0389,")
    (papers / "copa/claims.yaml").write_text(changed_text)
    assert run(folder, papers) == 1
    assert f"{ONE}: recorded as reproduced, now exceeds" in capsys.readouterr().out
    assert pd.read_csv(folder / "copa/claims.csv").set_index("id").loc[ONE, "verdict"] == (
        "reproduced"
    )


def test_scores_in_the_record_decide(tmp_path, papers):
    where = {"model": "cnn3_v1_tanh", "attack": "copa", "metric": "mse"}
    folder = record(tmp_path, changed(copa_scores(), where, times=100.0))
    judged = recorded.judge(folder / "copa", papers / "copa/claims.yaml").set_index("id")
    assert judged.loc[ONE, "verdict"] == "differs"


def add_part(folder, scores, scale="night", name="copa_pair"):
    """Scores of an experiment at a larger scale, beside a record."""
    place = folder / "copa" / recorded.PARTS / name
    place.mkdir(parents=True)
    member = f"results/scores/real-{scale}/copa_pair/{name}.csv"
    write_zip(
        place / recorded.EVIDENCE, {member: pd.DataFrame(scores).to_csv(index=False).encode()}
    )
    (place / recorded.RUN).write_text(json.dumps({**CASE, "scale": scale}))
    made = {**dict.fromkeys(recorded.TOOK, 2), "artifact": "results/b.csv", "rule": "score"}
    pd.DataFrame([{**made, "cpu_seconds": 120}]).to_csv(place / recorded.ARTIFACTS, index=False)


def test_a_part_at_a_larger_scale_judges_what_it_covers_and_no_scales_are_mixed(
    tmp_path, papers, capsys
):
    folder = record(tmp_path, copa_scores())
    (folder / "copa/copa_table2.csv").write_text("of,yesterday\n1,2\n")
    assert run(folder, papers, "--write") == 0
    before = pd.read_csv(folder / "copa/claims.csv").set_index("id")
    small = pd.read_csv(folder / "laptop.csv").set_index("id")
    where = {"model": "cnn3_v1_tanh", "attack": "copa", "metric": "mse"}
    larger = pd.DataFrame(changed(copa_scores(), where, times=100.0))
    add_part(folder, larger[larger["attack"] == "copa"])
    assert run(folder, papers, "--write") == 0
    frames = [pd.read_csv(folder / "copa" / name) for name in recorded.FILES.values()]
    after = pd.concat(frames).set_index("id")
    assert after.loc[ONE, ["verdict", "scale"]].to_list() == ["differs", "night"]
    assert set(after.scale) == {"laptop", "night"}
    # A sentence about both attacks is judged where both are.
    both = [name for name, row in before.iterrows() if "R-GAP" in str(row.statement) and row.p > 0]
    assert both and set(after.loc[both, "scale"]) == {"laptop"}
    assert list(after.loc[both, "verdict"]) == list(before.loc[both, "verdict"])
    # Numbers of the smaller scale stay where they are kept, and the paper's table is today's.
    pd.testing.assert_frame_equal(pd.read_csv(folder / "laptop.csv").set_index("id"), small)
    table = pd.read_csv(folder / "copa/copa_table2.csv")
    assert set(table.scale) == {"laptop", "night"}
    counts = pd.read_csv(folder / "summary.csv").set_index("whose")
    assert counts.loc["paper", "scale"] == "laptop and night"
    assert list(counts.loc["paper", ["jobs", "cpu_minutes"]]) == [2, 3]
    # Claims of a run are compared with those of its scale.
    made = tmp_path / "results"
    shutil.copytree(folder / "copa", made, ignore=shutil.ignore_patterns("*.zip", "*.json"))
    for name in recorded.FILES.values():
        rows = pd.read_csv(made / name, keep_default_na=False, dtype=str)
        rows[rows.scale == "night"].to_csv(made / name, index=False)
    capsys.readouterr()
    assert run(folder, papers, "--compare", str(made)) == 0
    count = int((after.scale == "night").sum())
    assert capsys.readouterr().out == f"copa: {count} of {count} verdicts as recorded\n"
    part = folder / "copa/parts/copa_pair" / recorded.RUN
    part.write_text(json.dumps({**CASE, "images": "embedded"}))
    assert run(folder, papers) == 2
    assert "is of images: embedded, and the record beside it of" in capsys.readouterr().err
    part.unlink()
    assert run(folder, papers) == 2 and "run.json cannot be read" in capsys.readouterr().err


def test_parts_with_some_attacks_of_an_experiment_count_together(tmp_path, papers, capsys):
    folder, scores = record(tmp_path, copa_scores()), pd.DataFrame(copa_scores())
    add_part(folder, scores)
    whole = recorded.judge(folder / "copa", papers / "copa/claims.yaml")
    shutil.rmtree(folder / "copa" / recorded.PARTS)
    for attack, own in scores.groupby("attack"):
        add_part(folder, own, name=f"copa_pair_{attack}")
    assert len(recorded.parts(folder / "copa")) > 1 and "night" in set(whole.scale)
    again = recorded.judge(folder / "copa", papers / "copa/claims.yaml")
    pd.testing.assert_frame_equal(again, whole)
    place = folder / "copa" / recorded.PARTS
    shutil.copytree(place / f"copa_pair_{attack}", place / "again")
    assert run(folder, papers) == 2
    held = f"results/scores/real-night/copa_pair/copa_pair_{attack}.csv"
    assert f" both hold {held}; take one of them out.\n" in capsys.readouterr().err


def test_a_damaged_record_is_refused_in_one_sentence(tmp_path, papers, capsys):
    folder = record(tmp_path, copa_scores())
    (folder / "copa" / recorded.EVIDENCE).write_bytes(b"no zip")
    said = sentence(ArtifactError, recorded.judge, folder / "copa", papers / "copa/claims.yaml")
    assert "evidence.zip cannot be read" in said
    assert run(folder, papers) == 2
    assert "evidence.zip cannot be read" in capsys.readouterr().err


def test_a_run_is_compared_with_the_record_and_with_the_smaller_table(tmp_path, papers, capsys):
    folder, made = record(tmp_path, copa_scores()), tmp_path / "results"
    assert run(folder, papers, "--write") == 0
    small = pd.read_csv(folder / "laptop.csv").set_index("id")
    claims = pd.read_csv(folder / "copa/claims.csv").set_index("id")
    assert small.loc[ONE, "verdict"] == claims.loc[ONE, "verdict"]
    assert small.loc[ONE, "ours"] == claims.loc[ONE, "ours"]
    shutil.copytree(folder / "copa", made, ignore=shutil.ignore_patterns("*.zip", "*.json"))
    count = len(small)
    assert recorded.compare(made, folder) == [f"copa: {count} of {count} verdicts as recorded"]
    table = pd.read_csv(made / "claims.csv", keep_default_na=False, dtype=str)
    table.loc[table.id == ONE, "verdict"] = "differs"
    other = table[table.id == ONE].assign(id="copa.new")
    table = pd.concat([table.iloc[1:], other, other.assign(id="x.new", paper="x")])
    table.to_csv(made / "claims.csv", index=False)
    # A record at another scale leaves the table of this one as it is.
    (folder / "copa" / recorded.RUN).write_text(json.dumps({**CASE, "scale": "night"}))
    assert run(folder, papers, "--write") == 0
    pd.testing.assert_frame_equal(pd.read_csv(folder / "laptop.csv").set_index("id"), small)
    capsys.readouterr()
    assert run(folder, papers, "--compare", str(made)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"copa: {count - 2} of {count} verdicts as recorded, 1 recorded but not in this run, 1 in "
        "this run but not recorded",
        f"{ONE}: recorded as reproduced, here differs",
    ]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("images", "embedded", "images: embedded at scale: laptop, of which"),
        ("scale", "paper", "recorded are copa (real laptop), and verdicts at scale: laptop."),
        ("verdict", None, "has no column 'verdict'"),
    ],
)
def test_a_run_that_nothing_can_be_compared_with_is_refused(
    column, value, words, tmp_path, papers, capsys
):
    folder, made = record(tmp_path, copa_scores()), tmp_path / "results"
    assert run(folder, papers, "--write") == 0
    made.mkdir()
    for name in recorded.FILES.values():
        frame = pd.read_csv(folder / "copa" / name, keep_default_na=False, dtype=str)
        frame = frame.drop(columns=column) if value is None else frame.assign(**{column: value})
        frame.to_csv(made / name, index=False)
    assert run(folder, papers, "--compare", str(made)) == 2
    assert words in capsys.readouterr().err
    said = sentence(ArtifactError, recorded.compare, folder / "copa", made)
    assert "holds no paper's evidence.zip" in said
    for name in recorded.FILES.values():
        frame = pd.read_csv(folder / "copa" / name, nrows=0).to_csv(made / name, index=False)
    assert "has no claims to compare" in sentence(ArtifactError, recorded.compare, made, folder)


RECORDED = sorted(path.parent.name for path in (ROOT / "docs/results").glob("*/evidence.zip"))


@pytest.mark.parametrize("paper", RECORDED)
def test_the_recorded_verdicts_are_todays(paper):
    """What docs/results says follows from the scores and tables that it keeps."""
    folder = ROOT / "docs/results" / paper
    judged = recorded.judge(folder, ROOT / "papers" / paper / "claims.yaml")
    for kind, name in recorded.FILES.items():
        rows = pd.read_csv(folder / name, keep_default_na=False)
        now = tally.of_kind(judged, kind)
        assert list(rows["id"]) == list(now["id"]), "of today's claims"
        for column in ("verdict", "explanation", "evidence"):
            assert list(rows[column]) == list(now[column])
        numbers = pd.to_numeric(rows["ours"]).to_numpy()
        assert numbers == pytest.approx(now["ours"].to_numpy(), rel=1e-6, nan_ok=True)


def test_the_reason_of_a_failed_test_tells_what_decided_it():
    for path in (ROOT / "docs/results").glob("*/claims*.csv"):
        rows = pd.read_csv(path)
        for row in rows[rows["verdict"] == "differs"].to_dict("records"):
            words = [] if pd.isna(row["p"]) else [against_words(row["p"])]
            # That of a sentence in parts stands before that of its first part which differs.
            found = re.findall(r"p [=<] \S+ against the sentence", row["reason"])
            assert found[:1] == words, row["id"]


@pytest.mark.parametrize("part", sorted((ROOT / "docs/results").glob("*/parts/*")), ids=str)
def test_a_recorded_part_has_tables_or_the_means_of_its_scores(part):
    tables = {path.name for path in part.glob("*.csv")} - {recorded.ARTIFACTS}
    if recorded.MEANS not in tables:
        assert tables and recorded.means_of(part).empty
        return
    assert tables == {recorded.MEANS}
    kept = pd.read_csv(part / recorded.MEANS)
    pd.testing.assert_frame_equal(recorded.means_of(part), kept, check_dtype=False, rtol=1e-6)


def test_the_summary_counts_what_is_recorded():
    assert RECORDED
    rows = recorded.summary(ROOT / "docs/results")
    small = pd.read_csv(ROOT / "docs/results/laptop.csv")
    assert set(small.verdict) <= set(VERDICTS) and not small.id.duplicated().any()
    known = [
        tally.read(ROOT / "docs/results" / p / f) for p in RECORDED for f in recorded.FILES.values()
    ]
    assert set(small.id) <= set(pd.concat(known)["id"]) and set(small.paper) == set(RECORDED)
    kept = pd.read_csv(ROOT / "docs/results/summary.csv")
    pd.testing.assert_frame_equal(rows, kept, check_dtype=False)
