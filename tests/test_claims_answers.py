"""Claims on attacks that give several answers to one gradient, and on those that fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from claims_rgap import FILE, changed, rank_rows, read, score_rows
from claims_synthetic import Judged
from gradleak.claims import Claims, Evidence, evaluate, load
from gradleak.claims.forms.paired import one_answer
from gradleak.claims.model import Claim
from gradleak.errors import ArtifactError


@pytest.fixture(scope="module")
def claims() -> Claims:
    return load(FILE)


@pytest.fixture(scope="module")
def scores(claims: Claims) -> list[dict]:
    return score_rows(claims)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory, scores: list) -> Evidence:
    return read(tmp_path_factory.mktemp("evidence"), scores, rank_rows())


def _claim(claims: Claims, name: str, **query: Any) -> Claims:
    """The claims with one claim's query changed."""
    edited = [
        Claim.model_validate(
            {**claim.model_dump(), "query": {**claim.query.model_dump(), **query}}
            if claim.id == name
            else claim.model_dump()
        )
        for claim in claims.claims
    ]
    return claims.model_copy(update={"claims": edited})


def test_a_query_sees_the_own_choice_or_all_answers(evidence: Evidence) -> None:
    where: dict[str, Any] = {"result": "rgap_lenet", "model": "rgap_lenet", "attack": "dlg"}
    real = evidence.on("real")
    assert set(real.runs(where, "mse")["answer"]) == {"0"}
    assert len(real.runs(where, "mse", "all")) == 18
    assert len(real.runs({**where, "kind": ["start 1", "start 2"]}, "mse")) == 12
    assert len(real.runs({**where, "answer": [1]}, "mse")) == 6


def test_one_answer_twice_is_refused(claims: Claims, scores: list, tmp_path: Path) -> None:
    start = next(row for row in scores if row["answer"] == 2)
    with pytest.raises(ArtifactError, match="two values of mse for dlg"):
        evaluate(claims, read(tmp_path, [*scores, start], []), "real", "laptop")


def test_starts_are_compared_by_their_median(claims: Claims, scores: list, tmp_path: Path) -> None:
    name, where = "rgap.refined.better", {"model": "rgap_lenet", "attack": "dlg"}
    comparisons = [{"better": {"attack": "dlg"}, "than": {"attack": "rgap_dlg"}}]
    every = _claim(claims, name, comparisons=comparisons, answers="all")
    one = changed(scores, {**where, "answer": 0}, status="failed", value="")
    frame = Judged(every, read(tmp_path, one, []))
    assert frame[name].verdict == "reproduced"
    assert (frame[name].n, frame[name].n_ok) == (24, 18)
    two = changed(one, {**where, "answer": 1}, status="failed", value="")
    frame = Judged(every, read(tmp_path, two, []))
    assert frame[name].verdict == "differs"
    own = _claim(claims, name, comparisons=comparisons)
    frame = Judged(own, read(tmp_path, one, []))
    assert (frame[name].verdict, frame[name].n_ok) == ("differs", 6)


def test_more_failed_answers_than_not_are_a_failure() -> None:
    rows = [("m", "0", 0, 0, value) for value in (20.0, math.nan, math.nan)]
    rows += [("m", "0", 0, 1, value) for value in (20.0, 30.0, math.nan)]
    found = pd.DataFrame(rows, columns=["model", "seed", "batch", "index", "value"])
    assert one_answer(found, "psnr").ok.tolist() == [False, True]
    assert one_answer(found, "psnr").value.tolist() == [-math.inf, 20.0]
    assert one_answer(found, "mse").value.tolist() == [math.inf, 30.0]


def test_failed_starts_count_in_shares_and_means(
    claims: Claims, scores: list, tmp_path: Path
) -> None:
    where = {"result": "rgap_twin", "model": "rgap_twin", "attack": "dlg_same_class"}
    failed = changed(scores, {**where, "answer": 2}, status="failed", value="")
    share = Judged(claims, read(tmp_path, failed, []))["rgap.twin.same_class"]
    assert (share.verdict, share.n, share.n_ok) == ("reproduced", 36, 30)
    assert share.ours == pytest.approx(2 / 3) and "67% against 0%" in share.reason
    # Two metrics of the same six searches of three starts.
    twin = Judged(claims, read(tmp_path, failed, []))["rgap.twin.dlg_random"]
    assert (twin.n, twin.n_ok) == (18, 18)
    where = {"model": "rgap_cnn6", "attack": "dlg", "answer": 0}
    for count, verdict in ((2, "reproduced"), (3, "differs")):
        rows = scores
        for index in range(count):
            rows = changed(rows, {**where, "index": index}, status="failed", value="")
        mean = Judged(claims, read(tmp_path, rows, []))["rgap.table1.dlg.cnn6"]
        assert (mean.verdict, mean.n, mean.n_ok) == (verdict, 6, 6 - count)
        assert f"{count} of 6 runs failed" in mean.reason


def test_a_failed_batch_counts_once_in_its_r2(claims: Claims, scores: list, tmp_path: Path) -> None:
    where = {"result": "rgap_batch5", "attack": "rgap_float32", "batch": 0}
    rows = [
        row
        for row in changed(scores, where, status="failed", value="")
        if row["status"] == "ok" or row["metric"] == "mse"
    ]
    found = Judged(claims, read(tmp_path, rows, []))["rgap.batch.combination.5"]
    assert (found.n, found.n_ok, found.verdict) == (6, 5, "differs")
    assert found.reason.startswith("5 of 6 batches")


def test_a_failure_counts_against_the_side_that_may_not_be_worse(
    claims: Claims, scores: list, tmp_path: Path
) -> None:
    name = "rgap.hgap.best.cnn6.cifar.dlg"
    for attack, verdict in (("dlg", "reproduced"), ("hgap", "differs")):
        where = {"model": "rgap_cnn6", "attack": attack, "index": 3}
        rows = changed(scores, where, status="failed", value="")
        assert Judged(claims, read(tmp_path, rows, []))[name].verdict == verdict
    name = "rgap.ra.bigger.mse"
    for model, verdict in (("rgap_fig2_c", "reproduced"), ("rgap_fig2_b", "differs")):
        where = {"model": model, "attack": "dlg", "index": 3}
        rows = changed(scores, where, status="failed", value="")
        assert Judged(claims, read(tmp_path, rows, []))[name].verdict == verdict
