"""results/archive.zip and results/record: what goes in, what stays out and why, the same bytes."""

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import yaml

from conftest import ROOT, sentence
from gradleak.claims import recorded as recorded_again
from gradleak.claims.outcome import VERDICTS
from gradleak.errors import ArtifactError
from gradleak.reporting import archive, recording
from gradleak.runtime import job_records, tidy, zipped
from gradleak.runtime.artifacts import write_json
from pipeline_trees import whole
from test_provenance import by_hand, lay_out, made, record

PROVENANCE, ARCHIVE = "results/provenance.json", "results/archive.zip"


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay_out()


PROFILE = "https://w3id.org/workflowhub/workflow-ro-crate"
# Of the source, which every archive holds.
WORKFLOW = ("CITATION.cff", "LICENSE", "workflow/Snakefile")


def pack(results):
    archive.write(ARCHIVE, PROVENANCE, results, {name: str(ROOT / name) for name in WORKFLOW})
    return Path(ARCHIVE).read_bytes()


def packed(results, *more, images="real"):
    """Members of the archive of these results, by name."""
    write_json(PROVENANCE, record(results, images=images))
    pack([*results, *more])
    with zipfile.ZipFile(ARCHIVE) as found:
        assert found.testzip() is None
        return {name: found.read(name) for name in found.namelist()}


def left_out(members):
    listed = json.loads(members["manifest.json"])["left_out"]
    return {entry["path"]: entry["reason"] for entry in listed}


KINDS, SUFFIXES = ("pictures", "originals"), ("pdf", "png")
RESTRICTED = {f"figures/imagenet_{kind}.{suffix}" for kind in KINDS for suffix in SUFFIXES}


def test_pictures_of_restricted_images_stay_out_and_all_else_goes_in(results):
    members = packed(results, "config.yaml", "requirements.lock", "papers/copa/claims.yaml")
    assert set(left_out(members)) == RESTRICTED
    own = {"README.md", "manifest.json", "config.resolved.json", PROVENANCE, *WORKFLOW}
    own |= {"ro-crate-metadata.json"}
    own |= {"config.yaml", "requirements.lock", "papers/copa/claims.yaml"}
    assert set(members) == (set(results) - RESTRICTED) | own
    assert "figures/imagenet_chart.pdf" in members and "figures/mnist_pictures.png" in members
    for path, reason in left_out(members).items():
        assert "may show images of imagenet: its terms of access" in reason
        assert f"- `{path}`: {reason}" in members["README.md"].decode()
    # No byte of such a picture is in any of them.
    secret = "content of figures/imagenet_pictures.pdf"
    assert Path("figures/imagenet_pictures.pdf").read_text() == secret
    assert not any(secret.encode() in content for content in members.values())


def test_pictures_of_several_kinds_of_cifar_and_of_unknown_origin_stay_out(results):
    both = ["results/reconstructions/real-smoke/mnist.safetensors", "data/imagenet-val.safetensors"]
    results.append(made("figures/both.pdf", "both", both))
    by_hand(Path("data/cifar10-train.safetensors"), "cifar10", "train")
    results.append(made("figures/cifar.pdf", "cifar", ["data/cifar10-train.safetensors"]))
    own = made("results/targets/real-smoke/own.safetensors", "targets", ["/other/x.safetensors"])
    results.append(made("figures/own.pdf", "own", [own]))
    found = left_out(packed(results))
    assert "images of imagenet" in found["figures/both.pdf"]
    assert "no licence is given" in found["figures/cifar.pdf"]
    assert "come from no data set of the catalogue" in found["figures/own.pdf"]


def test_what_cannot_be_told_stays_out_on_real_images_alone(results):
    job_records.path_of("results/gradients/real-smoke/mnist.safetensors").unlink()
    job_records.path_of("figures/mnist_chart.pdf").unlink()
    found = left_out(packed(results))
    for path in ("figures/mnist_pictures.pdf", "figures/mnist_chart.pdf"):
        assert "it cannot be told which images it shows" in found[path]
    assert "results/gradients/real-smoke/mnist.safetensors" in found["figures/mnist_pictures.png"]
    assert "figures/mnist_originals.pdf" not in found
    assert set(left_out(packed(results, images="embedded"))) == RESTRICTED


