"""Checkpoints of training runs: resumed to the same end, and refused where they do not belong."""

from functools import partial

import numpy as np
import pytest

import training_cases as t
from conftest import refused
from gradleak.errors import ArtifactError, NumericsError
from gradleak.models.chain import Chain, LinearSpec
from gradleak.models.initial import draw_key
from gradleak.runtime import job_records
from gradleak.runtime.artifacts import read_tensors

SOME = {"answering": 0.7, "share": 0.7}
RUNS = [t.trainer, *(partial(t.federation, chain, **SOME) for chain in (t.SMALL, t.LOCKED))]
EACH = pytest.mark.parametrize("begin", RUNS, ids=["alone", "fedavg", "fedkl"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


def interrupted(run, path, stop):
    def interrupt(rows):
        if rows[-1]["epoch"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(path, interrupt)


@pytest.mark.parametrize("stop", [1, 2, 3])
@EACH
def test_an_interrupted_run_ends_alike(path, begin, stop):
    whole = begin()
    expected = whole.run()
    interrupted(begin(), path, stop)
    assert path.exists() == (stop > 2)  # the interrupt comes before the checkpoint of its epoch
    curve = []
    assert t.same(begin().run(path, curve.append), expected)
    assert len(curve) == whole.recipe.epochs - 2 * ((stop - 1) // 2)
    # Finished, and asked again.
    assert t.same(begin().run(path), expected)


@EACH
def test_what_an_interrupted_run_spent_counts(path, begin, monkeypatch):
    earlier = {"seconds": 0.0, "cpu_seconds": 0.0}
    monkeypatch.setattr(job_records, "_earlier", earlier)
    interrupted(begin(), path, 3)
    spent = read_tensors(path)[1]["spent"]
    assert earlier["cpu_seconds"] == 0.0 < spent["cpu_seconds"]
    begin().run(path)
    assert earlier == spent
    # What was done after the last checkpoint is done again.
    assert read_tensors(path)[1]["spent"]["cpu_seconds"] >= 2 * spent["cpu_seconds"]


@EACH
def test_another_seed_ends_otherwise(begin):
    assert not t.same(begin().run(), begin(seed=1).run())


@pytest.mark.parametrize(
    "run",
    ["t.trainer(epochs=8)", "t.federation(t.LOCKED, recipe={'epochs': 8}, answering=0.7)"],
)
def test_a_killed_run_goes_on_at_its_checkpoint(path, tmp_path, run):
    """SIGKILL in the middle: nothing half-written, and the same end, but for the time it took."""
    t.killed(run, path)
    assert 2 <= read_tensors(path)[1]["done"] < 8
    other = tmp_path / "other.safetensors"
    for place in (path, other):
        eval(run, {"t": t}).run(place)
    (arrays, told), (expected, wanted) = map(read_tensors, (path, other))
    assert t.same(arrays, expected)
    assert {**told, "spent": None} == {**wanted, "spent": None}


def test_diverged_training_names_the_epoch_and_keeps_the_last_checkpoint(path):
    ours = t.trainer(**t.PLAIN)
    real, spoils = ours._step, iter([1.0] * 3 * 4)
    ours._step = lambda inputs, *more: real(inputs * next(spoils, np.nan), *more)
    diverged = "small: training diverged in epoch 5 (loss nan, on validation "
    kept = f"the checkpoint of epoch 4 is kept in {path}"
    with refused(diverged, kept, "lower rate: 0.05", kind=NumericsError):
        ours.run(path)
    tensors, metadata = read_tensors(path)
    assert metadata["done"] == 4 and all(np.isfinite(value).all() for value in tensors.values())


def again(**more):
    return t.trainer(**({"source": {"sha256": "ab"}} | more))


def anothers_key(own):
    return [*own[:2], own[2] | draw_key(t.LOCKED, 7, 0)]


OTHERS = [
    (again, {"chain": Chain("other", (3, 8, 8), t.SMALL.specs)}, "network (name: small, not other"),
    (again, {"chain": Chain("small", (3, 8, 8), (LinearSpec(3),))}, "network (hash: "),
    (again, {"source": {"sha256": "cd"}}, "data set (sha256: ab, not cd)"),
    (again, {"rate": 0.1}, "settings (rate: 0.05, not 0.1)"),
    (t.federation, {"chain": t.LOCKED}, "network (name: small, not locked)"),
    (t.federation, {"chain": t.with_lock(name="small")}, "network (hash: "),
    (t.federation, {"clients": 2}, "data set (clients: [20, 20, 20], not [30, 30])"),
    (t.federation, {"local_epochs": 2}, "settings (federated.local_epochs: 1, not 2)"),
    (t.federation, {"answering": 0.5}, "settings (federated.answering: 1.0, not 0.5)"),
    (t.federation, {"recipe": {"rate": 0.1}}, "settings (rate: 0.05, not 0.1)"),
    (lambda **more: t.federation(t.LOCKED, **more), {"changed": anothers_key}, "network (hash: "),
]


@pytest.mark.parametrize(("begin", "more", "words"), OTHERS)
def test_a_checkpoint_of_something_else_is_refused_by_name(path, begin, more, words):
    interrupted(begin(), path, 3)
    before = path.read_bytes()
    other = "other" if words.startswith("settings") else "another"
    with refused(f"The checkpoint {path} is of {other} {words}", "delete it", kind=ArtifactError):
        begin(**more).run(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("begin", "names"), [(t.trainer, [b"done", b"recipe"]), (t.federation, [b"dropped"])]
)
def test_a_damaged_checkpoint_is_refused_by_name(path, begin, names):
    interrupted(begin(), path, 3)
    whole = path.read_bytes()
    renamed = [whole.replace(b'\\"%s\\"' % name, b'\\"%s\\"' % name[::-1]) for name in names]
    for harmed in (whole[: len(whole) // 2], b"nothing", *renamed):
        assert harmed != whole
        path.write_bytes(harmed)
        with refused(f"The checkpoint {path} is damaged ", "delete it", kind=ArtifactError):
            begin().run(path)
