"""What the report calls our numbers, their intervals and metrics, over all claims."""

from pathlib import Path

import pytest

from gradleak.claims import load
from gradleak.claims.forms.base import EXTREMES
from gradleak.claims.metrics import label

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "papers").glob("*/claims.yaml"))
CLAIMS = {
    claim.id: (claim, found.tolerances[claim.tolerance])
    for found in map(load, FILES)
    for claim in found.claims
}
# A claim of each form and rule, and what lies between its low and high.
INTERVALS = {
    "copa.table1.v1.layer1.kernel": EXTREMES,
    "fedkl.prop2.scale": EXTREMES,
    "copa.table2.fig1.v1.truck.copa.mse": "95 %: one further run",
    "mkor.table2.mkor.o_avg_psnr": "95 %: one further batch",
    "rgap.table1.rgap64.cnn6": "95 %: the mean, widened",
    "copa.fig1.close.v1": "90 %",
    "copa.c.full.fig1": "95 % of the runs",
    "copa.c.position": "95 %",
    "copa.c.indicator.copa": "95 %",
    "fedkl.decline.central.lenet_mnist": "95 %",
    "rgap.twin.same_class": "95 %",
}
OURS = {
    "copa.variants.cover": "smallest gap",
    "copa.c.position": "ratio of MSEs",
    "mkor.better.original.gi.ssim": "mean difference of 1 − SSIM",
    "fedkl.worse.ig_resnet20_mnist.rmse_255": "ratio of RMSEs",
    "copa.fig1.close.v1": "mean difference of MSE",
    "copa.c.full.fig1": "median over runs of MSE",
    "copa.c.indicator.copa": "Spearman's rank correlation over networks",
    "mkor.sweep.ssim": "Spearman's rank correlation over batches",
    "fedkl.decline.central.lenet_mnist": "least clear difference; above −3 where",
    "rgap.fig1.zero": "the number that decides",
    "fedkl.models": "what the paper's own numbers come to",
    "fedkl.psnr.with": "share of the paper's numbers",
    "copa.table2.psnr_matches_mse": "cells of the paper's that agree",
    "rgap.twin.same_class": "share of starts",
    "copa.padding.copa": "the change's effect",
    "mkor.table2.mkor.o_avg_psnr": "mean over batches of each one's mean PSNR",
}


@pytest.mark.parametrize("claim", INTERVALS)
def test_an_interval_is_called_what_the_judge_makes(claim):
    found, tolerance = CLAIMS[claim]
    assert found.query.interval(tolerance) == INTERVALS[claim]


@pytest.mark.parametrize("claim", OURS)
def test_ours_is_called_what_the_judge_makes(claim):
    found, tolerance = CLAIMS[claim]
    assert found.query.ours(tolerance).startswith(OURS[claim])


def test_ours_is_said_of_every_form_but_what_is_measured_elsewhere():
    for claim, tolerance in CLAIMS.values():
        assert bool(claim.query.ours(tolerance)) == (claim.query.form != "elsewhere"), claim.id


def test_an_exact_claim_never_has_a_share_of_certainty():
    for claim, tolerance in CLAIMS.values():
        if claim.kind == "exact" and claim.query.form in ("runs", "column"):
            assert claim.query.interval(tolerance) == EXTREMES, claim.id


LABELS = {
    "rmse_255": "the paper's “MSE”: a root, of 0..255", "avg_psnr": "mean PSNR, dB",
    "psnr_median": "median PSNR, dB", "eq33_printed": "Equation (33), as printed", "kernel": "",
    "max_nothing": "",
}  # fmt: skip


def test_labels_of_metrics():
    assert {name: label(name) for name in LABELS} == LABELS


def test_every_metric_of_docs_has_a_label():
    rows = (ROOT / "docs/metrics.md").read_text(encoding="utf-8").split("| --- | --- | --- |")[1]
    table = rows.partition("\n\n")[0]
    names = [part for line in table.splitlines() for part in line.partition(" | ")[0].split("`")]
    metrics = [name for name in names[1:] if name.isidentifier()]
    assert len(metrics) > 8 and all(label(name) for name in metrics)
