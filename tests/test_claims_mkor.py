"""Claims of MKOR: its tables, values of batches, images that were missed, tables of ours."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
import yaml

from claims_synthetic import ROOT, outcome, read, score, verdicts
from gradleak.claims import load, table
from gradleak.claims.forms import Runs
from gradleak.errors import ConfigError

FILE = ROOT / "papers/mkor/claims.yaml"
BATCHES, SIZE = 5, 6
WHERE = {"result": "r", "model": "m", "defence": "none", "attack": "a"}
KEY = tuple(WHERE.values())


def _row(key, batch, index, metric, value, **changes):
    where = dict(zip(WHERE, key, strict=True))
    more = {"paper": "mkor", "defence": where["defence"], "label": f"class {index}", "batch": batch}
    return score(where, index, metric, value, **more | changes)


def _batch(key, batch, metric, values):
    return [_row(key, batch, SIZE * batch + k, metric, v) for k, v in enumerate(values)]


def _classes(key, batch, counts, **status):
    return [
        _row(key, batch, -1, "count", value, label=label, status=status.get(label, "ok"))
        for label, value in counts.items()
    ]


def _of_batches(folder, rows, query, tolerance, paper_value=None):
    query = {"form": "runs", "metric": "ssim", "of": "batches", "where": WHERE, **query}
    more = {"kind": "value", "paper_value": paper_value}
    return outcome(folder, query, tolerance, read(folder, rows), **more)


@pytest.fixture(scope="module")
def claims():
    return load(FILE)


@pytest.fixture(scope="module")
def evidence(claims, tmp_path_factory):
    """Runs whose best and mean images are those of the paper's tables."""
    cells = defaultdict(dict)
    for claim in claims.claims:
        query = claim.query
        if claim.cell is not None and claim.is_printed and isinstance(query, Runs):
            where = {"defence": "none", **query.where}
            key = tuple(str(where[name]) for name in WHERE)
            assert query.take is not None
            cells[key, query.metric][query.take] = claim.paper_value
    rows = []
    for (key, metric), found in cells.items():
        best = found["max"]
        rest = (SIZE * found.get("mean", best) - best) / (SIZE - 1)
        for batch in range(1 if "photos" in key[0] else BATCHES):
            values = [best, *[rest] * (SIZE - 1)]
            partial = values[:1] if key[3] == "class_fishing" else values
            rows += _batch(key, batch, metric, partial)
    return read(tmp_path_factory.mktemp("mkor"), rows)


@pytest.fixture(scope="module")
def judged(claims, evidence):
    return verdicts(claims, evidence)


def test_every_number_of_the_tables_is_there(claims):
    theirs = [c for c in claims.judged() if c.cell is not None and c.whose == "paper"]
    tables = [c.cell.table for c in theirs if c.cell is not None]
    counts = {name: tables.count(f"mkor_table{name}") for name in (1, 2, 3, 4, 6, 7)}
    # Table 1: six rows of five columns; CF's two averages are not in the others.
    assert counts == {1: 30, 2: 36, 3: 14, 4: 32, 6: 36, 7: 36}
    by_id = {claim.id: claim for claim in claims.claims}
    modified = by_id["mkor.table3.modified.max_psnr"]
    assert (modified.paper_value, modified.rounding) == (163.557, 0.0005)
    assert by_id["mkor.table3.mkor.max_ssim"].spread == 0.01
    assert by_id["mkor.table7.dlg.o_avg_psnr"].paper_value == -35.14
    assert by_id["mkor.table1.cf.samples"].printed == "≤ 1"


