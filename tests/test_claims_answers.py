"""Claims on attacks that give several answers to one gradient, and on those that fail."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from claims_rgap import read, rgap, rgap_scores
from claims_synthetic import Judged, changed
from gradleak.claims import Claims, evaluate
from gradleak.claims.forms.paired import one_answer
from gradleak.claims.model import Claim
from gradleak.errors import ArtifactError

FAILED = {"status": "failed", "value": ""}


def _claim(name: str, **query: Any) -> Claims:
    edited = []
    for claim in rgap().claims:
        content = claim.model_dump()
        content["query"] |= query if claim.id == name else {}
        edited.append(Claim.model_validate(content))
    return rgap().model_copy(update={"claims": edited})


def of(folder: Path, scores: list[dict]) -> Judged:
    return Judged(rgap(), read(folder, scores, []))


def test_a_query_sees_the_own_choice_or_all_answers(tmp_path: Path) -> None:
    where: dict[str, Any] = {"result": "rgap_lenet", "model": "rgap_lenet", "attack": "dlg"}
    real = read(tmp_path, rgap_scores(), []).on("real")
    assert set(real.runs(where, "mse")["answer"]) == {"0"}
    assert len(real.runs(where, "mse", "all")) == 18
    assert len(real.runs({**where, "kind": ["start 1", "start 2"]}, "mse")) == 12
    assert len(real.runs({**where, "answer": [1]}, "mse")) == 6


def test_one_answer_twice_is_refused(tmp_path: Path) -> None:
    start = next(row for row in rgap_scores() if row["answer"] == 2)
    with pytest.raises(ArtifactError, match="two values of mse for dlg"):
        evaluate(rgap(), read(tmp_path, [*rgap_scores(), start], []), "real", "laptop")


def test_starts_are_compared_by_their_median(tmp_path: Path) -> None:
    name, where = "rgap.refined.better", {"model": "rgap_lenet", "attack": "dlg"}
    comparisons = [{"better": {"attack": "dlg"}, "than": {"attack": "rgap_dlg"}}]
    every = _claim(name, comparisons=comparisons, answers="all")
    one = changed(rgap_scores(), {**where, "answer": 0}, **FAILED)
    found = Judged(every, read(tmp_path, one, []))[name]
    assert (found.verdict, found.n, found.n_ok) == ("reproduced", 24, 18)
    two = changed(one, {**where, "answer": 1}, **FAILED)
    assert Judged(every, read(tmp_path, two, []))[name].verdict == "differs"
    found = Judged(_claim(name, comparisons=comparisons), read(tmp_path, one, []))[name]
    assert (found.verdict, found.n_ok) == ("differs", 6)


def test_more_failed_answers_than_not_are_a_failure() -> None:
    rows = [("m", "0", 0, 0, value) for value in (20.0, math.nan, math.nan)]
    rows += [("m", "0", 0, 1, value) for value in (20.0, 30.0, math.nan)]
    found = pd.DataFrame(rows, columns=["model", "seed", "batch", "index", "value"])
    assert one_answer(found, "psnr").ok.tolist() == [False, True]
    assert one_answer(found, "psnr").value.tolist() == [-math.inf, 20.0]
    assert one_answer(found, "mse").value.tolist() == [math.inf, 30.0]


def test_failed_starts_count_in_shares_and_means(tmp_path: Path) -> None:
    where = {"result": "rgap_twin", "model": "rgap_twin", "attack": "dlg_same_class"}
    failed = of(tmp_path, changed(rgap_scores(), {**where, "answer": 2}, **FAILED))
    share = failed["rgap.twin.same_class"]
    assert (share.verdict, share.n, share.n_ok) == ("reproduced", 36, 30)
    assert share.ours == pytest.approx(2 / 3) and "67% against 0%" in share.reason
    # Two metrics of the same six searches of three starts.
    twin = failed["rgap.twin.dlg_random"]
    assert (twin.n, twin.n_ok) == (18, 18)
    where = {"model": "rgap_cnn6", "attack": "dlg", "answer": 0}
    for count, verdict in ((2, "reproduced"), (3, "differs")):
        rows = rgap_scores()
        for index in range(count):
            rows = changed(rows, {**where, "index": index}, **FAILED)
        mean = of(tmp_path, rows)["rgap.table1.dlg.cnn6"]
        assert (mean.verdict, mean.n, mean.n_ok) == (verdict, 6, 6 - count)
        assert f"{count} of 6 runs failed" in mean.reason


def test_a_failed_batch_counts_once_in_its_r2(tmp_path: Path) -> None:
    where = {"result": "rgap_batch5", "attack": "rgap_float32", "batch": 0}
    rows = changed(rgap_scores(), where, **FAILED)
    rows = [row for row in rows if row["status"] == "ok" or row["metric"] == "mse"]
    found = of(tmp_path, rows)["rgap.batch.combination.5"]
    assert (found.n, found.n_ok, found.verdict) == (6, 5, "differs")
    assert found.reason.startswith("5 of 6 batches")


@pytest.mark.parametrize(
    ("name", "where", "verdict"),
    [
        ("hgap.best.cnn6.cifar.dlg", {"model": "rgap_cnn6", "attack": "dlg"}, "reproduced"),
        ("hgap.best.cnn6.cifar.dlg", {"model": "rgap_cnn6", "attack": "hgap"}, "differs"),
        ("ra.bigger.mse", {"model": "rgap_fig2_c", "attack": "dlg"}, "reproduced"),
        ("ra.bigger.mse", {"model": "rgap_fig2_b", "attack": "dlg"}, "differs"),
    ],
)
def test_a_failure_counts_against_the_side_that_may_not_be_worse(
    tmp_path: Path, name: str, where: dict, verdict: str
) -> None:
    rows = changed(rgap_scores(), {**where, "index": 3}, **FAILED)
    assert of(tmp_path, rows)[f"rgap.{name}"].verdict == verdict
