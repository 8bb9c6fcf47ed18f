"""Figures and index tables from synthetic files."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from claims_synthetic import copa
from figure_files import Files, pictures, texts
from gradleak.claims import Evidence, evaluate
from gradleak.data import targets
from gradleak.data.targets import TargetSet
from gradleak.errors import ArtifactError
from gradleak.plotting import style, wording
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.tidy import TABLES as TABLE_COLUMNS
from papers.copa.figures import network_index as index_figure
from papers.copa.figures import samples
from papers.copa.tables import many_images, network_index

MODELS = ["cnn3_v1_tanh", "cnn3_v3_tanh"]
ATTACKS = {"copa": "COPA", "copa_tv": "COPA denoised", "rgap": "R-GAP"}
REASON = "Overflow in atanh at layer fc; the gradient is saturated."


def target_set(origin="embedded", classes=("motorcycle", "cat")):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 1, 3, 8, 8), dtype=np.uint8)
    labels, indices = np.array([[[9], [4]], [[1], [3]]])
    source = {"dataset": "cifar10", "split": "train", "origin": origin}
    words = dict(zip((9, 4), classes, strict=True))
    return TargetSet(pixels, labels, indices, -0.5, ("truck", "animal"), source, words)


def score_row(model, attack, **changed):
    same = {"paper": "copa", "result": "copa_pair", "defence": "none", "images": "embedded"}
    row = {**same, "targets": "copa_pair", "model": model, "attack": attack, "seed": 0, "batch": 0}
    row |= {"index": 1, "label": "x", "metric": "mse", "value": 0.05, "status": "ok", "reason": ""}
    more = {"name": "truck", "precision": "float32", "answer": 0, "kind": "answer"}
    return {**row, **more, **changed}


def security_rows(model, contributions, method="structural"):
    same = {"model": model, "seed": 0, "rank_method": method, "kernel": 3, "channels": 4}
    same |= {"stride": 1, "padding": 0, "fc_inputs": 50, "fc_outputs": 10}
    return [
        {**same, "layer": f"conv{place}", "unknowns": 100 * place, "contribution": contribution}
        for place, contribution in enumerate(contributions, start=1)
    ]


def sample_files(folder):
    """Two models, three attacks, two images and two seeds; R-GAP fails once on the animal."""
    made, rng = Files(folder), np.random.default_rng(1)
    made.files |= {"targets": str(folder / "targets.safetensors"), "security": []}
    targets.save(made.files["targets"], target_set(), {})
    for model in MODELS:
        for attack in ATTACKS:
            images, rows = rng.uniform(-0.7, 0.7, (2, 2, 3, 8, 8)), []
            for seed, batch in product(range(2), range(2)):
                value = 10.0 ** -(3 * seed + 2)
                rows.append(score_row(model, attack, seed=seed, batch=batch, value=value))
                if (model, attack, batch) == (MODELS[1], "rgap", 1):
                    images[seed, batch] = np.nan
                    rows[-1] |= {"value": np.nan, "status": "failed", "reason": REASON}
            keys = ("model", "seed", "batch", "answer", "kind", "status", "reason")
            runs = [{key: row[key] for key in keys} for row in rows]
            made.save({model: images[:, :, None, None]}, runs, rows)
        made.files["security"].append(str(folder / f"{model}.csv"))
        rows = security_rows(model, [0.0, -2266.5])
        write_csv(made.files["security"][-1], pd.DataFrame(rows))
    return made.files


WORDS = {"title": "Samples", "models": MODELS, "attacks": ATTACKS}


# --- Figures 1 and 2 -----------------------------------------------------------------------------


def test_samples_show_first_seed_and_failed_run(tmp_path):
    figure = samples.make(sample_files(tmp_path), WORDS, "smoke")
    found = texts(figure)
    assert len(figure.axes) == 2 * 2 * 4
    assert found.count("0.0100") == 11 and found.count("1.0e−5") == 0
    assert sum(text.startswith("median 0.0050") for text in found) == 11
    assert found.count("failed") == found.count("median failed") == 1
    assert found.count("MSE, one draw:") == found.count("median of draws:") == len(MODELS)
    # What does not fit into the frame is told below.
    assert "Overflow in atanh at layer fc (1)" in [" ".join(text.split()) for text in found]
    assert {"Variant 1", "Variant 3", "c(M) = −2266.5", f"Reasons: (1) {REASON}"} <= set(found)
    assert "Motorcycle (stands in for truck)" in found
    footer = next(text for text in found if text.startswith("Rows:")).replace("\n", " ")
    for words in ("x − 0.5", "embedded", "smoke", "float32", "seed 0, the first of 2", "median"):
        assert words in footer
    crossed = [axes for axes in figure.axes if axes.collections]
    assert len(crossed) == 1 and not crossed[0].images
    # Images are shifted back and clipped.
    original, shown = pictures(figure)[:2]
    found = np.random.default_rng(1).uniform(-0.7, 0.7, (2, 2, 3, 8, 8))[0, 0]
    np.testing.assert_allclose(shown, np.clip(np.moveaxis(found, 0, -1) + 0.5, 0, 1))
    np.testing.assert_allclose(original[0, 0], target_set().images[0, 0, :, 0, 0] / 255)


def test_real_images_are_named_as_the_paper_does():
    real = target_set("official", ("truck", "deer"))
    assert [samples.target_name(real, batch) for batch in (0, 1)] == ["Truck", "Animal (deer)"]
    assert wording.described(real) == "CIFAR-10 training images 1 and 3"


def test_missing_samples_are_named(tmp_path):
    files = sample_files(tmp_path)
    rows = pd.read_csv(files["scores"][0])
    write_csv(files["scores"][0], rows[rows["seed"] == 1])
    with pytest.raises(ArtifactError, match="no rows of cnn3_v1_tanh, seed 0"):
        samples.make(files, WORDS, "smoke")


def test_numbers_are_short():
    values = 0.15, 6.12, 78.0, 123.4, 999.6, 0.00012344, 1.34e-9, 0.0
    words = "0.150, 6.12, 78.0, 123, 1.0e3, 0.000123, 1.3e−9, 0"
    assert ", ".join(map(style.number, values)) == words


# --- The index -----------------------------------------------------------------------------------


def index_inputs(n=16):
    """Networks of two families with an MSE that follows c(M); R-GAP fails on the last network."""
    scores, security = [], []
    for k in range(n):
        model = f"index_{'four' if k % 2 else 'three'}_{k:03d}"
        lost = [0.0, -10.0 * k, *[0.0] * (k % 2)]
        security += security_rows(model, lost, "structural" if k < 10 else "numerical")
        for attack, index in product(("rgap", "copa"), range(3)):
            value = 0.001 * (k + index + 1)
            scores.append(score_row(model, attack, index=index, batch=index, value=value))
            if attack == "rgap" and k == 0:
                scores[-1] |= {"value": "", "status": "failed", "reason": REASON}
    return pd.DataFrame(scores), pd.DataFrame(security)


@pytest.fixture(scope="module")
def index_table():
    return network_index.table(*index_inputs(), images="embedded", scale="smoke")


def test_index_rows(index_table):
    assert list(index_table.columns[: len(TABLE_COLUMNS)]) == TABLE_COLUMNS
    rows = index_table.set_index(["row", "column"])
    found = rows.loc["index_three_004", "copa"]
    assert (found["metric"], found["n"], found["n_ok"], found["c"]) == ("mse", 3, 3, -40.0)
    assert found["ours"] == pytest.approx(0.006) and found["low"] < 0.006 < found["high"]
    assert found["layers"] == "4 k3 s1 p0; 4 k3 s1 p0; fc 50 to 10"
    failed = rows.loc["index_three_000"].query("n_ok == 0")
    assert list(failed.index) == ["rgap"] and failed["ours"].isna().all()
    assert REASON in failed["note"].iloc[0]


@pytest.fixture(scope="module")
def summary(index_table):
    return index_table[index_table["metric"] == "spearman"].set_index(["row", "column"])


def test_failed_network_counts_as_worst(summary):
    copa, rgap = (summary.loc[("all networks", attack)] for attack in ("copa", "rgap"))
    assert (copa["ours"], copa["low"], copa["high"]) == pytest.approx((-1, -1, -1))
    worst = [-10 * k for k in range(16)], [99.0, *range(1, 16)]
    assert rgap["ours"] == pytest.approx(stats.spearmanr(*worst).statistic)
    assert (rgap["n"], rgap["n_ok"]) == (16, 15)
    assert rgap["low"] < rgap["ours"] < rgap["high"]
    groups = {row for row, _ in summary.index}
    assert {"three-layer networks", "four-layer networks", "all networks, image 2"} <= groups
    assert len(groups) == 3 * 4


def test_claims_read_the_index_table_with_its_intervals(index_table, summary, tmp_path):
    name = "copa_index"
    write_csv(tmp_path / f"{name}.csv", index_table)
    evidence = Evidence.read(index=[tmp_path / f"{name}.csv"])
    x, y, n_ok = evidence.networks("c", "mse_rgap", name)
    assert (len(x), n_ok, np.isinf(y).sum()) == (16, 15, 1)
    assert set(x) == {-10.0 * k for k in range(16)}
    assert set(evidence.networks("expansion", "mse_copa", name)[0]) == {2.0}
    judged = evaluate(copa(), evidence, "real", "laptop").set_index("id")
    for attack in ("copa", "rgap"):
        one = judged.loc[f"copa.c.indicator.{attack}"]
        other = summary.loc[("all networks", attack)]
        for key in ("ours", "low", "high"):
            assert one[key] == pytest.approx(other[key], abs=1e-9)
        assert one["verdict"] == "reproduced" and (one["n"], one["n_ok"]) == (16, other["n_ok"])


def test_index_inputs_must_agree():
    scores, security = index_inputs()
    fewer = security[security["model"] != "index_three_000"]
    with pytest.raises(ArtifactError, match="disagree on network 'index_three_000'"):
        network_index.table(scores, fewer, images="real", scale="smoke")


def test_index_figure(index_table, tmp_path):
    write_csv(tmp_path / "index.csv", index_table)
    table = pd.read_csv(tmp_path / "index.csv")
    for name in "ab":
        figure = index_figure.draw(table, 0.07)
        style.save(figure, tmp_path / name / "index.pdf")
    one, other = (
        [(tmp_path / n / f"index.{s}").read_bytes() for s in ("pdf", "png")] for n in "ab"
    )
    assert one == other
    found = "\n".join(texts(figure))
    assert "mean MSE of 0.0700" in found.replace("\n", " ")
    dashed = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == "--"]
    assert [set(line.get_ydata()) for line in dashed] == [{0.07}, {0.07}]
    assert "COPA, 16 networks\nSpearman's ρ = −1.00 (95 % interval −1.00 to −1.00)" in found
    assert "COPA: yes, strongly" in found
    lines = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata())]
    marks = [line.get_marker() for line in lines]
    assert marks.count("x") == 1 and "^" in marks and "o" in marks


def conclusion(values, *depths, n=40):
    """What is said of COPA's correlations over all networks, and over some of them."""
    row = pd.DataFrame([(*values, n)], columns=["ours", "low", "high", "n"], index=["copa"])
    rows = pd.DataFrame(depths, columns=["row", *row.columns]).assign(column="copa")
    return index_figure.conclusion(row, index_figure.by_depth(rows.astype({"row": "str"})))


