"""Scores of FedKL's experiments, and what claims make of a metric whose network has no weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from backbone_files import write
from chains import chain, conv
from claims_synthetic import claim, claims_file
from gradleak.attacks import reconstructions
from gradleak.claims import Evidence, evaluate
from gradleak.data.targets import TargetSet
from gradleak.errors import DataError
from gradleak.models import files
from gradleak.models.initial import family_weights
from gradleak.runtime.artifacts import write_rows, write_tensors
from gradleak.scoring import scores, scores_fedkl
from gradleak.scoring.metrics.image import psnr_rmse, rmse_255, ssim_255
from gradleak.scoring.metrics.perceptual import Lpips, as_stored, standard

SIDE = 12
NETWORK = chain(conv(4, 3), conv(6, 3), channels=3, side=SIDE, classes=3)
CASE = {"paper": "fedkl", "result": "fedkl_pair", "attack": "dlg", "defence": "none"}
CASE |= {"images": "real", "targets": "pair", "precision": "float32", "mode": "training"}
CASE["training"] = ""
TASK = {"loss": "cross_entropy", "labels": "dataset"}
NEEDS_WEIGHTS = {"lpips_alex", "lpips_squeeze", "lpips_vgg", "lpips_alex_255", "lpips_vgg_255"}


def target_set(batches: int = 3, size: int = 1) -> TargetSet:
    pixels = np.random.default_rng(0).integers(0, 256, (batches, size, 3, SIDE, SIDE))
    numbers = np.arange(batches * size).reshape(batches, size)
    names, words = tuple(f"image {k}" for k in range(batches)), {0: "ant", 1: "bee", 2: "cow"}
    same = pixels.astype(np.uint8), numbers % 3, numbers, -0.5, names
    return TargetSet(*same, source={}, words=words, std=0.5)


def record(batch: int, status: str = "ok", **more: Any) -> dict[str, Any]:
    reason = "" if status == "ok" else "The gradient holds NaN."
    run = {"model": "small", "seed": 0, "batch": batch, "answer": 0, "kind": "answer"}
    run |= {"status": status, "reason": reason, "evaluations": 9, "loss": 0.5, "label": None}
    return {**run, **more}


@pytest.fixture
def made(tmp_path):
    """Network file, targets, and reconstructions: one near, one exact, one failed."""
    targets = target_set()
    found = np.stack([targets.inputs(batch) for batch in range(3)])[None, :, None, 0]
    found[0, 0] += np.random.default_rng(1).normal(0.0, 0.4, found[0, 0].shape)
    found[0, 2] = np.nan
    path, model = str(tmp_path / "found.safetensors"), str(tmp_path / "model.safetensors")
    records = [record(0), record(1), record(2, "failed")]
    write_tensors(path, {"small/images": found[:, :, :, None]}, {"runs": records})
    files.save(model, [NETWORK], family_weights([NETWORK], 1), {})
    return path, targets, files.read(model), CASE


@pytest.fixture
def weights(tmp_path):
    return write(tmp_path / "lpips", "alex", "squeeze")


def table(rows: list[dict[str, Any]], path: Path) -> pd.DataFrame:
    write_rows(path, scores.COLUMNS, rows)
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def test_one_row_per_image_and_metric(made, weights, tmp_path):
    _, targets, _, _ = made
    found = table(scores_fedkl.score(*made, weights), tmp_path / "s.csv")
    assert len(found) == 3 * len(scores_fedkl.METRICS)
    assert not found.duplicated(["batch", "metric"]).any()
    near = found[found["batch"] == "0"].set_index("metric")
    original = targets.images[0, 0] / 255.0
    images, _ = reconstructions.read(made[0])
    pixels = targets.pixels(images["small/images"][0, 0, 0, 0])
    alex = Lpips("alex", weights[0])
    expected = {
        "rmse_255": rmse_255(original, pixels),
        "psnr_rmse": psnr_rmse(original, pixels),
        "ssim_255": ssim_255(original, pixels),
        "lpips_alex": alex(standard([original]), standard([pixels]))[0],
        "lpips_alex_255": alex(as_stored([original]), as_stored([pixels]))[0],
        "lpips_squeeze": Lpips("squeeze", weights[1])(standard([original]), standard([pixels]))[0],
    }
    for name, value in expected.items():
        assert near.loc[name, "status"] == "ok"
        assert float(near.loc[name, "value"]) == pytest.approx(value, rel=1e-5)


def test_an_exact_and_a_failed_reconstruction(made, weights, tmp_path):
    found = table(scores_fedkl.score(*made, weights), tmp_path / "s.csv")
    exact = found[(found["batch"] == "1") & (found["status"] == "ok")].set_index("metric")["value"]
    assert float(exact["lpips_alex"]) == 0.0
    assert float(exact["rmse_255"]) < 1e-10 and float(exact["psnr_rmse"]) > 120
    assert float(exact["ssim_255"]) == pytest.approx(1.0)
    failed = found[found["batch"] == "2"]
    assert set(failed["status"]) == {"failed"} and set(failed["value"]) == {""}
    assert set(failed["reason"]) == {"The gradient holds NaN."}


def test_without_weights_rows_stay_empty_and_say_how_to_get_them(made, weights, tmp_path):
    found = table(scores_fedkl.score(*made, weights), tmp_path / "s.csv")
    lacking = found[found["status"] == "not_available"]
    assert set(lacking["metric"]) == {"lpips_vgg", "lpips_vgg_255"} and len(lacking) == 4
    assert set(lacking["value"]) == {""}
    assert lacking["reason"].str.contains(r"VGG-16 are missing: .*vgg16-397923af\.pth").all()
    none = table(scores_fedkl.score(*made, []), tmp_path / "none.csv")
    lacking = none[none["status"] == "not_available"]
    assert set(lacking["metric"]) == NEEDS_WEIGHTS and set(lacking["value"]) == {""}
    ok = none[none["status"] == "ok"]
    assert set(ok["metric"]) == {"rmse_255", "psnr_rmse", "ssim_255"} and len(ok) == 6


def test_a_damaged_file_of_weights_stops_the_job(made, weights):
    Path(weights[1]).write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"squeeze\.safetensors cannot be read as weights of Squ"):
        scores_fedkl.score(*made, weights)


def test_images_of_a_batch_are_matched_before_they_are_compared(made, weights, tmp_path):
    targets = target_set(1, 2)
    swapped = targets.inputs(0)[::-1]
    path = str(tmp_path / "batch.safetensors")
    write_tensors(path, {"small/images": swapped[None, None, None]}, {"runs": [record(0)]})
    found = table(scores_fedkl.score(path, targets, made[2], CASE, weights), tmp_path / "b.csv")
    assert found[found["metric"] == "lpips_squeeze"]["value"].astype(float).tolist() == [0.0, 0.0]
    assert found[found["metric"] == "rmse_255"]["index"].tolist() == ["0", "1"]


def test_files_in_which_nothing_worked_need_no_network(made, weights, tmp_path):
    path = str(tmp_path / "failed.safetensors")
    write_tensors(path, {}, {"runs": [record(0, "not_applicable")]})
    rows = scores_fedkl.score(path, *made[1:], weights)
    assert {row["metric"] for row in rows} == set(scores_fedkl.METRICS)
    assert {row["status"] for row in rows} == {"not_applicable"}


# --- Claims --------------------------------------------------------------------------------------


def judge(folder: Path, evidence: Evidence, metric: str) -> pd.Series:
    """Verdict on a claim that any value at all meets."""
    where = {"result": "fedkl_pair", "attack": "dlg", "model": "small"}
    query = {"form": "runs", "metric": metric, "where": where}
    any_value = {"any": {"rule": "at_most", "amount": 1e6, "reason": "A test."}}
    claims = claims_file(folder, [claim("c", query, "any", kind="value")], tolerances=any_value)
    return evaluate(claims, evidence, "real", "laptop").iloc[0]


@pytest.fixture
def evidence(made, weights, tmp_path):
    """Two answers that worked, one with a label, scored as the pipeline does; no VGG-16."""
    path, targets, models, case = made
    images, records = reconstructions.read(path)
    write_tensors(path, images, {"runs": [records[0], {**records[1], "label": 1}]})
    rows = scores.score(path, targets, models, case, TASK)
    rows += scores_fedkl.score(path, targets, models, case, weights)
    write_rows(tmp_path / "scores.csv", scores.COLUMNS, rows)
    return Evidence.read(scores=[tmp_path / "scores.csv"])


@pytest.mark.parametrize("metric", ["lpips_vgg", "lpips_vgg_255"])
def test_a_claim_that_needs_missing_weights_is_not_judged(metric, evidence, tmp_path):
    found = judge(tmp_path, evidence, metric)
    assert found["verdict"] == "not judged"
    assert found["reason"].startswith("weights: The weights of VGG-16 are missing: ask Snakemake")
    assert np.isnan(found["ours"])


@pytest.mark.parametrize(
    ("metric", "n"),
    [("mse", 2), ("rmse_255", 2), ("ssim_255", 2), ("lpips_alex", 2), ("label_correct", 1)],
)
def test_missing_weights_are_no_failed_run_of_another_metric(metric, n, evidence, tmp_path):
    found = judge(tmp_path, evidence, metric)
    assert found["verdict"] == "reproduced"
    assert (found["n"], found["n_ok"]) == (n, n)
