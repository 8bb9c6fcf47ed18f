"""What jobs ask of a scheduler, and what files take on the disk, by scale."""

import json
import re
from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest

import faults
from benchmarks import disk, photo
from conftest import ROOT
from gradleak.config import loader as gradleak_config
from gradleak.errors import ArtifactError
from gradleak.operators import limits
from gradleak.operators.shape import ConvShape
from gradleak.pipeline import measured, resources
from gradleak.pipeline.forecast import Forecast
from gradleak.pipeline.measured import Measured
from gradleak.pipeline.resources import Resources
from gradleak.pipeline.work import key_of
from gradleak.pipeline.work import work as amount_of
from gradleak.runtime import job_records
from gradleak.settings.fields import SCALES
from job_samples import RAW, config, record_of, some_attack
from pipeline_trees import changed, rule_blocks


def shape(side, channels=3, filters=12, kernel=(4, 4), stride=(2, 2)):
    return ConvShape(channels, filters, kernel, stride, (1, 1), (side, side))


def test_memory_and_time_double_with_each_attempt_and_short_jobs_get_minutes():
    rows = [Measured("gradient", "", "laptop", 3, 1000.0, 600.0, 500.0, 1.0)]
    needs = Resources(
        Forecast(config(), [*rows, Measured("figure", "", "laptop", 1, 150.0, 2.0, 2.0, 1.0)], ())
    )
    assert needs.memory("gradient", {}) == 1800
    assert [needs.memory("gradient", {}, n) for n in (1, 2, 3)] == [1800, 3600, 7200]
    assert [needs.minutes("gradient", {}, n) for n in (1, 2, 3)] == [30, 60, 120]
    assert needs.minutes("figure", {}) == resources.LEAST_MINUTES


def test_jobs_of_one_kind_are_told_from_others_of_the_script():
    wildcards = some_attack()
    key = key_of(config(), wildcards)
    kinds = (key, 500.0, 60.0, 9.0, 1.0), ("other large", 9000.0, 6000.0, 9.0, 1.0)
    rows = [Measured("attack", kind, "laptop", 1, *took) for kind, *took in kinds]
    assert Resources(Forecast(config(), rows, ())).memory("attack", wildcards) == 1200
    # A kind that no run had yet gets the most that any job of the script took.
    assert Resources(Forecast(config(), rows[1:], ())).memory("attack", wildcards) > 9000


def test_a_scale_that_was_not_measured_is_reckoned_from_a_smaller_one():
    wildcards = some_attack()
    at = {scale: config(scale) for scale in SCALES}
    key = key_of(at["laptop"], wildcards)
    time, _ = amount_of(at["paper"], "attack", wildcards)
    before, _ = amount_of(at["laptop"], "attack", wildcards)
    rows = [Measured("attack", key, "laptop", 1, 500.0, 600.0, 600.0, float(before))]
    assert time > before
    laptop, paper = (Resources(Forecast(at[scale], rows, ())) for scale in ("laptop", "paper"))
    ratio = paper.minutes("attack", wildcards) / laptop.minutes("attack", wildcards)
    assert ratio == pytest.approx(min(time / before, resources.MOST_MINUTES / 30), rel=0.02)
    # A score takes none of the attack's steps, and another kind's figures are not multiplied.
    assert amount_of(at["paper"], "score", wildcards)[0] < time
    foreign = [Measured("attack", "other", "laptop", 1, 500.0, 600.0, 600.0, 1.0)]
    assert Resources(Forecast(at["paper"], foreign, ())).minutes("attack", wildcards) == 30
    # What is measured at the scale itself counts, whatever smaller scales say.
    rows.append(Measured("attack", key, "paper", 1, 700.0, 900.0, 900.0, float(time)))
    assert Resources(Forecast(at["paper"], rows, ())).minutes("attack", wildcards) == 45


def test_jobs_take_as_long_as_their_work_and_not_as_searches_that_ended_early():
    wildcards = some_attack()
    at = {scale: config(scale) for scale in ("laptop", "paper")}
    key = key_of(at["laptop"], wildcards)
    done = float(amount_of(at["laptop"], "attack", wildcards)[0])
    rows = [Measured("attack", key, "laptop", 9, 500.0, 900.0, 101.5, done / 2)]
    rows.append(Measured("attack", key, "night", 9, 500.0, 900.0, 1.6, done))
    assert Forecast(at["laptop"], rows, ()).seconds("attack", wildcards) == pytest.approx(201.5)
    more = amount_of(at["paper"], "attack", wildcards)[0] / done
    expected = Forecast(at["paper"], rows, ()).seconds("attack", wildcards)
    assert more > 2 and expected == pytest.approx(1.5 + 200.0 * more)