def test_the_papers_own_world_reproduces_its_tables(claims, evidence):
    judged = verdicts(claims, evidence, scale="paper")
    cells = judged[judged.index.str.match(r"mkor\.table[23467]\.") & judged["ours"].notna()]
    numbers = cells[cells["paper_value"].notna()]
    theirs = numbers[~numbers["statement"].str.startswith("Ours")]
    assert len(theirs) == 36 + 14 + 14 + 36 + 36
    reproduced = theirs["verdict"] == "reproduced"
    rest = theirs.loc[~reproduced, "reason"].str.extract("^(nothing|one draw)")[0]
    # Failed searches of DLG and iDLG, of GI under Soteria and on the modified LeNet under noise;
    # photos, which are one batch.
    assert rest.value_counts().to_dict() == {"nothing": 61, "one draw": 14}
    of = rest[rest.eq("nothing")].index.str.extract(r"(table\d\.\w+\.\w)_")[0].value_counts()
    assert of.filter(like="gi").to_dict() == dict.fromkeys(
        ("table7.gi.o", "table7.gi.m", "table6.gi.m"), 4
    )
    alone = theirs["reason"].str.startswith("one draw: one batch")
    assert set(theirs[alone].index.str.slice(0, 12)) == {"mkor.table4."}
    assert "(5 batches)" in judged.loc["mkor.table2.mkor.o_avg_ssim", "reason"]
    failed = judged.loc["mkor.table2.dlg.o_avg_psnr", "reason"]
    assert failed.endswith("a black image has a mean PSNR of 9.7 dB against digits")
    orders = judged[judged.index.str.match(r"mkor\.(noise\.|soteria\.)?better\..*\.(i?dlg|gi)\.")]
    assert len(orders) == 36 and (orders["verdict"] == "reproduced").all()
    assert orders["reason"].str.contains("over 5 batches").all()
    assert judged.loc["mkor.cifar.better.gi", "ours"] < 1
    best = judged[judged.index.str.match(r"mkor\.(noise\.|soteria\.)?best\.")]
    assert len(best) == 12 and (best["verdict"] == "reproduced").all() and (best["ours"] > 0).all()
    assert best["reason"].str.endswith("the largest of 4 comparisons").all()


def test_searches_that_are_cut_short_are_not_judged(claims, judged):
    cells = r"table[267]\.(i?dlg|gi|cf)\.|table1\.(dlg|gi)\.(batch|samples)"
    found = judged[judged.index.str.match(rf"mkor\.({cells}|.*\b(better|best)\.(o|m))")]
    assert len(found) == 84 + 4 + 36 + 12 + 12
    assert (found["verdict"] == "not judged").all()
    assert found["reason"].str.contains("of 24,000 steps|of 6,000 gradients").all()
    # The amounts that the reasons name are those of the paper's scale.
    paper = yaml.safe_load(FILE.with_name("paper.yaml").read_text())
    assert paper["scales"]["mkor_evaluations"]["paper"] == 6000
    fishing = paper["attacks"]["class_fishing"]["iterations"]
    steps = paper["scales"]["mkor_gi_steps"]
    for scale in ("laptop", "paper"):
        assert fishing[scale] == steps[scale]
    # GI may take as many at night; class fishing ends sooner there.
    assert steps["paper"] == steps["night"] == 24000


def test_what_cannot_be_is_refuted_or_not_judged(judged):
    refuted = set(judged[judged["verdict"] == "refuted"].index)
    equations = {f"mkor.eq{n}" for n in (12, 13, 15, "2.series")}
    overall = {"mkor.modified.overall", *(f"mkor.modified.overall.{n}" for n in (100, 1000))}
    assert refuted == equations | overall
    random = judged.filter(regex=r"^mkor\.table4\.random", axis=0).dropna(subset="paper_value")
    assert (random["verdict"] == "not judged").all()
    assert random["reason"].str.startswith("data: missing are random batches").all()
    best = judged.loc["mkor.cifar.best.cf.psnr"]
    assert best["reason"].startswith("scale: needs at least paper") and best["ours"] > 0
    none = judged.loc["mkor.table1.mkor.server", "reason"]
    assert none == "data: there is no table mkor_inconspicuous"