def test_equal_contents_give_equal_bytes(results):
    write_json(PROVENANCE, record(results))
    first = pack(results)
    for number, path in enumerate(results):
        os.utime(path, (10**9 + number, 10**9 + number))
        Path(path).chmod(0o600 if number % 2 else 0o755)
    assert pack(results[::-1]) == first
    with zipfile.ZipFile(ARCHIVE) as found:
        entries = found.infolist()
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    assert {entry.date_time for entry in entries} == {zipped.TIME}
    assert {entry.external_attr >> 16 for entry in entries} == {0o100644}
    Path("figures/mnist_chart.pdf").write_text("another")
    assert pack(results) != first


def test_the_readme_says_what_it_is_and_how_to_make_it_again(results):
    members = packed(results, "config.yaml")
    text = members["README.md"].decode()
    commit = json.loads(Path(PROVENANCE).read_text())["commit"]
    assert (commit or "unknown") in text
    assert "--config images=real scale=smoke device=auto -- results/archive.zip" in text
    assert "mnist (put there by hand): CC BY-SA 3.0" in text
    assert "## Mind" in text and "c" * 40 in text  # the sidecars' commit is another one
    assert "Changed after" not in text
    resolved = json.loads(members["config.resolved.json"])
    assert resolved["scale"] == "smoke" and resolved["images"] == "real"
    assert yaml.safe_load(members["config.yaml"])["scale"] == "laptop"
    # The manifest has the checksum of every member but the crate's description.
    listed = json.loads(members.pop("manifest.json"))["files"]
    del members["ro-crate-metadata.json"]
    assert listed == {name: hashlib.sha256(text).hexdigest() for name, text in members.items()}
    # And the readme names changed files.
    Path("figures/mnist_chart.pdf").write_text("by hand")
    text = packed(results)["README.md"].decode()
    assert "Changed after the pipeline wrote them: `figures/mnist_chart.pdf`." in text