def test_a_job_larger_than_those_measured_requests_what_it_is_expected_to_take():
    wildcards = some_attack()
    key = key_of(config(), wildcards)
    done = float(amount_of(config(), "attack", wildcards)[0])
    rows = [Measured("attack", key, "laptop", 9, 500.0, 600.0, 600.0, done / 10)]
    minutes = Resources(Forecast(config(), rows, ())).minutes("attack", wildcards)
    assert minutes == pytest.approx(resources.PATIENCE * 100, rel=0.01)


@pytest.mark.parametrize("method", ["inverting_gradients", "dlg"])
@pytest.mark.parametrize("paper", ["fedkl", "mkor"])
def test_searches_at_night_are_told_apart_by_paper(method, paper):
    wildcards, closed = some_attack(method, paper), some_attack("mkor")
    assert key_of(config("laptop"), wildcards) == f"{method} small"
    assert key_of(config("night"), wildcards) == f"{method} {paper} small"
    assert key_of(config("night"), closed).split()[0] == "mkor"
    assert len(key_of(config("night"), closed).split()) == 2


def test_linear_systems_request_what_their_sizes_say(monkeypatch):
    small, large = (limits.solving_bytes(shape(side)) for side in (32, 64))
    # A dense U^T U and its factor.
    assert large == 16 * 12288**2 and small == 16 * 3072**2
    # Refused, for its windows leave pixels out.
    assert limits.solving_bytes(replace(shape(224), stride=(5, 5))) == 0
    wildcards = some_attack("rgap")
    rows = [Measured("attack", "rgap small", "laptop", 1, 100.0, 1.0, 1.0, 1.0)]
    plain = Resources(Forecast(config(), rows, ())).memory("attack", wildcards)
    monkeypatch.setattr(limits, "solving_bytes", lambda _: large)
    asked = Resources(Forecast(config(), rows, ())).memory("attack", wildcards)
    assert asked >= resources.MARGIN * large / 2**20 > plain


@pytest.mark.parametrize("row", range(2))
def test_photographs_took_no_more_than_is_predicted(row):
    taken = pd.read_csv(ROOT / "docs/results/library/photo.csv").iloc[row]
    side, channels, most = 224, 3, 0.0
    for number, filters in enumerate(photo.NETWORKS[taken.network]):
        kernel, stride = ((4, 4), (2, 2)) if number < 2 else ((3, 3), (1, 1))
        most = max(most, limits.solving_bytes(shape(side, channels, filters, kernel, stride)))
        side, channels = side // stride[0], filters
    predicted = resources.MARGIN_MIB + resources.MARGIN * (resources.IMPORTS_MIB + most / 2**20)
    assert predicted / 2 < 1024 * taken.gib < predicted


def test_jobs_are_checked_against_their_requests():
    jobs = [{"script": "figure", "scale": "laptop", "wildcards": {}, "peak_mib": 4000.0}]
    jobs += [{**jobs[0], "peak_mib": 10.0}, {**jobs[0], "wildcards": {"attack": "gone"}}]
    found = resources.checked(config(), jobs)
    assert found.took.tolist() == [4000.0, 10.0] and found.share[0] == 4000.0 / found.requests[0]


def test_work_grows_with_images_seeds_steps_and_sides():
    wildcards = some_attack()
    raw, before = RAW, amount_of(config(), "attack", wildcards)
    count = raw["targets"][raw["experiments"][wildcards["experiment"]]["targets"]]["count"]
    entry = raw["attacks"][wildcards["attack"]]

    def ratios():
        now = amount_of(gradleak_config.load({**raw, "scale": "laptop"}), "attack", wildcards)
        return tuple(one / other for one, other in zip(now, before, strict=True))

    for name, factor in ((count, 1), (entry["images"], 3), (entry["iterations"], 9)):
        # More targets are no more work until the attack takes more of them.
        raw = changed(raw, f"scales.{name}.laptop", raw["scales"][name]["laptop"] * 3)
        assert ratios() == (factor, 1)


def run_of(tmp_path, rows):
    folder, table = tmp_path / "provenance", tmp_path / "resources.csv"
    folder.mkdir()
    table.write_text(f"{','.join(Measured._fields)}\n{rows}")
    return folder, table


def sidecar(folder, name, **changes):
    job = {"rule": "attack", "script": "attack", "scale": "laptop", "images": "embedded"}
    took = {"peak_mib": 300.0, "cpu_seconds": 30.0, "ended": "2026-11-22T10:00:00+00:00"}
    entry = {**job, "wildcards": some_attack(), **took, **changes}
    (folder / f"{name}.json").write_text(json.dumps(entry))


