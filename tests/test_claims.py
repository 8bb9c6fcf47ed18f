"""Claims: every verdict, the paper against itself, and the tables."""

import pandas as pd
import pytest

import claims_synthetic as made
from claims_synthetic import Judged, changed, copa, copa_scores, edited, explained, read, verdicts
from gradleak.claims import COLUMNS, Evidence, load, load_explanations, table
from gradleak.claims.evaluate import Judge
from gradleak.errors import ConfigError
from gradleak.runtime import tidy

PAIR = ("truck", "animal")


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    more = (made.security_rows(), made.index_rows())
    return read(tmp_path_factory.mktemp("evidence"), copa_scores(), *more)


@pytest.fixture(scope="module")
def judged(evidence):
    return verdicts(copa(), evidence)


def of(folder, rows, *more):
    return Judged(copa(), read(folder, rows, *more))


def test_columns_and_paper_values_reproduced_by_themselves(judged):
    assert list(judged.reset_index().columns) == COLUMNS
    cells = judged[judged.index.str.match(r"copa\.table(1\.v|2\.fig)")]
    assert len(cells) == 88
    sizes = cells["kind"] == "definition"
    assert sizes.sum() == 36 and (cells["verdict"][sizes] == "by definition").all()
    # A tolerance of a factor of 10 to both sides lets hardly any value fail.
    wide = cells["verdict"] == "not judged"
    assert list(cells.index[wide]) == [f"copa.table2.fig1.v3.{name}.copa.mse" for name in PAIR]
    assert cells["reason"][wide].str.startswith("too wide: ").all()
    assert (cells["verdict"][~sizes & ~wide] == "reproduced").all()
    truck = judged.loc["copa.table2.fig1.v1.truck.copa.mse"]
    assert (truck["n"], truck["n_ok"]) == (10, 10)
    assert truck["low"] < truck["ours"] < truck["high"]
    rounded = judged.loc["copa.table1.v1.c", ["paper_value", "ours", "verdict"]]
    assert tuple(rounded) == (-2267, -2266.5, "reproduced")
    others = judged[~judged["verdict"].isin(["reproduced", "refuted", "by definition"])]
    missing = r"too wide: |(of \d parts: \d not judged; \S+: )?data: "
    others = others[~others["reason"].str.match(missing)]
    assert set(others["whose"]) == {"ours"}, "not what the paper says of its own runs"


REFUTED = {
    "copa.fig1.captured": "-1995", "copa.fig2.close.v1": "25.2923", "copa.fig2.close.v3": "0.0565",
    "copa.fig2.close": "of 2 parts: 2 refuted", "copa.algorithm1.consistent": "Appendix B",
}  # fmt: skip


def test_sentences_that_the_papers_tables_contradict(judged):
    refuted = judged[judged["verdict"] == "refuted"]
    assert set(refuted.index) == set(REFUTED)
    for name, number in REFUTED.items():
        assert number in refuted.loc[name, "reason"] and "ours: " in refuted.loc[name, "reason"]
    for run in (("embedded", "smoke"), ("real", "laptop")):
        without = verdicts(copa(), None, *run)
        assert set(without[without["verdict"] == "refuted"].index) == set(refuted.index)
    left = without[~without["verdict"].isin(["not judged", "refuted"])]
    assert left["verdict"].to_dict() == {"copa.table2.psnr_matches_mse": "by definition"}
    assert (without.loc[without["part_of"] != "", "part_of"].isin(without.index)).all()
    assert without["reason"].str.len().min() > 0


def test_printed_psnr_and_mse_are_compared(tmp_path):
    right = Judged(copa(), Evidence())["copa.table2.psnr_matches_mse"]
    assert (right.verdict, right.n, right.ours) == ("by definition", 48, 48)
    bent = edited(tmp_path, lambda d: d["grids"][1]["rows"][0]["values"].__setitem__(0, 0.0514))
    wrong = Judged(load(bent), Evidence())["copa.table2.psnr_matches_mse"]
    assert (wrong.verdict, wrong.n, wrong.ours) == ("refuted", 48, 47)
    assert "Figure 1, variant 1, Truck, COPA original: 0.0514, 61.0389; ours" in wrong.reason