def test_the_archive_is_an_ro_crate_of_the_workflow_and_its_run(results):
    """By the terms of RO-Crate 1.1, Workflow RO-Crate 1.0 and Workflow Run Crate 0.5."""
    members = packed(results)
    crate = json.loads(members.pop("ro-crate-metadata.json"))
    assert crate["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert descriptor["about"] == {"@id": "./"}
    versions = {entry["@id"] for entry in descriptor["conformsTo"]}
    assert versions == {"https://w3id.org/ro/crate/1.1", f"{PROFILE}/1.0"}
    assert {entry["@id"] for entry in root["hasPart"]} == set(members)
    for name, content in members.items():
        entity = entities[name]
        assert "File" in entity["@type"] and int(entity["contentSize"]) == len(content)
        assert entity["sha256"] == hashlib.sha256(content).hexdigest()

    # Whatever is referred to is described.
    def references(value):
        if isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                yield from references(one)
        if isinstance(value, dict) and set(value) == {"@id"}:
            yield value["@id"]

    assert {one for one in references(crate["@graph"]) if "://" not in one} <= entities.keys()
    workflow = entities[root["mainEntity"]["@id"]]
    assert {"SoftwareSourceCode", "ComputationalWorkflow"} <= set(workflow["@type"])
    assert entities[workflow["programmingLanguage"]["@id"]]["name"] == "Snakemake"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = [entities[author["@id"]] for author in root["author"]]
    assert [author["name"] for author in authors] == [entry["name"] for entry in cited["authors"]]
    assert entities[root["license"]["@id"]]["identifier"] == cited["license"] == "MIT"
    assert root["datePublished"] == json.loads(members[PROVENANCE])["made"][:10]
    run = entities[root["mentions"]["@id"]]
    assert run["instrument"] == root["mainEntity"]
    assert {entry["@id"] for entry in run["result"]} == set(results) - RESTRICTED
    assert (run["startTime"], run["endTime"]) == (
        "2026-01-02T03:04:03+00:00", "2026-01-02T03:04:05+00:00",
    )  # fmt: skip


def test_what_cannot_be_packed_is_named(results):
    write_json(PROVENANCE, record(results))
    for path in ("../secret", "/etc/hostname", "results/../../secret"):
        with pytest.raises(ArtifactError, match="lies outside the working folder"):
            pack([*results, path])
    Path("results/tables/mnist.csv").unlink()
    with pytest.raises(ArtifactError, match=r"results/tables/mnist\.csv cannot be read \(No such"):
        pack(results)
    with pytest.raises(ArtifactError, match=r"needs CITATION\.cff, LICENSE; restore"):
        archive.write(ARCHIVE, PROVENANCE, [], {WORKFLOW[-1]: str(ROOT / WORKFLOW[-1])})
    Path(PROVENANCE).write_text("{")
    with pytest.raises(ArtifactError, match=r"provenance\.json is damaged"):
        pack(results)
    assert not Path(ARCHIVE).exists()


def reduce(tree, images):
    """Leave one network of COPA's pair, and of all figures and tables one each."""
    raw = whole(tree / "config.yaml")
    pair = {**raw["experiments"]["copa_pair"], "models": ["cnn3_v3_tanh"]}
    raw["experiments"] = {"copa_pair": {**pair, "attacks": ["rgap", "copa", "copa_tv"]}}
    for kind in ("models", "trainings", "groups"):
        raw[kind] = {k: v for k, v in raw[kind].items() if not k.startswith(("fedkl_", "mkor_"))}
    for name in ("mkor_mnist", "mkor_photos"):
        del raw["targets"][name]
    del raw["audit"]
    raw |= {"scale": "smoke", "images": images, "include": ["examples/audit.yaml"]}
    (tree / "config.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    for path in tree.glob("papers/*/results.yaml"):
        results = yaml.safe_load(path.read_text())
        for kind in ("figures", "tables"):
            for name, entry in results[kind].items():
                entry["enabled"] = name in ("copa_fig1", "copa_table2")
        path.write_text(yaml.safe_dump(results))


@pytest.mark.slow
@pytest.mark.parametrize("images", ["real", "embedded"])
def test_the_rules_from_arrays_to_the_archive(tree, snakemake, tmp_path_factory, images):
    reduce(tree, images)
    # Once in the source tree, once in another folder.
    there = tree if images == "embedded" else tmp_path_factory.mktemp("elsewhere")
    at = ("--snakefile", tree / "Snakefile", "--cores", "2")
    by_hand(there / "data/cifar10-train.safetensors", "cifar10", "train", count=10)
    snakemake(there, *at, "--", ARCHIVE)
    record = json.loads((there / PROVENANCE).read_text())
    (data,) = record["datasets"]
    expected = ("cifar10", True) if images == "real" else ("photos10", False)
    assert (data["dataset"], data["by_hand"]) == expected
    (figure,) = [r for r in record["results"] if r["path"] == "figures/copa_fig1.pdf"]
    assert {"targets", "gradient", "attack", "postprocess", "score"} <= set(figure["rules"])
    assert figure["pictures_of"] == [data["dataset"]] and figure["unrecorded"] == []
    assert not any(entry.get("altered") for entry in record["artifacts"].values())
    assert record["workflow"] != hashlib.sha256().hexdigest()
    with zipfile.ZipFile(there / ARCHIVE) as found:
        names = set(found.namelist())
        out = json.loads(found.read("manifest.json"))["left_out"]
    figures = {"figures/copa_fig1.pdf", "figures/copa_fig1.png"}
    assert {entry["path"] for entry in out} == (figures if images == "real" else set())
    assert figures & names == (set() if images == "real" else figures)
    assert {"results/claims.csv", "results/tables/copa_table2.csv", "config.yaml"} <= names
    kinds, papers = ("claims", "explanations"), ("copa", "rgap", "fedkl", "mkor")
    assert {f"papers/{paper}/{kind}.yaml" for paper in papers for kind in kinds} <= names
    assert {"CITATION.cff", "LICENSE", "Snakefile", "workflow/rules/attack.smk"} <= names
    assert "examples/audit.yaml" in names and "examples/audit.yaml" in record["files"]
    done = snakemake(there, *at, "-n", "--", ARCHIVE)
    assert "Nothing to be done" in done.stdout + done.stderr


CLAIMS = {
    "paper": "mnist",
    "tolerances": {"same": {"rule": "absolute", "amount": 0, "reason": "A test."}},
    "claims": [
        {"id": name, "locator": "x", "statement": "It is 1.", "kind": "exact", "paper_value": 1}
        | {"tolerance": "same", "whose": whose}
        | {"query": {"form": "column", "table": "mnist", "column": "value", "where": {}}}
        for name, whose in (("a.1", "paper"), ("a.2", "ours"))
    ],
}


def recorded(results, value=1):
    """Record MNIST's results, with a table of one number."""
    Path("claims.yaml").write_text(yaml.safe_dump(CLAIMS))
    made("results/tables/mnist.csv", "table", content=f"value,x\n{value},y\n")
    own = [path for path in results if "mnist" in path]
    kept = recording.Kept("claims.yaml", ["results/tables/mnist.csv"], [])
    recording.write("record/mnist", record(own), kept)
    return Path("record")


def test_tables_claims_and_their_summary_are_kept(results):
    folder = recorded(results)
    assert (folder / "mnist/mnist.csv").read_text() == "value,x\n1,y\n"
    rows = [pd.read_csv(folder / "mnist" / name) for name in recorded_again.FILES.values()]
    assert [list(part.id) for part in rows] == [["a.1"], ["a.2"], []]
    assert [list(part.verdict) for part in rows[:2]] == [["reproduced"]] * 2
    assert not list(folder.rglob("*.p*"))
    counts = recorded_again.summary(folder).set_index("whose")
    assert list(counts.loc["paper", ["figures", "tables", "claims"]]) == [3, 1, 1]
    assert list(counts["reproduced"]) == [1, 1] and list(counts["tests"]) == [0, 0]
    assert counts[list(VERDICTS)].sum().sum() == 2
    # The run is told without its host.
    told = json.loads((folder / "mnist/run.json").read_text())
    assert (told["images"], told["scale"]) == ("real", "smoke")
    assert [(data["dataset"], data["path"]) for data in told["datasets"]] == [
        ("mnist", "mnist-test.safetensors")
    ]
    assert list(told["commits"]) == ["c" * 40]
    assert "host" not in told and told["made"]
    assert told["machine"]["architecture"] and told["machine"]["cores"] >= 1


def test_a_part_has_the_scores_of_one_experiment_and_no_verdicts(results):
    scores = "results/scores/real-smoke/mnist/a/none/b.csv"
    head = {**dict.fromkeys([*tidy.SCORES, "answer", "kind"], "a"), "images": "real", "answer": 0}
    values = [{"index": 0, "value": 1}, {"index": 1, "value": 2}, {"index": 2, "status": "failed"}]
    rows = [{**head, "metric": "mse", "status": "ok", "value": "", **one} for one in values]
    rows += [{**one, "model": "b", "metric": "ssim"} for one in rows[:2]]
    text = pd.DataFrame(rows).to_csv(index=False)
    made(scores, "score", content=text)
    recording.write_part("parts/mnist", record([scores]), [scores])
    names = {path.name for path in Path("parts/mnist").iterdir()}
    told = {recorded_again.EVIDENCE, recorded_again.RUN, recorded_again.ARTIFACTS}
    assert names == told | {recorded_again.MEANS}
    # A failed run leaves no mean, and is the worst in the median.
    means = pd.read_csv(f"parts/mnist/{recorded_again.MEANS}").set_index("model")
    assert list(means.loc["a", ["n", "n_ok", "median"]]) == [3, 2, 2.0]
    assert means.loc["a", ["mean", "sd"]].isna().all()
    assert list(means.loc["b", ["n", "n_ok", "mean", "median"]]) == [2, 2, 1.5, 1.5]
    assert means.loc["b", "sd"] == pytest.approx(0.5**0.5)
    with zipfile.ZipFile("parts/mnist/evidence.zip") as archive:
        assert archive.namelist() == [scores] and archive.read(scores) == text.encode()
    files = pd.read_csv("parts/mnist/artifacts.csv")
    assert list(files["artifact"]) == [scores] and list(files["rule"]) == ["score"]
    Path(scores).write_text(f"{text}\n")
    said = sentence(ArtifactError, recording.write_part, "parts/x", record([scores]), [scores])
    assert f"{scores} was changed after it was made" in said
    assert not Path("parts/x").exists()


def test_a_part_of_a_training_has_its_tables_and_what_they_were_made_from(results):
    curve = "results/training/real-smoke/mnist/net.csv"
    made(curve, "train", content="model,test_accuracy\nnet,0.5\n")
    table = pd.DataFrame({"row": ["net"], "ours": [50.0]})
    recording.write_part("parts/mnist", record([curve]), [curve], {"accuracy": table})
    folder = Path("parts/mnist")
    names = {path.name for path in folder.iterdir()} - {recorded_again.MEANS}
    told = {recorded_again.EVIDENCE, recorded_again.RUN, recorded_again.ARTIFACTS}
    assert names == told | {"accuracy.csv"} and not (folder / recorded_again.MEANS).exists()
    assert (folder / "accuracy.csv").read_text() == "row,ours\nnet,50\n"
    with zipfile.ZipFile(folder / "evidence.zip") as archive:
        assert archive.namelist() == [curve]
    assert recorded_again.means_of(folder).empty


def test_verdicts_follow_from_what_is_kept(results):
    folder = recorded(results, value=2)
    assert list(pd.read_csv(folder / "mnist/claims.csv").verdict) == ["differs"]


def test_tables_of_larger_trainings_count_where_they_have_the_rows(results):
    folder = recorded(results) / "mnist"
    for number, scale in enumerate(("laptop", "paper", "paper")):
        curve = f"results/training/real-{scale}/mnist/net{number}.csv"
        made(curve, "train", content="model\nnet\n")
        part = folder / recorded_again.PARTS / f"part{number}"
        table = pd.DataFrame({"value": [1.0 + number], "x": [f"y{number}"]})
        recording.write_part(str(part), record([curve]), [curve], {"mnist": table})
        told = json.loads((part / recorded_again.RUN).read_text())
        (part / recorded_again.RUN).write_text(json.dumps({**told, "scale": scale}))
    judged = recorded_again.judge(folder, "claims.yaml").set_index("id")
    assert list(judged["scale"]) == ["paper"] * 2
    # Both parts at that scale are one table.
    assert list(judged["ours"]) == [2.5] * 2 and list(judged["n"]) == [2] * 2
    for number in (1, 2):
        pd.DataFrame({"other": [1]}).to_csv(
            folder / recorded_again.PARTS / f"part{number}/mnist.csv", index=False
        )
    judged = recorded_again.judge(folder, "claims.yaml").set_index("id")
    assert list(judged["scale"]) == ["laptop"] * 2 and list(judged["ours"]) == [1] * 2


def test_artifacts_have_their_checksum_code_time_and_card(results):
    made("figures/mnist_chart.pdf", "chart", gpu="A Card")
    rows = pd.read_csv(recorded(results) / "mnist/artifacts.csv").set_index("artifact")
    score = rows.loc["results/scores/real-smoke/mnist.csv"]
    assert score.sha256 == job_records.checksum("results/scores/real-smoke/mnist.csv")
    assert (score.rule, score.seconds, score.cpu_seconds) == ("score", 1.5, 1.0)
    assert pd.isna(score.gpu) and rows.gpu["figures/mnist_chart.pdf"] == "A Card"
    # Put there by hand, so no job made them, and what it is of the other data set is not here.
    assert not any("data/" in path or "imagenet" in path for path in rows.index)


def test_a_job_with_two_outputs_counts_once(results):
    for path, seconds in (("a", 2.0), ("b", 2.0), ("c", 3.0)):
        made(f"figures/mnist_{path}.pdf", "both", seconds=seconds, cpu_seconds=60.0)
        results.append(f"figures/mnist_{path}.pdf")
    before, after = (
        recorded_again.summary(recorded(given)).iloc[0] for given in (results[:-3], results)
    )
    assert after.jobs - before.jobs == 2
    assert after.cpu_minutes - before.cpu_minutes == pytest.approx(2)


def test_what_nobody_could_make_again_is_not_recorded(results):
    path = Path("results/scores/real-smoke/mnist.csv")
    for spoil in (lambda: path.write_text("better"), job_records.path_of(str(path)).unlink):
        spoil()
        with pytest.raises(ArtifactError, match=r"real-smoke/mnist\.csv .*ask Snakemake for it ag"):
            recorded(results)
        assert not Path("record").exists()