@pytest.mark.parametrize(("psnr", "exact"), [(160.0, True), (40.0, False)])
def test_infinite_means_the_same_image_in_8_bits(claims, tmp_path, psnr, exact):
    modified = ("mkor_photos_modified", "mkor_modified_1000", "none", "mkor")
    strided = ("mkor_photos_strided", "mkor_vgg16_1000_strided", "none", "mkor")
    small = ("mkor_cifar_modified", "mkor_modified_100", "none", "mkor")
    rows = [row for key in (modified, strided) for row in _batch(key, 0, "psnr", [psnr] * SIZE)]
    rows += [row for batch in range(5) for row in _batch(small, batch, "psnr", [psnr] * SIZE)]
    rows += _batch(modified, 1, "psnr", [psnr] + [20.0] * (SIZE - 1))
    verdict = verdicts(claims, read(tmp_path, rows))["verdict"]
    cells = ["unique.m_max_psnr", "unique.m_avg_psnr"]
    # Cells of one batch are a single draw, as are sentences on its images, which share a gradient.
    assert {verdict[f"mkor.table4.{cell}"] for cell in cells} == {"not judged"}
    assert verdict["mkor.strided.not_exact"] == "not judged"
    assert verdict["mkor.batch.exact"] == ("reproduced" if exact else "differs")
    assert verdict["mkor.table4.random.m_max_psnr"] == "not judged"


def test_a_table_of_words_has_what_was_measured(claims, tmp_path):
    nets = ("mkor_lenet", "mkor_lenet_code")
    keys = [("mkor_lenet_fishing", net, "none", "class_fishing") for net in nets]
    rows = [row for key in keys for row in _classes(key, 0, {"0": 9.0})]
    server = {"server": "mkor_vgg_keep", "layer": "fc3", "metric": "zeros_share", "value": 0.001}
    found = [{**server, "model": f"mkor_vgg16_{n}"} for n in (100, 1000)]
    evidence = read(tmp_path, rows, mkor_inconspicuous=found)
    shown = table(claims, evidence, "mkor_table1", "real", "laptop").set_index(["row", "column"])
    assert len(shown) == 30
    for cell, paper, ours in (
        (("Class fishing", "Samples recovered per batch"), "≤ 1", 1.0),
        (("MKOR", "Assumption on server"), "Malicious-and-inconspicuous", 0.001),
    ):
        assert tuple(shown.loc[cell, ["paper", "ours"]]) == (paper, ours)
    assert shown["verdict"].value_counts().to_dict() == {
        "not judged": 28, "by definition": 1, "reproduced": 1,
    }  # fmt: skip
    assert shown.loc[("MKOR", "Type"), "verdict"] == "not judged"


def test_the_mean_and_the_best_of_a_batch(tmp_path):
    values = [[0.1, 0.5], [0.3, 0.7], [0.2, 0.6]]
    rows = [row for b, found in enumerate(values) for row in _batch(KEY, b, "ssim", found)]
    mean = _of_batches(tmp_path, rows, {"take": "mean"}, "mean", 0.4)
    assert (mean["verdict"], mean["n"], mean["n_ok"]) == ("reproduced", 6, 6)
    assert mean["ours"] == pytest.approx(0.4)
    assert (mean["low"], mean["high"]) == pytest.approx((0.29, 0.51))  # 0.3 to 0.5, and the margin
    best = _of_batches(tmp_path, rows, {"take": "max"}, "prediction", 1.2)
    half = 4.302652729911275 * 0.1 * np.sqrt(4 / 3)
    assert (best["ours"], best["low"]) == pytest.approx((0.6, 0.6 - half))
    assert best["verdict"] == "differs"
    above = {"take": "above", "over": 0.5}
    count = _of_batches(tmp_path, rows, above, "same", 1)
    assert (count["verdict"], count["ours"]) == ("reproduced", 1.0)
    least = _of_batches(tmp_path, rows, above, "least")
    assert (least["verdict"], least["reason"]) == ("differs", "not all at least 2 (3 batches)")