@pytest.mark.parametrize(("factor", "verdict"), [(100.0, "differs"), (0.01, "exceeds")])
def test_values_off_the_interval(tmp_path, factor, verdict):
    where = {"model": "cnn3_v1_tanh", "attack": "copa", "result": "copa_pair"}
    rows = changed(copa_scores(), {**where, "metric": "mse"}, times=factor)
    frame = of(tmp_path, rows)
    assert frame["copa.table2.fig1.v1.truck.copa.mse"].verdict == verdict
    assert frame["copa.table2.fig1.v1.truck.rgap.mse"].verdict == "reproduced"


def test_failed_runs_are_counted_and_count_as_worst(tmp_path):
    where, failed = {"model": "cnn3_v3_tanh", "attack": "copa"}, {"status": "failed", "value": ""}
    rows = copa_scores()
    for seed in range(4):
        rows = changed(rows, {**where, "seed": seed}, **failed)
    frame = of(tmp_path, rows)
    value = frame["copa.table2.fig1.v3.truck.copa.mse"]
    assert (value.n, value.n_ok, value.verdict) == (10, 6, "not judged")
    assert value.reason.startswith("too wide: ") and value.reason.endswith("4 of 10 runs failed")
    order = frame["copa.fig1.pair.32.copa"]
    # Six seeds for it, four against it.
    assert (order.n, order.n_ok, order.verdict) == (40, 32, "not told apart")
    assert frame["copa.fig1.close.v3"].verdict == "differs"
    for name in ("fig1.overall.copa", "c.full.fig1.copa", "padding.copa"):
        assert frame[f"copa.{name}"].verdict == "not told apart"
    assert frame["copa.fig1.pair.12.copa"].verdict == "reproduced"
    most = changed(changed(rows, {**where, "seed": 4}, **failed), {**where, "seed": 5}, **failed)
    value = of(tmp_path, most)["copa.table2.fig1.v3.truck.copa.mse"]
    assert (value.n_ok, value.verdict, value.reason) == (4, "differs", "6 of 10 runs failed")
    none_left = [row for row in rows if row["seed"] < 4 or row["model"] != "cnn3_v3_tanh"]
    assert of(tmp_path, none_left)["copa.table2.fig1.v3.truck.copa.mse"].verdict == "differs"


def test_divergence_equal_attacks_and_padding(tmp_path):
    copies = [row for row in copa_scores() if row["model"] == "cnn3_v1_leaky"]
    copies = [{**row, "attack": "rgap"} for row in copies if row["attack"] == "copa"]
    pair = ("cnn3_v1_leaky", "rgap")
    others = [row for row in copa_scores() if (row["model"], row["attack"]) != pair]
    frame = of(tmp_path, [*others, *copies])
    assert frame["copa.fig2.diverges.v1"].verdict == "differs"
    assert frame["copa.fig2.copa_beats_rgap.v1"].verdict == "not told apart"
    assert frame["copa.fig2.copa_beats_rgap.v1"].ours == pytest.approx(1)
    assert frame["copa.fig2.diverges.v2"].verdict == "reproduced"
    # A large effect of padding.
    where = {"result": "copa_padding", "metric": "mse"}
    frame = of(tmp_path, changed(copa_scores(), where, times=1e6))
    verdicts = {name: frame[f"copa.padding.{name}"].verdict for name in ("copa", "rgap", "v1")}
    # R-GAP's errors in variant 3 lie further below the others than padding raises them.
    assert verdicts == {"copa": "differs", "rgap": "not told apart", "v1": "differs"}


