"""How long jobs may take, as a run tells at its start and as a scheduler is asked for."""

from types import SimpleNamespace

import pytest

from conftest import ROOT
from gradleak.config import loader
from gradleak.errors import ArtifactError
from gradleak.pipeline import measured, resources
from gradleak.pipeline.forecast import IMPORTS_SECONDS, Forecast
from gradleak.pipeline.measured import Measured, Taken, name_of
from gradleak.pipeline.resources import Resources
from gradleak.pipeline.work import key_of, training_images, work
from gradleak.runtime import job_records
from job_samples import RAW, config, record_of, some_attack

TRAINING = {"training": "rgap_lenet", "model": "rgap_fcn3"}


def forecast(scale="laptop", rows=(), jobs=(), raw=RAW):
    return Forecast(loader.load({**raw, "scale": scale}), rows, jobs)


def taken(seconds, wildcards, scale, script="attack"):
    """That a job took these seconds at a scale, imports aside."""
    amount = work(config(scale), script, wildcards)[0]
    return Taken(script, name_of(script, wildcards), scale, seconds + IMPORTS_SECONDS, amount)


def searches():
    """Two attacks by Inverting Gradients on networks of FedKL, as wildcards."""
    found = []
    for name, entry in RAW["experiments"].items():
        for attack in entry["attacks"] if entry["paper"] == "fedkl" else ():
            of = {"model": entry["models"][0], "defence": "none", "attack": attack}
            if RAW["attacks"][attack]["method"] == "inverting_gradients":
                found.append({"experiment": name, **of})
    kinds = [key_of(config("night"), one) for one in found]
    alike = [one for one, kind in zip(found, kinds, strict=True) if kind == kinds[0]]
    return alike[0], alike[1]


def ratio(wildcards, scale, script="attack"):
    """Work of a job at a scale beside that at laptop scale."""
    now, then = (work(config(at), script, wildcards)[0] for at in (scale, "laptop"))
    return now / then


@pytest.mark.parametrize(
    ("seconds", "amount"),
    [
        (20.0, "1 core minute"),
        (1200.0, "40 core minutes"),
        (6000.0, "3.3 core hours"),
        (9.18e5, "510 core hours"),
    ],
)
def test_the_time_of_all_jobs_is_told_and_what_was_not_measured(seconds, amount):
    done = float(work(config(), "train", TRAINING)[0])
    told = forecast(rows=[Measured("train", "small", "laptop", 2, 800.0, 1e9, seconds, done)])
    wildcards = SimpleNamespace(items=TRAINING.items)
    names = {"train": "train", "train_locked": "train", "photo": "photo", "all": None}
    rules = [
        SimpleNamespace(name=name, script=script and f"../scripts/{script}.py")
        for name, script in names.items()
    ]
    jobs = [SimpleNamespace(rule=rule, wildcards=wildcards) for rule in rules]
    words = f"about {amount}, as jobs measured before tell"
    assert told([*jobs[:2], jobs[3]]) == words
    assert told(jobs) == f"{words} (time not measured: photo)"
    assert told(jobs[2:]) == "time not measured: photo"
    assert told(jobs[3:]) == ""


def test_a_measured_job_tells_of_itself_whatever_its_kind_took():
    of = some_attack()
    rows = [Measured("attack", key_of(config(), of), "laptop", 9, 500.0, 900.0, 9.0, 1e6)]
    known = [taken(100, of, "laptop")]
    assert forecast(rows=rows, jobs=known).seconds("attack", of) == 100 + IMPORTS_SECONDS
    more = forecast("paper", rows, known).seconds("attack", of) - IMPORTS_SECONDS
    assert ratio(of, "paper") > 1 and more == pytest.approx(100 * ratio(of, "paper"))