def test_one_batch_has_no_interval(tmp_path):
    # One over its images, which share a gradient, would say nothing of another batch.
    rows, query = _batch(KEY, 0, "psnr", [10.0, 12.0, 14.0]), {"metric": "psnr"}
    none = ("not judged", "one draw: one batch has no interval")
    for take, rule in itertools.product(("max", "mean"), ("mean", "prediction")):
        found = _of_batches(tmp_path, rows, {**query, "take": take}, rule, 12)
        assert tuple(found[["verdict", "reason"]]) == none


def test_missed_images_are_left_out_or_zero_and_always_told(tmp_path):
    rows = [row for b in range(2) for row in _batch(KEY, b, "ssim", [0.4, 0.4, 0.4])]
    for row in rows:
        if row["index"] % SIZE == 2:
            row |= {"status": "missed", "value": ""}
    counts = {"class 0": 1.0, "class 2": 0.0, "class 3": 0.0, "class 4": 2.0}
    status = {"class 2": "missed", "class 3": "absent", "class 4": "phantom"}
    rows += _classes(KEY, 0, counts, **status)
    out = _of_batches(tmp_path, rows, {"take": "mean"}, "mean", 0.4)
    assert (out["ours"], out["n"], out["n_ok"]) == (pytest.approx(0.4), 6, 4)
    assert "2 of 6 images were missed and are left out" in out["reason"]
    found = _of_batches(tmp_path, rows, {"take": "mean", "missing": "zero"}, "mean", 0.4)
    assert (found["verdict"], found["n_ok"]) == ("differs", 4)
    assert found["ours"] == pytest.approx(0.8 / 3)
    assert "2 of 6 images were missed and count as 0" in found["reason"]
    # A class that is absent or answered for nothing is no run of any image.
    runs = read(tmp_path, rows).on("real").runs
    assert len(runs(WHERE, "ssim")) == 6
    assert (len(runs(WHERE, "count")), runs(WHERE, "count")["ok"].sum()) == (2, 1)
    found = _of_batches(tmp_path, rows, {"metric": "count", "take": "above", "over": 1}, "same", 1)
    assert (found["verdict"], found["n"], found["n_ok"]) == ("not judged", 2, 1)
    assert found["reason"].startswith("one draw: a single value") and found["ours"] == 1
    # Failed batches are no success.
    rows = _batch(KEY, 0, "ssim", [0.4, 0.4])
    rows += [{**row, "status": "failed", "value": ""} for row in _batch(KEY, 1, "ssim", [0, 0])]
    found = _of_batches(tmp_path, rows, {"take": "mean"}, "mean", 0.4)
    assert (found["verdict"], found["reason"]) == ("differs", "2 of 4 runs failed")
    found = _of_batches(tmp_path, rows, {"take": "above", "over": 0.5}, "most")
    assert found["verdict"] == "differs" and "2 of 4 runs failed" in found["reason"]