def test_exact_and_correlation_claims_can_fail(tmp_path):
    security = made.security_rows()
    security[0] |= {"contribution": 1, "kernel": 5}
    index = [{**row, "c": -row["c"]} for row in made.index_rows()]
    first = next(row for row in copa_scores() if row["metric"] == "fc_error")
    rows = [{**row, "value": 1e-3} if row is first else row for row in copa_scores()]
    frame = of(tmp_path, rows, security, index)
    differ = ("table1.v1.layer1.kernel", "table1.v1.c", "fig1.contribution.v1.layer1")
    for name in (*differ, "lemma.fc.fig1", "c.indicator.copa"):
        assert frame[f"copa.{name}"].verdict == "differs"
    for name in ("lemma.fc.fig2", "recommend.wide.copa", "table1.v2.c"):
        assert frame[f"copa.{name}"].verdict == "reproduced"


def test_full_reconstruction_is_judged_on_the_better_attack(judged, tmp_path):
    full = judged[judged.index.str.startswith("copa.c.full.")]
    assert len(full) == 12
    alone = full.loc["copa.c.full.fig2.copa"]
    assert alone["verdict"] == "differs" and "0 of 10 seeds" in alone["reason"]
    assert alone["statement"].startswith("Our reading, stricter than the sentence")
    assert (full.filter(regex="^(?!.*fig2.copa)", axis=0)["verdict"] == "reproduced").all()
    either = full.loc["copa.c.full.fig2"]
    assert "COPA or R-GAP" in either["statement"]
    assert (either["n"], either["n_ok"]) == (20, 20)
    rgap = {"model": "cnn3_v3_leaky", "attack": "rgap"}
    for value, status in ((0.3, "ok"), ("", "failed")):
        frame = of(tmp_path, changed(copa_scores(), rgap, value=value, status=status))
        found = frame["copa.c.full.fig2"]
        assert (found.verdict, found.n_ok) == ("differs", 20)
        assert found.ours == pytest.approx(alone["ours"])
        assert frame["copa.c.full.fig1"].verdict == "reproduced"


def test_the_better_attack_can_be_refuted_by_the_paper():
    by_id = {claim.id: claim for claim in copa().claims}
    contradictions = Judge(copa(), Evidence(), "real", "laptop").contradictions
    either, alone = by_id["copa.c.full.fig2"], by_id["copa.c.full.fig2.copa"]
    assert contradictions(either) == contradictions(alone) == ()
    where = {**either.query.where, "model": "cnn3_v4_leaky"}
    query = either.query.model_copy(update={"where": where})
    wrong = contradictions(either.model_copy(update={"query": query}))
    assert [text.rpartition(": ")[2] for text in wrong] == ["0.0382", "0.0483"]
    assert len(contradictions(alone.model_copy(update={"whose": "paper"}))) == 2


def test_explanations_stand_beside_failures_of_the_recorded_run_only(evidence, tmp_path):
    name, refuted = "copa.c.full.fig2.copa", "copa.fig1.captured"
    good = "copa.table2.fig1.v1.truck.copa.mse"
    why = explained(tmp_path, copa(), {name: "minima", refuted: "order", good: "none"})
    frame = verdicts(copa(), evidence, why=why)
    assert frame["explanation"].loc[[name, refuted, good]].tolist() == ["minima", "order", ""]
    for images, scale in (("embedded", "laptop"), ("real", "smoke"), ("real", "paper")):
        frame = verdicts(copa(), evidence, images, scale, why)
        assert frame.loc[refuted, "verdict"] == "refuted"
        assert (frame["explanation"] == "").all()
    # Exceeding is explained too.
    rows = changed(copa_scores(), {"metric": "mse", "attack": "copa"}, times=0.01)
    why = load_explanations(made.EXPLANATIONS, copa())
    frame = verdicts(copa(), read(tmp_path, rows), why.of.images, why.of.scale, why)
    for name in ("fig1.v2.truck", "fig2.v2.animal", "fig1.v3.truck"):
        row = frame.loc[f"copa.table2.{name}.copa.mse"]
        assert row["verdict"] == "exceeds" and row["explanation"]