def test_the_table_takes_the_most_of_each_kind_and_keeps_what_did_not_run(tmp_path):
    folder, table = run_of(tmp_path, "attack,old,smoke,2,100,5,4,9\nfigure,,laptop,1,1,1,1,1\n")
    sidecar(folder, "one")
    sidecar(folder, "two", peak_mib=200.0)  # a second output of the same job
    sidecar(folder, "three", rule="figure", script="figure", wildcards={}, peak_mib=90.0)
    sidecar(folder, "four", rule="other", script="figure", wildcards={}, cpu_seconds=40.0)
    sidecar(folder, "gone", wildcards={"model": "no_longer_there"})
    assert measured.update(table, config(), job_records.jobs(folder), replace=True) == 2
    key = key_of(config(), some_attack())
    work, _ = amount_of(config(), "attack", some_attack())
    assert table.read_text().splitlines()[1:] == [
        f"attack,{key},laptop,1,200,30,30,{work}",
        "attack,old,smoke,2,100,5,4,9",
        "figure,,laptop,2,300,40,35,1",
    ]


def test_a_run_of_few_jobs_does_not_lower_the_table(tmp_path):
    folder, table = run_of(tmp_path, "figure,,laptop,5,400,2,1,1\n")
    sidecar(folder, "one", rule="figure", script="figure", wildcards={})
    assert measured.update(table, config(), job_records.jobs(folder)) == 1
    assert table.read_text().splitlines()[1:] == ["figure,,laptop,5,400,30,1,1"]


def test_a_record_tells_what_its_attacks_and_scores_took(tmp_path, monkeypatch):
    wildcards = some_attack("inverting_gradients", "fedkl")
    where = "real-night/{experiment}/{model}/none/{attack}".format(**wildcards)
    record_of(
        tmp_path / "fedkl" / "parts" / "one",
        f"results/reconstructions/{where}.safetensors,attack,50,200,",
        f"results/scores/{where}.csv,score,5,100,",
        f"results/reconstructions/{where}.safetensors,attack,1,1,NVIDIA H200",
        "results/parts/one,record_part,7,10,",
        "README.md,figure,7,10,",
    )
    table = tmp_path / "resources.csv"
    table.write_text(f"{','.join(Measured._fields)}\nfigure,,laptop,5,400,2,1,1\n")
    monkeypatch.setattr(resources, "TABLE", table)
    monkeypatch.setattr(resources, "JOBS", tmp_path / "jobs.csv")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["resources", "--record", str(tmp_path)])
    resources.main()
    taken = [line.split(",")[:7] for line in table.read_text().splitlines()[1:]]
    key = "inverting_gradients fedkl small"
    assert taken == [
        ["attack", key, "night", "1", "200", "50", "50"],
        ["figure", "", "laptop", "5", "400", "2", "1"],
        ["score", key, "night", "1", "100", "5", "5"],
    ]


IN_RECORD = "results/scores/real-night/some/model/none/attack.csv"


@pytest.mark.parametrize(
    "row",
    [
        "README.md,attack,5,10,",
        *(f"{IN_RECORD},attack,{took}," for took in ("x,1", "nan,1", "-2,1", "1,inf", "1")),
        f"{IN_RECORD.replace('night', 'nigth')},attack,5,10,",
    ],
)
def test_a_bad_record_is_named_with_its_line(tmp_path, row):
    folder = record_of(tmp_path / "one", row)
    with pytest.raises(ArtifactError, match=r"artifacts\.csv, line 2: expected an artifact"):
        job_records.recorded(folder)


def test_a_folder_without_a_record_is_refused(tmp_path):
    record_of(tmp_path / "one", "results/parts/one,record_part,7,10,")
    with pytest.raises(
        ArtifactError, match=r"has no artifacts\.csv with attacks, scores or trainings; give"
    ):
        job_records.recorded(tmp_path)
    (tmp_path / "one" / "artifacts.csv").write_text(f"artifact,rule\n{IN_RECORD},score\n")
    with pytest.raises(ArtifactError, match="line 2: expected an artifact, rule, gpu"):
        job_records.recorded(tmp_path)


def test_a_record_is_checked_without_changing_the_table(tmp_path, monkeypatch, capsys):
    path = "results/reconstructions/real-laptop/{experiment}/{model}/none/{attack}.safetensors"
    record_of(tmp_path / "one", f"{path.format(**some_attack())},attack,50,200,")
    monkeypatch.setattr(resources, "TABLE", tmp_path / "resources.csv")
    monkeypatch.setattr(resources, "JOBS", tmp_path / "jobs.csv")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["resources", "--check", "--record", str(tmp_path)])
    resources.main()
    assert "200.00" in capsys.readouterr().out
    assert not any((tmp_path / f"{name}.csv").exists() for name in ("resources", "jobs"))