def test_images_that_return_in_another_batch_are_compared_within_theirs(tmp_path):
    other = ("r", "m", "none", "b")
    # Image 0 is in each batch; MKOR has more of them than the search.
    rows = [_row(other, 0, 0, "ssim", 0.4)]
    for batch in range(5):
        rows.append(_row(KEY, batch, 0, "ssim", 0.3 + 0.1 * batch))
        rows.append(_row(KEY, batch, batch + 1, "ssim", 0.5))
        rows.append(_row(other, batch, batch + 1, "ssim", 0.4))
    query = {"form": "compare", "metric": "ssim", "unit": "image"}
    query["comparisons"] = [{"better": {"attack": "a"}, "than": {"attack": "b"}}]
    found = outcome(tmp_path, query, "test", read(tmp_path, rows))
    # Image 0 in batch 0 is worse, as much as its other image is better.
    assert found["ours"] == pytest.approx(4 * -0.1 / 5)
    assert "over 5 batches" in found["reason"]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_trend_over_batches(tmp_path, sign):
    slopes = {n: [[0.01 * n + 0.1 * k, 0.2] for k in range(2)] for n in (1, 10, 50, 100)}
    # The interval of the second holds 0.
    means = {1: (0.3, 0.6), 10: (0.7, 0.4), 50: (0.5, 0.65), 100: (0.45, 0.75)}
    flat = {n: [[mean] for mean in pair] for n, pair in means.items()}
    query = {"form": "trend", "metric": "ssim", "sign": "positive" if sign == 1 else "negative"}
    query["points"] = [{"x": n, "where": {"result": f"n{n}"}} for n in means]
    for values, side in ((slopes, sign), (slopes, -sign), (flat, sign)):
        rows = [
            _row((f"n{n}", *KEY[1:]), batch, SIZE * batch + k, "ssim", side * value)
            for n, batches in values.items()
            for batch, found in enumerate(batches)
            for k, value in enumerate(found)
        ]
        found = outcome(tmp_path, query, "test", read(tmp_path, rows))
        clear = "reproduced" if side == sign else "differs"
        assert found["verdict"] == (clear if values is slopes else "not told apart")
        assert found["n"] == found["n_ok"] == len(rows) and "over 8 batches" in found["reason"]
    assert sign * found["ours"] > 0 and found["low"] < 0 < found["high"]


@pytest.mark.parametrize(("more", "verdict"), [("r", "reproduced"), ("s", "differs")])
def test_shares_are_of_units_that_both_have(tmp_path, more, verdict):
    rows = [_row(("r", *KEY[1:]), k, k, "ssim", 0.9) for k in range(9)]
    rows += [_row(("s", *KEY[1:]), k, k, "ssim", 0.1) for k in range(2, 11)]
    names = {"more": more, "less": "s" if more == "r" else "r"}
    sides = {key: {"metric": "ssim", "where": {"result": name}} for key, name in names.items()}
    query = {"form": "share", "unit": "image", **sides}
    found = outcome(tmp_path, query, "half", read(tmp_path, rows))
    assert (found["verdict"], found["ours"]) == (verdict, 1 if more == "r" else -1)
    assert "over 7 images" in found["reason"]


def test_columns_of_other_tables(tmp_path):
    evidence = read(tmp_path, [], sizes=[{"model": "a", "value": 1}, {"model": "b", "value": 3}])

    def judged(query, tolerance="most"):
        return outcome(tmp_path, query, tolerance, evidence, kind="exact")

    side = {"table": "sizes", "column": "value"}
    query = {"form": "column", **side, "where": {}}
    found = judged(query)
    assert (found["verdict"], found["high"], found["n"]) == ("differs", 3.0, 2)
    one, other = ({**side, "where": {"model": model}} for model in "ab")
    assert judged({"form": "column", **one})["verdict"] == "reproduced"
    found = judged({"form": "columns", "comparisons": [{"less": one, "more": other}]}, "same")
    assert (found["verdict"], found["ours"]) == ("reproduced", 2.0)
    for change, words in (
        ({"table": "weights"}, "there is no table weights"),
        ({"column": "size"}, "the table sizes has no column 'size'"),
        ({"where": {"model": "c"}}, "the table sizes has nothing for model c"),
    ):
        found = judged({**query, **change})
        assert (found["verdict"], found["reason"]) == ("not judged", f"data: {words}")
    with pytest.raises(ConfigError, match="total sums over layers"):
        judged({**query, "total": True})


def test_what_does_not_fit_is_refused(tmp_path):
    for query, words in (
        ({"take": None}, "of: batches and take belong together"),
        ({"of": "runs", "take": "mean"}, "of: batches and take belong together"),
        ({"take": "above"}, "take: above and over belong together"),
        ({"of": "runs", "missing": "zero"}, "missing: zero needs of: batches"),
    ):
        with pytest.raises(ConfigError, match=words):
            _of_batches(tmp_path, [], query, "mean", 1)
