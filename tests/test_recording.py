"""results/record: tables, claims, checksums and times; nothing that nobody could make again."""

import json
from pathlib import Path

import pandas as pd
import pytest

from conftest import ROOT
from gradleak import claims
from gradleak.claims.outcome import VERDICTS
from gradleak.errors import ArtifactError
from gradleak.reporting import provenance_record, recording
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import write_json
from provenance_files import LAYOUT, SOURCES, lay_out, made, settings

CLAIMS = "id,paper,verdict\na.1,mnist,reproduced\na.2,mnist,differs\nb.1,imagenet,not judged\n"


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = lay_out()
    made("results/claims.csv", "claims_table", content=CLAIMS)
    return found


def record(results):
    config = settings(images="real", scale="smoke")
    told = provenance_record.make(results, config, LAYOUT, **SOURCES)
    write_json(Path("results/provenance.json"), told)
    tables = [path for path in results if "tables" in path]
    recording.write("record", "results/provenance.json", "results/claims.csv", tables)
    return Path("record")


def test_tables_and_claims_are_kept_as_they_are(results):
    folder = record(results)
    assert (folder / "mnist/mnist.csv").read_text() == "content of results/tables/mnist.csv"
    own = pd.read_csv(folder / "mnist/claims.csv")
    assert list(own.id) == ["a.1", "a.2"]
    assert not list(folder.rglob("*.p*"))


def test_the_summary_counts_results_verdicts_and_jobs(results):
    rows = pd.read_csv(record(results) / "summary.csv").set_index("paper")
    assert list(rows.index) == ["mnist", "imagenet"]
    assert list(rows.loc["mnist", ["figures", "tables", "claims"]]) == [3, 1, 2]
    assert rows.loc["mnist", "differs"] == rows.loc["imagenet", "not judged"] == 1
    assert rows[["reproduced", "exceeds", "differs", "refuted", "not judged"]].sum().sum() == 3


def test_artifacts_have_their_checksum_code_and_time(results):
    folder = record(results)
    rows = pd.read_csv(folder / "mnist/artifacts.csv").set_index("artifact")
    score = rows.loc["results/scores/real-smoke/mnist.csv"]
    assert score.sha256 == job_records.checksum("results/scores/real-smoke/mnist.csv")
    assert (score.rule, score.seconds, score.cpu_seconds) == ("score", 1.5, 1.0)
    assert pd.isna(score.gpu)
    # Put there by hand, so no job made them, and what it is of the other data set is not here.
    assert not any("data/" in path or "imagenet" in path for path in rows.index)


def test_a_job_with_two_outputs_counts_once(results):
    for path, seconds in (("a", 2.0), ("b", 2.0), ("c", 3.0)):
        made(f"figures/mnist_{path}.pdf", "both", seconds=seconds, cpu_seconds=60.0)
        results.append(f"figures/mnist_{path}.pdf")
    before = pd.read_csv(record(results[:-3]) / "summary.csv").set_index("paper").loc["mnist"]
    after = pd.read_csv(record(results) / "summary.csv").set_index("paper").loc["mnist"]
    assert after.jobs - before.jobs == 2
    assert after.cpu_minutes - before.cpu_minutes == pytest.approx(2)


def test_the_run_is_told_without_its_host(results):
    told = json.loads((record(results) / "run.json").read_text())
    assert (told["images"], told["scale"]) == ("real", "smoke")
    assert {data["dataset"] for data in told["datasets"]} == {"imagenet", "mnist"}
    assert told["commits"] == {"c" * 40: len(list(Path("results/provenance").rglob("*.json")))}
    assert "host" not in told
    assert told["machine"]["architecture"] and told["machine"]["cores"] >= 1


def test_the_card_is_told(results):
    made("results/tables/mnist.csv", "table", gpu="A Card")
    rows = pd.read_csv(record(results) / "mnist/artifacts.csv").set_index("artifact")
    assert rows.gpu["results/tables/mnist.csv"] == "A Card"


@pytest.mark.parametrize("case", ["edited", "no sidecar"])
def test_what_nobody_could_make_again_is_not_recorded(results, case):
    path = "results/scores/real-smoke/mnist.csv"
    if case == "edited":
        Path(path).write_text("better")
    else:
        job_records.path_of(path).unlink()
    with pytest.raises(ArtifactError, match=r"real-smoke/mnist\.csv .*ask Snakemake for it again"):
        record(results)
    assert not Path("record").exists()


def test_what_is_recorded_is_of_todays_claims():
    """A claim that was added or taken out since makes the recorded run one of other claims."""
    for path in sorted((ROOT / "papers").glob("*/claims.yaml")):
        recorded = pd.read_csv(ROOT / "docs/results" / path.parent.name / "claims.csv")
        today = [claim.id for claim in claims.load(path).numbers()]
        assert list(recorded.id) == today


def test_the_readme_counts_what_is_recorded():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for place in sorted((ROOT / "docs/results").glob("*/claims.csv")):
        name = place.parent.name
        found = pd.read_csv(place).verdict.value_counts()
        counts = [found.sum(), *(found.get(verdict, 0) for verdict in VERDICTS)]
        row = f"(docs/results/{name}.md) | " + " | ".join(map(str, counts)) + " | "
        assert text.count(row) == 1, f"{name}: {row}"