def test_what_a_run_cannot_judge(tmp_path):
    evidence = read(tmp_path, copa_scores("embedded"), made.security_rows(), made.index_rows())
    by_id = {claim.id: claim for claim in copa().claims}

    def outcome(name, images, scale):
        return Judge(copa(), evidence, images, scale)(by_id[name])

    value = outcome("copa.table2.fig1.v1.truck.copa.mse", "embedded", "laptop")
    assert value.verdict == "not judged" and "embedded" in value.reason
    assert value.low < value.ours < value.high
    order = "copa.fig1.pair.12.copa"
    assert outcome(order, "embedded", "laptop").verdict == "reproduced"
    assert outcome(order, "embedded", "smoke").verdict == "not judged"
    assert "at least laptop" in outcome(order, "embedded", "smoke").reason
    assert "on real images" in outcome(order, "real", "laptop").reason
    for scale in ("smoke", "laptop"):
        assert outcome("copa.table1.v4.c", "embedded", scale).verdict == "reproduced"
    with pytest.raises(ValueError, match="use embedded or real"):
        outcome(order, "photos", "laptop")
    # Few seeds cannot carry a test.
    for seeds, name, words in (
        (4, "fig1.pair.12.copa", "scale: 4 seeds"),
        (1, "table2.fig1.v1.truck.copa.mse", "scale: one run has no interval"),
    ):
        few = [row for row in copa_scores() if row["seed"] < seeds]
        row = of(tmp_path, few)[f"copa.{name}"]
        assert row.verdict == "not judged" and row.reason.startswith(words)


def test_a_changed_claim_changes_nothing_elsewhere(tmp_path, evidence, judged):
    def change(data):
        data["tolerances"]["wide"] = {**data["tolerances"]["draw"], "factor": 3}
        data["grids"][1]["exceptions"]["wide"] = ["fig1.v1.truck.copa.mse"]

    why = explained(tmp_path, copa(), {"copa.fig1.captured": "c(M) ranks variant 1 last."})
    frame = verdicts(load(edited(tmp_path, change)), evidence, why=why)
    name = "copa.table2.fig1.v1.truck.copa.mse"
    assert frame.loc[name, "high"] == pytest.approx(3 * judged.loc[name, "high"])
    assert frame.loc["copa.fig1.captured", "explanation"] == "c(M) ranks variant 1 last."
    own = [name, "copa.fig1.captured"]
    pd.testing.assert_frame_equal(frame.drop(own), judged.drop(own))


def test_tables(evidence):
    second = table(copa(), evidence, "copa_table2", "real", "laptop")
    assert list(second.columns) == tidy.TABLES
    judged = second[second["verdict"] != ""]
    assert len(judged) == 48 and set(judged["metric"]) == {"mse"}
    again = second[second["note"].str.startswith("the same runs")]
    assert len(again) == 48 and set(again["metric"]) == {"psnr_255"} and again["ours"].notna().all()
    beside = second[second["note"].str.startswith("ours, beside")]
    assert set(beside["verdict"]) == {""} and beside["paper"].notna().all() and len(beside) > 0
    alone = second[second["paper"].isna()]
    assert set(alone["verdict"]) == {""} and alone["row"].str.endswith("20 images").all()
    assert alone["note"].str.startswith("not in the paper").all()
    made_here = alone["column"].isin(["COPA original", "COPA denoised", "R-GAP"])
    assert (alone["n"][made_here] == 60).all() and alone["low"][made_here].notna().all()
    first = second.iloc[0]
    assert (first["row"], first["column"]) == ("Figure 1, variant 1, Truck", "COPA original")
    assert table(copa(), evidence, "copa_table1", "real", "laptop").shape == (32, 13)
    empty = table(copa(), Evidence(), "copa_table2", "embedded", "smoke")
    assert empty["ours"].isna().all() and empty["n"].isna().all()
    with pytest.raises(ConfigError, match="copa_table1, copa_table2"):
        table(copa(), evidence, "copa_table9", "real", "laptop")
