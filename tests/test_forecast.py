"""How long the jobs ahead of a run may take, as told at its start."""

from types import SimpleNamespace

import pytest

from gradleak.pipeline import resources
from gradleak.pipeline.forecast import Forecast
from gradleak.pipeline.resources import IMPORTS_SECONDS, Measured, Resources
from job_samples import RAW, config, record_of, some_attack

TRAINING = {"training": "rgap_lenet", "model": "rgap_fcn3"}


def forecast(folder, scale="laptop", rows=()):
    at = config(scale)
    return Forecast(at, Resources(at, rows), folder)


def reconstructions(seconds, wildcards, scale, gpu=""):
    names = wildcards["experiment"], wildcards["model"], wildcards["defence"], wildcards["attack"]
    where = f"results/reconstructions/real-{scale}/{'/'.join(names)}.safetensors"
    return f"{where},attack,{seconds},200,{gpu}"


def searches():
    """Two attacks by Inverting Gradients on networks of FedKL, as wildcards."""
    found = []
    for name, entry in RAW["experiments"].items():
        for attack in entry["attacks"] if entry["paper"] == "fedkl" else ():
            of = {"model": entry["models"][0], "defence": "none", "attack": attack}
            if RAW["attacks"][attack]["method"] == "inverting_gradients":
                found.append({"experiment": name, **of})
    kind = [resources.key_of(config("night"), one) for one in found]
    alike = [one for one, key in zip(found, kind, strict=True) if key == kind[0]]
    return alike[0], alike[1]


def ratio(wildcards, scale):
    """Work of an attack at a scale beside that at laptop scale."""
    now, then = (resources.work(config(at), "attack", wildcards)[0] for at in (scale, "laptop"))
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
def test_the_time_of_all_jobs_is_told_without_those_that_were_not_measured(
    seconds, amount, tmp_path
):
    done = float(resources.work(config(), "train", TRAINING)[0])
    rows = [Measured("train", "small", "laptop", 2, 800.0, 1e9, seconds, done)]
    wildcards = SimpleNamespace(items=TRAINING.items)
    scripts = ["../scripts/train.py", "../scripts/train.py", "../scripts/photo.py", None]
    jobs = [SimpleNamespace(rule=SimpleNamespace(script=s), wildcards=wildcards) for s in scripts]
    ahead = forecast(tmp_path, rows=rows)
    assert ahead(jobs) == f"about {amount}, as jobs measured before tell"
    assert ahead(jobs[2:]) == ""


def test_a_recorded_job_takes_what_it_took_and_more_with_more_work(tmp_path):
    of = {"defence": "none", **some_attack()}
    record_of(tmp_path / "one", reconstructions(101.5, of, "laptop"))
    kind = resources.key_of(config(), of)
    rows = [Measured("attack", kind, "laptop", 9, 500.0, 900.0, 9.0, 1e6)]
    assert forecast(tmp_path, rows=rows).seconds("attack", of) == pytest.approx(101.5)
    assert ratio(of, "paper") > 1
    expected = IMPORTS_SECONDS + 100 * ratio(of, "paper")
    assert forecast(tmp_path, "paper", rows).seconds("attack", of) == pytest.approx(expected)


def test_a_search_ends_as_early_as_those_recorded_at_both_scales(tmp_path):
    one, other = searches()
    whole = IMPORTS_SECONDS + 10 * ratio(one, "night")
    record_of(
        tmp_path / "whole",
        reconstructions(10 + IMPORTS_SECONDS, one, "laptop"),
        reconstructions(20 + IMPORTS_SECONDS, other, "laptop"),
    )
    told = forecast(tmp_path, "night")
    assert told.seconds("attack", one) == pytest.approx(whole)
    record_of(tmp_path / "part", reconstructions(whole / 4, one, "night"))
    told = forecast(tmp_path, "night")
    assert told.seconds("attack", one) == pytest.approx(whole / 4)
    expected = (IMPORTS_SECONDS + 20 * ratio(other, "night")) / 4
    assert told.seconds("attack", other) == pytest.approx(expected)


@pytest.mark.parametrize(("method", "known"), [("copa", True), ("dlg", False)])
def test_night_tells_of_paper_scale_where_nothing_ends_early(method, known, tmp_path):
    of = {"defence": "none", **some_attack(method)}
    record_of(tmp_path / "one", reconstructions(100, of, "night"))
    assert (forecast(tmp_path, "paper").seconds("attack", of) >= 100) == known


def test_files_of_a_training_are_one_job(tmp_path):
    where = "results/training/real-laptop/rgap_lenet/rgap_fcn3"
    rows = [f"{where}{end},train_locked,50,200," for end in (".csv", ".curve.csv", ".safetensors")]
    record_of(tmp_path / "one", *rows)
    assert forecast(tmp_path).seconds("train", TRAINING) == pytest.approx(50)


def test_jobs_on_a_gpu_and_of_ids_that_are_gone_tell_nothing(tmp_path):
    one, other = searches()
    gone = {**one, "attack": "no_longer_there"}
    assert forecast(tmp_path).seconds("attack", one) == 0
    record_of(
        tmp_path / "one",
        reconstructions(50, one, "laptop", gpu="NVIDIA H200"),
        *(reconstructions(50, gone, scale) for scale in ("laptop", "night")),
        reconstructions(50, other, "laptop"),
    )
    told = forecast(tmp_path, "night")
    assert told.seconds("attack", one) == 0
    assert told.seconds("attack", other) > 50
