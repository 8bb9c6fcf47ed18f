"""Searches that were cut off go on with what they finished."""

from unittest.mock import Mock

import numpy as np
import pytest

from chains import chain, conv, seen
from gradleak.attacks import finished as kept
from gradleak.attacks.base import Reconstruction
from gradleak.attacks.finished import Finished
from gradleak.attacks.keylock import Opening
from gradleak.attacks.optimization.dlg import Dlg
from gradleak.attacks.optimization.gauss_newton import GaussNewton
from gradleak.attacks.optimization.grnn import Grnn
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.errors import NumericsError
from gradleak.runtime import job_records
from gradleak.runtime.progress import Progress

SMALL = chain(conv(4, 3, activation="sigmoid"), classes=2, name="small")
ATTACKS = [
    Dlg(iterations=20, starts=2),
    InvertingGradients(iterations=6),
    GaussNewton(iterations=2, start="normal"),
    Grnn(iterations=2),
]


def views(count=3):
    return [seen(SMALL, seed=seed)[0] for seed in range(count)]


def same(one, other):
    assert type(one) is type(other)
    for name in ("stop", "label", "kind", "failure", "evaluations", "trace", "classes", "partial"):
        assert getattr(one, name) == getattr(other, name), name
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.loss, other.loss)
    assert one.images.dtype == other.images.dtype and len(one.others) == len(other.others)
    for a, b in zip(one.others, other.others, strict=True):
        same(a, b)


def stopped_after(attack, parts):
    """The attack, whose search ends the process after so many parts."""
    search, left = type(attack).search, [parts]

    def until(self, *given):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return search(self, *given)

    kind = type("Stopped", (type(attack),), {"search": until})
    return kind.model_validate(
        {**attack.model_dump(), "chunk": attack.chunk, "start": attack.start}
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.method)
def test_what_was_finished_is_not_searched_again(attack, tmp_path, monkeypatch):
    attack = attack.model_copy(update={"chunk": 1})
    expected = attack.run_many(views(), [5, 6, 7])
    stopped = stopped_after(attack, 2)
    stopped.keep_in(Finished(tmp_path / "parts", lambda: "this"))
    with pytest.raises(KeyboardInterrupt):
        stopped.run_many(views(), [5, 6, 7])
    assert len(list((tmp_path / "parts").iterdir())) == 2
    again = stopped_after(attack, 1)
    finished = Finished(tmp_path / "parts", lambda: "this")
    again.keep_in(finished)
    done_before = []
    monkeypatch.setattr(Progress, "skip", lambda bar, count=1: done_before.append(count))
    for one, other in zip(again.run_many(views(), [5, 6, 7]), expected, strict=True):
        same(one, other)
    assert done_before == [1, 1]
    finished.clear()
    assert not (tmp_path / "parts").exists()


class Cut(Exception):
    """The end of a process."""


LONGER = {
    "inverting": InvertingGradients(iterations=12),
    "patience": InvertingGradients(iterations=60, patience=0.05, rate=0.5),
    "balance": InvertingGradients(iterations=12, balance=0.5),
    "grnn": Grnn(iterations=12, latent=8),
    "grnn, patience": Grnn(iterations=60, patience=0.05, rate=1e-3, latent=8),
}


@pytest.mark.parametrize("attack", LONGER.values(), ids=LONGER)
def test_a_search_that_was_cut_off_goes_on_in_the_middle_of_its_steps(
    attack, tmp_path, monkeypatch
):
    monkeypatch.setattr(kept, "INTERVAL", 0.0)
    # Two groups of searches in a part.
    monkeypatch.setattr(type(attack), "_parts", lambda self, members: [slice(0, 2), slice(2, 3)])
    expected = attack.run_many(views(), [5, 6, 7])
    saves, save = [], kept.UnderWay.save

    def cut(self, *state):
        save(self, *state)
        saves.append(self)
        if len(saves) % 7 == 0:
            raise Cut

    monkeypatch.setattr(kept.UnderWay, "save", cut)
    for _ in range(40):
        finished = Finished(tmp_path / "parts", lambda: "this")
        own = attack.model_copy()
        own.keep_in(finished)
        try:
            found = own.run_many(views(), [5, 6, 7])
            break
        except Cut:
            assert list((tmp_path / "parts").glob("*-*.safetensors"))
    assert len(saves) > 14, "it was cut off more than once"
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    # Only what is finished is left.
    assert [path.stem.count("-") for path in (tmp_path / "parts").iterdir()] == [0]
    again = Finished(tmp_path / "parts", lambda: "this")
    assert again.of(f"small {[5, 6, 7]}") and again.earlier > 0.0


def outcomes():
    twin = Reconstruction(np.ones((1, 2), np.float32), "done", kind="twin", loss=float("nan"))
    one = Reconstruction(
        np.full((2, 3), np.nan), "why", label=3, fc_input=np.arange(4.0), failure="far",
        loss=0.1 + 0.2, evaluations=7, trace=(1 / 3, float("inf")), others=(twin,),
        classes=(1, 2), counts=(3, 4), partial=True,
    )  # fmt: skip
    return [one, NumericsError("no image")]


def test_all_fields_come_back(tmp_path):
    Finished(tmp_path, lambda: "this").keep("part", outcomes())
    again = Finished(tmp_path, lambda: "this")
    found, error = again.of("part")
    assert 0.0 < again.earlier < 100.0
    same(found, outcomes()[0])
    np.testing.assert_array_equal(found.fc_input, np.arange(4.0))
    assert found.counts == (3, 4) and str(error) == "no image"


def test_what_cut_off_jobs_spent_counts(tmp_path, monkeypatch):
    own = Finished(tmp_path, lambda: "this")
    for part, seconds in (("first", 50.0), ("second", 90.0)):
        told = {"seconds": seconds, "cpu_seconds": 2 * seconds}
        monkeypatch.setattr(job_records, "spent", lambda told=told: told)
        own.keep(part, outcomes())
    monkeypatch.undo()
    earlier = {"seconds": 0.0, "cpu_seconds": 0.0}
    monkeypatch.setattr(job_records, "_earlier", earlier)
    Finished(tmp_path, lambda: "that").of("first")
    assert earlier == {"seconds": 0.0, "cpu_seconds": 0.0}
    for part in ("second", "first", "second"):
        Finished(tmp_path, lambda: "this").of(part)
    assert earlier == {"seconds": 90.0, "cpu_seconds": 180.0}
    took = job_records.measured()
    assert took["seconds"] > 90.0 and took["cpu_seconds"] > 180.0


def test_parts_of_another_search_and_damaged_ones_count_as_absent(tmp_path):
    own = Finished(tmp_path, lambda: "this")
    own.keep("part", outcomes())
    assert own.of("other") is None
    assert Finished(tmp_path, lambda: "that").of("part") is None
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert own.of("part") is None


def test_the_identity_is_asked_once_and_only_where_it_is_needed(tmp_path):
    ask = Mock(return_value="this")
    own = Finished(tmp_path / "none", ask)
    assert own.of("part") is None and not ask.called
    own.keep("part", outcomes())
    own.of("part")
    assert ask.call_count == 1


def test_a_large_batch_is_a_chunk_of_its_own():
    opening = Opening({}, {})
    ready = {
        number: Mock(images=np.empty((1, size, 1, 2, 2)), opening=opening)
        for number, size in enumerate((1, 2, 40, 1))
    }
    assert Dlg(chunk=32)._chunks(ready) == [[0, 1], [2], [3]]