def test_amounts_of_your_own_count():
    of = some_attack()
    entry = {**RAW["attacks"][of["attack"]], "iterations": 7}
    raw = {**RAW, "attacks": {**RAW["attacks"], of["attack"]: entry}}
    here = config().attacks[of["attack"]].iterations
    told = forecast(jobs=[taken(100, of, "laptop")], raw=raw).seconds("attack", of)
    assert here > 7 and told == pytest.approx(IMPORTS_SECONDS + 100 * 7 / here)


def test_a_training_takes_the_images_that_its_data_set_has():
    """CIFAR-100's test set has 10,000, of which the paper's 45,000 are nine parts in ten."""
    name, drawn = "fedkl_central_cifar100_large", "fedkl_large_cifar100"
    paper = config("paper", images="real")
    own = paper.trainings[name]
    assert (own.train, own.validation + own.test) == (45_000, 5_000)
    assert training_images(paper, name) == 9_000 * own.epochs
    embedded = config("paper", images="embedded")
    assert training_images(embedded, name) == 900 * own.epochs
    ratio = [work(of, "train", {"training": name, "model": drawn})[0] for of in (paper, embedded)]
    assert ratio[0] == 10 * ratio[1]
    whole = config("paper", images="real").trainings["fedkl_central_cifar10_large"]
    assert training_images(paper, "fedkl_central_cifar10_large") == whole.train * whole.epochs


def test_a_record_counts_the_images_of_its_own_data_set(tmp_path):
    """Read under a config of embedded images, whose data sets are smaller."""
    name, model = "fedkl_federated_mnist", "fedkl_trained_lenet"
    file = f"results/training/real-laptop/{name}/{model}.csv"
    folder, table = record_of(tmp_path / "one", f"{file},train_federated,50,200,"), tmp_path / "t"
    measured.update_jobs(table, config(images="embedded"), job_records.recorded(folder))
    (row,) = measured.read_jobs(table)
    own = work(config(images="real"), "train", {"training": name, "model": model})[0]
    assert row.work == own > work(config(), "train", {"training": name, "model": model})[0]


def test_a_search_ends_as_early_as_those_measured_at_both_scales():
    one, other = searches()
    whole = [taken(10, one, "laptop"), taken(20, other, "laptop")]
    told = forecast("night", jobs=whole)
    all_steps = IMPORTS_SECONDS + 10 * ratio(one, "night")
    assert told.seconds("attack", one) == pytest.approx(all_steps)
    early = Taken("attack", whole[0].of, "night", all_steps / 4, taken(1, one, "night").work)
    told = forecast("night", jobs=[*whole, early])
    assert told.seconds("attack", one) == pytest.approx(all_steps / 4)
    expected = (IMPORTS_SECONDS + 20 * ratio(other, "night")) / 4
    assert told.seconds("attack", other) == pytest.approx(expected)


@pytest.mark.parametrize(("method", "known"), [("copa", True), ("dlg", False)])
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_night_tells_of_other_scales_where_nothing_ends_early(method, known, scale):
    of = some_attack(method)
    told = forecast(scale, jobs=[taken(100, of, "night")]).seconds("attack", of)
    share = ratio(of, scale) / ratio(of, "night")
    assert told == pytest.approx(IMPORTS_SECONDS + 100 * share if known else 0)


def test_a_job_requests_at_least_what_it_is_told_to_take():
    of = some_attack()
    rows = [Measured("attack", key_of(config(), of), "laptop", 9, 500.0, 60.0, 30.0, 1e30)]
    needs = Resources(forecast(rows=rows, jobs=[taken(3000, of, "laptop")]))
    assert needs.minutes("attack", of) == pytest.approx(50 * resources.PATIENCE, rel=0.01)


def test_jobs_of_ids_that_are_gone_tell_nothing():
    one, other = searches()
    gone = [
        Taken("attack", f"{one['experiment']}/{one['model']}/none/gone", "laptop", 50.0, 9),
        Taken("train", "gone/rgap_fcn3", "night", 50.0, 9),
        Taken("train", "gone/rgap_fcn3", "laptop", 50.0, 9),
    ]
    told = forecast("night", jobs=[*gone, taken(20, other, "laptop")])
    assert told.seconds("attack", one) == 0
    assert told.seconds("attack", other) > 20