def test_conclusion_follows_the_interval():
    for values, words in (
        ((-0.4, -0.6, -0.1), "yes, only in part"),
        ((-0.1, -0.4, 0.2), "no correlation found (the interval includes 0)"),
        ((0.5, 0.2, 0.7), "no, a c(M) nearer to 0 goes with a larger error"),
        ((np.nan, np.nan, np.nan), "too few networks"),
    ):
        assert words in conclusion(values)
        assert "too few networks" in conclusion(values, n=4)


def test_depths_are_compared_from_the_table():
    row = (0.0, -0.3, 0.3)
    whole, image = ("all networks", *row, 40), ("three-layer networks, image 0", 0.9, 0.8, 1.0, 20)
    for three, four, words in (
        ((-0.3, -0.7, 0.2), (0.4, -0.1, 0.7), "differ in sign, but each interval includes 0."),
        ((-0.3, -0.5, -0.1), (-0.4, -0.6, -0.2), "agree in sign, and no interval includes 0."),
        ((-0.3, -0.5, -0.1), (0.4, -0.1, 0.7), "differ in sign, but the interval of four-layer"),
    ):
        both = ("three-layer networks", *three, 20), ("four-layer networks", *four, 20)
        said = conclusion(row, whole, image, *both)
        assert f"Three- and four-layer networks {words}" in said
        few = ("four-layer networks", *four, 4)
        assert "sign" not in conclusion(row, whole, both[0], few)