def test_a_bad_table_is_named_with_its_line(tmp_path):
    for n, line in enumerate(
        ("huge,1,1,1,1,1", "smoke,1,x,1,1,1", "smoke,0,1,1,1,1", "smoke,1,1,1,1")
    ):
        (tmp_path / str(n)).mkdir()
        _, table = run_of(tmp_path / str(n), f"figure,,smoke,1,1,1,1,1\nattack,,{line}\n")
        with pytest.raises(ArtifactError, match=r"resources\.csv, line 3: expected .*python -m"):
            measured.read(table)


def test_every_script_that_a_rule_names_was_measured():
    """And each rule asks for what its own script took."""
    named = set()
    for _, block in rule_blocks():
        asked = set(re.findall(r'needs\("(\w+)"\)', block))
        script = re.search(r"scripts/(\w+)\.py", block)
        assert asked <= {script[1] if script else None}, block
        named |= asked
    assert len(named) > 15
    known = {row.script for row in measured.read() if row.scale == "smoke"}
    assert named <= known, "run `snakemake --config scale=smoke`, then pipeline.resources"


MKOR = "results/scores/embedded-smoke/mkor_lenet_bias/mkor_lenets/none/mkor_all_direct.csv"


@pytest.mark.slow
def test_reckoned_sizes_are_those_found(tree):
    faults.makes(tree, faults.SCORE, MKOR)
    settings, reckoned, found = config("smoke"), Counter(), Counter()
    for path in sorted((tree / "results").rglob("*.safetensors")):
        expected = disk.expected(settings, str(path.relative_to(tree)))
        if expected is not None:
            reckoned[expected[1]] += expected[2]
            found[expected[1]] += path.stat().st_size
    assert set(found) == {"targets", "models", "servers", "gradients", "reconstructions"}
    for kind, size in found.items():
        # A header takes some hundred bytes; of a batch some images may not be found.
        assert 0.6 * size - 10_000 <= reckoned[kind] <= 1.5 * size, kind


def test_files_of_a_paper_and_kind_are_summed_and_those_without_large_arrays_are_not():
    model, training = "results/models/smoke/{}.safetensors", "results/training/real-smoke"
    paths = [
        *(model.format(name) for name in ("cnn3_v1_tanh", "cnn3_v2_tanh", "fedkl_lenet_mnist")),
        "data/mnist-train.safetensors",
        "results/scores/real-smoke/copa_pair/cnn3_v1_tanh/none/copa.csv",
        "results/servers/smoke/fishing/mkor_lenets.secret.safetensors",
        f"{training}/fedkl_central_mnist/fedkl_trained_lenet_kl.clients/0.safetensors",
    ]
    real = config("smoke", "real")
    rows = disk.table(real, paths)
    assert list(rows) == ["scale", "paper", "kind", "files", "megabytes"]
    sizes = [disk.expected(real, path)[2] / 1e6 for path in paths[:3]]
    assert rows.to_numpy().tolist() == [
        ["smoke", "copa", "models", 2, sizes[0] + sizes[1]],
        ["smoke", "fedkl", "models", 1, sizes[2]],
    ]
    # Gradients that pass are of large networks and closed forms.
    settings = config("laptop", "real")
    passing = resources.passing_gradients(settings)
    assert "mkor_cifar" in passing and "mkor_cifar_fishing" not in passing
    attacks = {attack for name in passing for attack in settings.experiments[name].attacks}
    assert not any(settings.attacks[attack].searches for attack in attacks)
    assert resources.passing_gradients(config("smoke", "real")) == []


def test_the_page_quotes_the_recorded_table():
    recorded = pd.read_csv(ROOT / "docs/results/pipeline/disk.csv")
    recorded["passing"] = recorded["kind"].str.endswith("passing")
    recorded = recorded.pivot_table("megabytes", ["paper", "passing"], "scale", "sum")[[*SCALES]]
    sizes = recorded.fillna(0) / 1000
    page = (ROOT / "docs/disk.md").read_text()
    rows = {"COPA": "copa", "R-GAP": "rgap", "FedKL": "fedkl", "MKOR": "mkor"}
    rows = {name: sizes.loc[paper, False] for name, paper in rows.items()}
    rows["MKOR, all gradients kept"] = sizes.loc["mkor"].sum()
    for name, expected in rows.items():
        told = re.search(rf"^\| {name} \|(.*)\|$", page, re.MULTILINE)[1].split("|")
        assert [float(value) for value in told] == pytest.approx([*expected], rel=0.06, abs=0.005)