def test_parts_of_a_record_are_told_by_the_jobs_behind_them(tree, snakemake):
    parts = (f"results/parts/{name}" for name in ("fedkl_central_mnist", "rgap_draws"))
    assert " core " in snakemake(tree, "-n", "--", *parts).stdout


ANALYSIS = {"experiment": "rgap_draws", "model": "rgap_lenets"}
PATHS = [
    ("attack", "reconstructions/real-laptop/{experiment}/{model}/{defence}/{attack}.safetensors"),
    ("rank_analysis", "rank/real-laptop/{experiment}/{model}.csv"),
    ("security", "security/real-laptop/{experiment}/{model}.csv"),
    ("train_locked", "training/real-laptop/{training}/{model}.curve.csv"),
    ("train_locked", "training/real-laptop/{training}/{model}.clients"),
    ("train", "training/real-laptop/{training}/{model}.safetensors"),
]


@pytest.mark.parametrize(("rule", "path"), PATHS)
def test_a_record_tells_of_single_jobs(rule, path, tmp_path):
    of = {**ANALYSIS, **TRAINING} if "train" in rule else {**some_attack(), **ANALYSIS}
    file = f"results/{path.format(**of)}"
    folder = record_of(tmp_path / "one", f"{file},{rule},50,200,", f"{file},{rule},9,9,A card")
    table, script = tmp_path / "jobs.csv", "train" if "train" in rule else rule
    jobs = job_records.recorded(folder)
    assert measured.update_jobs(table, config(), jobs) == 1
    wildcards = {name: of[name] for name in job_records.NAMES[script]}
    amount = work(config(images="real"), script, wildcards)[0]
    row = Taken(script, name_of(script, wildcards), "laptop", 50.0, amount)
    assert measured.read_jobs(table) == (row,)
    told = forecast(jobs=[row], raw={**RAW, "images": "real"})
    assert told.seconds(script, wildcards) == pytest.approx(50)


def test_a_later_run_of_a_job_replaces_an_earlier_one_and_smoke_tells_nothing(tmp_path):
    of, table = some_attack(), tmp_path / "jobs.csv"
    gone = {**of, "experiment": "gone"}
    job = {"script": "attack", "scale": "laptop", "wildcards": of, "cpu_seconds": 50.0}
    others = [{**job, "scale": "smoke"}, {**job, "wildcards": gone}, {**job, "script": "score"}]
    assert measured.update_jobs(table, config(), [job, *others]) == 1
    assert measured.update_jobs(table, config(), [{**job, "cpu_seconds": 20.0}]) == 1
    assert [row.cpu_seconds for row in measured.read_jobs(table)] == [20.0]


def test_a_bad_table_of_jobs_is_named_with_its_line(tmp_path):
    head, good = ",".join(Taken._fields), "attack,a/b/c/d,night,5,1"
    for number, row in enumerate(("attack,a,night,x,1", "attack,a,soon,5,1", "attack,a,night,0,1")):
        table = tmp_path / f"{number}.csv"
        table.write_text(f"{head}\n{good}\n{row}\n")
        with pytest.raises(ArtifactError, match=r"csv, line 3: expected script, of, .*python -m"):
            measured.read_jobs(table)


def test_the_table_has_all_jobs_of_the_record():
    """Else run `python -m gradleak.pipeline.resources --record docs/results`."""
    known = {row[:3] for row in measured.read_jobs()}
    for job in job_records.recorded(ROOT / "docs/results"):
        named = job["script"], name_of(job["script"], job["wildcards"]), job["scale"]
        if job["script"] in measured.SINGLE and not job["gpu"] and named[2] != measured.UNTOLD:
            assert named in known