def test_grey_error_is_that_of_the_zero_input():
    zero = np.mean([np.mean(target_set().inputs(batch) ** 2) for batch in range(2)])
    assert index_figure.grey_error(target_set()) == pytest.approx(zero)


# --- Many images ---------------------------------------------------------------------------------


def test_many_images_table():
    rows = [
        score_row("m", "copa", index=index, metric=metric, value=value)
        for index, mse in enumerate((1e-2, 1e-4))
        for metric, value in (("mse", mse), ("psnr", -10 * np.log10(mse)), ("ssim", 0.5))
    ]
    rows.append(score_row("m", "copa", index=2, value="", status="failed", reason=REASON))
    scores, labels = pd.DataFrame(rows), {"rows": {"m": "Row"}, "columns": {"copa": "COPA"}}
    table = many_images.table(scores, labels, images="real", scale="laptop")
    assert list(table.columns) == TABLE_COLUMNS
    found = table.set_index("metric")
    assert np.isnan(found.loc["mse", "ours"]) and np.isnan(found.loc["mse", "low"])
    assert found.loc["mse", ["n", "n_ok", "row"]].tolist() == [3, 2, "Row, 3 images"]
    assert "1 of 3 runs failed" in found.loc["mse", "note"]
    assert np.isnan(found.loc["psnr_255", "ours"]) and found.loc["psnr_255", "n"] == 0
    worked = scores[scores["status"] == "ok"]
    whole = many_images.table(worked, labels, images="real", scale="laptop")
    means = whole.set_index("metric")["ours"]
    assert means[["mse", "mse_mean", "psnr"]].tolist() == pytest.approx([1e-3, 5.05e-3, 30])
