"""One recorded claim in words: what it says, what was found, its files and its commands."""

import re
import zipfile
from dataclasses import replace
from typing import get_args

import pandas as pd
import pytest

from conftest import ROOT
from gradleak import cli
from gradleak.claims import show
from gradleak.claims.origins import Parts
from gradleak.claims.statement import LAYERED, Rule

RECORD = show.Record.read()
CELL, SENTENCE, OURS = show.EXAMPLE, "fedkl.decline", "copa.c.full.fig1.twenty"


def shown(name, capsys):
    assert cli.main(["claim", name]) == 0
    return capsys.readouterr().out


def test_a_cell_has_its_place_numbers_query_tolerance_and_commands(capsys):
    text = shown(CELL, capsys)
    row = RECORD.rows[CELL]
    assert text.startswith(f"{CELL}: {row['verdict']}\n\n  {row['statement']}\n")
    for line in (
        "cell       Figure 1, variant 1, Truck | COPA original | mse of "
        "results/tables/copa_table2.csv",
        "paper      0.0512",
        f"ours       {row['ours']:.4g}; median over runs of MSE",
        f"interval   {row['low']:.4g} to {row['high']:.4g} (95 %: one further run)",
        f"runs       {row['n']}",
        "    result: copa_pair",
        "  rule: prediction",
        f"  docs/results/copa/evidence.zip: results/scores/real-{row['scale']}/copa_pair/",
    ):
        assert f"\n{line}\n" in text
    settings = f"images={row['images']} scale={row['scale']}"
    assert f"  snakemake --config {settings} -- results/tables/copa_table2.csv  #" in text


@pytest.mark.parametrize("kind", LAYERED)
def test_claims_about_layers_name_the_files_of_layers(kind):
    """Those of a part too, by the experiments that their queries select."""
    of = {
        name: row
        for name, row in RECORD.rows.items()
        if kind in str(row["evidence"]).split(", ") and row["scale"] != RECORD.scale(row["paper"])
    }
    for name, row in of.items():
        assert f": results/{kind}/real-{row['scale']}/" in "\n".join(show.lines(RECORD, name)), name
    assert of or kind == "security"  # which papers have in their whole records alone


@pytest.mark.parametrize(
    ("name", "part", "kind"),
    [
        ("rgap.table2.lenet.conv1", "rgap_draws", "rank"),
        ("rgap.weight_constraints.rgap_lenet", "rgap_draws", "rank"),
        ("fedkl.table6.grnn_resnet20_mnist.ssim_without", "fedkl_resnet20_mnist", "scores"),
        ("fedkl.table6.ig_resnet20_mnist.ssim_without", "fedkl_resnet20_mnist_ig", "scores"),
    ],
)
def test_a_claim_of_a_larger_scale_names_the_parts_that_it_rests_on(name, part, kind, capsys):
    text, row = shown(name, capsys), RECORD.rows[name]
    case, result = f"{row['images']}-{row['scale']}", part.removesuffix("_ig")
    cut = {  # where the experiment's attacks are in two parts
        "fedkl_resnet20_mnist": "[fedkl_dlg_resnet20, fedkl_grnn]",
        "fedkl_resnet20_mnist_ig": "[fedkl_ig]",
    }.get(part)
    folder = f"docs/results/{row['paper']}/parts/{part}"
    assert f"\n  {folder}/evidence.zip: results/{kind}/{case}/{result}/\n" in text
    assert text.count(folder.removesuffix(part)) == 1
    settings = f"images={row['images']} scale={row['scale']}"
    settings += f" 'experiments={{{result}: {{attacks: {cut}}}}}'" if cut else ""
    command = f"snakemake --config {settings} -- results/parts/{result}"
    assert f"  {command}  # makes the part of the record\n" in text


def test_a_part_with_some_attacks_of_an_experiment_is_named_by_claims_about_them():
    """Its name is its own, and the command leaves the experiment those attacks."""
    scores, nets = "results/scores/real-night/fedkl_resnet20_mnist", "fedkl_resnet20_mnist_nets"
    held = {
        ("fedkl", "one"): tuple(f"{scores}/{nets}/none/fedkl_{a}.csv" for a in ("dlg", "grnn")),
        ("fedkl", "other"): (f"{scores}/{nets}/none/fedkl_ig.csv",),
        ("mkor", "none"): (f"{scores}/{nets}/none/fedkl_ig.csv",),
    }
    for attack, part, not_it in (("grnn", "one", "other"), ("ig", "other", "one")):
        name = f"fedkl.table6.{attack}_resnet20_mnist.ssim_without"
        rows = {**RECORD.rows, name: {**RECORD.rows[name], "scale": "night"}}
        text = "\n".join(show.lines(replace(RECORD, rows=rows, parts=Parts(held=held)), name))
        assert f"\n  docs/results/fedkl/parts/{part}/evidence.zip: {scores}/\n" in text
        assert f"parts/{not_it}" not in text
        attacks = "fedkl_dlg, fedkl_grnn" if attack == "grnn" else "fedkl_ig"
        cut = f"'experiments={{fedkl_resnet20_mnist: {{attacks: [{attacks}]}}}}'"
        made = "results/parts/fedkl_resnet20_mnist  # makes the part of the record"
        assert f"  snakemake --config images=real scale=night {cut} -- {made}\n" in f"{text}\n"


TRAININGS = ("fedkl_central_mnist", "fedkl_federated_mnist")


@pytest.mark.parametrize(
    ("name", "trainings"),
    [
        ("fedkl.table1.fedkl.lenet_mnist", TRAININGS[1:]),
        ("fedkl.best.overall.lenet_mnist.with", TRAININGS),
    ],
)
def test_a_claim_about_trainings_names_the_parts_whose_tables_have_it(name, trainings, tmp_path):
    whole = pd.read_csv(ROOT / "docs/results/fedkl/fedkl_accuracy.csv")
    places = [tmp_path / "fedkl/parts" / one / "fedkl_accuracy.csv" for one in TRAININGS]
    for one, place in zip(TRAININGS, places, strict=True):
        place.parent.mkdir(parents=True)
        whole[whole.training == one].to_csv(place, index=False)
    rows = {**RECORD.rows, name: {**RECORD.rows[name], "scale": "night"}}
    text = "\n".join(show.lines(replace(RECORD, rows=rows, parts=Parts(tuple(places))), name))
    for one in TRAININGS:
        file = f"\n  docs/results/fedkl/parts/{one}/fedkl_accuracy.csv\n"
        assert (file in text) == (one in trainings)
    parts = " ".join(f"results/parts/{one}" for one in trainings)
    assert f"  snakemake --config images=real scale=night -- {parts}  # makes the part" in text


def test_a_sentence_has_its_parts_and_a_claim_of_ours_its_test(capsys):
    text = shown(SENTENCE, capsys)
    parts = [row for row in RECORD.rows.values() if row["part_of"] == SENTENCE]
    for part in parts:
        assert f"\n  {part['id']}: {part['verdict']}\n    {part['statement']}\n" in text
    assert len(parts) > 5
    assert "-- results/record/fedkl  #" in text and "docs/results/fedkl/fedkl_accuracy.csv" in text
    assert f"part of    {SENTENCE}\n" in shown(parts[0]["id"], capsys)
    text = shown(OURS, capsys)
    assert "(ours)\n" in text


def test_a_sentence_that_fails_a_test_has_the_p_value_against_it(capsys):
    failed = [row for row in RECORD.rows.values() if row["p"] != "" and row["verdict"] == "differs"]
    held = [row for row in RECORD.rows.values() if row["p"] != "" and row["verdict"] != "differs"]
    assert failed and held
    for row, told in ((failed[0], True), (held[0], False)):
        test = next(line for line in shown(row["id"], capsys).splitlines() if line[:4] == "test")
        assert ("against the sentence" in test) == told


def test_comparisons_without_a_test_agree_if_all_of_them_hold(capsys):
    text = shown("mkor.modified.highest.100", capsys)
    assert "all comparisons hold (results" in text and "(it agrees if all comparisons hold)" in text


def test_a_sentence_has_the_files_and_commands_of_its_parts_at_their_scales(capsys):
    name = "fedkl.grnn_best"
    parts = [row for row in RECORD.rows.values() if row["part_of"] == name]
    scales = {row["scale"] for row in parts}
    assert scales == {"laptop", "night"}
    text = shown(name, capsys)
    assert "\nof         real images, laptop and night scale\n" in text
    assert "\n  docs/results/fedkl/claims.csv\n" in text
    for scale, target in (("laptop", "record/fedkl"), ("night", "parts/fedkl_lenet_cifar10 ")):
        assert f"  snakemake --config images=real scale={scale} -- results/{target}" in text
        assert f"results/scores/real-{scale}/fedkl_" in text


def test_words_of_a_verdict_are_explained_where_they_stand(capsys):
    text = shown("fedkl.table3.lenet.share", capsys)
    for words in (
        "window     ± 0.005 (results that agree with the paper)",
        "closeness  as printed (how near ours is to the paper's number)",
        "query (which results, and how they are evaluated)",
        "tolerance share (it agrees if the two are at most `amount` apart)",
    ):
        assert f"\n{words}\n" in text
    adjusted = r"test +p \S+, holm \S+ \(.*holm adjusted for all tests\)"
    assert re.search(adjusted, shown(OURS, capsys))
    assert set(show.RULES) == set(get_args(Rule))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fedkl.gap.lenet_mnist", "it rests on the paper's numbers alone, without a run"),
        ("rgap.fig1.zero", "it rests on formulas alone, without a run"),
        ("fedkl.gap", "it rests on the paper's numbers alone, without a run"),
        ("mkor.speed", "no run here decides it"),
        ("mkor.table1.gi.server", "no run here decides it"),
    ],
)
def test_a_claim_that_needs_no_run_asks_for_none(name, why, capsys):
    text = shown(name, capsys)
    assert "snakemake" not in text and "laptop scale" not in text and "\nruns " not in text
    assert text.endswith(f"recorded  # judges the record again, in a minute; {why}\n")


def test_every_file_that_a_claim_names_is_there():
    members = {
        path: zipfile.ZipFile(path).namelist() for path in ROOT.glob("docs/results/**/*.zip")
    }
    loaded = {paper: RECORD.of(next(iter(ids))) for paper, ids in by_paper().items()}
    seen = set()
    for name, row in RECORD.rows.items():
        claims = [c for c in loaded[row["paper"]][0].claims if c.id == name or _part(c, name)]
        for file in RECORD.files(row, claims):
            seen.add(file)
            path = ROOT / file.path
            assert path.is_file(), f"{name}: {file}"
            if file.start:
                assert any(m.startswith(file.start) for m in members[path]), f"{name}: {file}"
    assert len(seen) > 60


def by_paper():
    found = {}
    for name, row in RECORD.rows.items():
        found.setdefault(row["paper"], []).append(name)
    return found


def _part(claim, name):
    return claim.sentence is not None and claim.sentence.id == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", f"Name a claim, such as {CELL}; gradleak claim --list lists all "),
        ("copa.tabel2", "There is no recorded claim 'copa.tabel2'; near it are copa.table2."),
        ("TRUCK.rgap.mse", "near it are copa.table2.fig1.v1.truck.rgap.mse, "),
        ("zzzz", "There is no recorded claim 'zzzz'; gradleak claim --list lists all "),
    ],
)
def test_without_a_known_id_one_sentence_names_near_ones(name, words, capsys):
    assert cli.main(["claim", name]) == 2
    found = capsys.readouterr()
    assert words in found.err and found.err.count("\n") == 1 and not found.out


def test_claims_are_listed_by_the_beginning_of_their_ids(capsys):
    assert cli.main(["claim", "--list"]) == 0
    every = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in every] == [*RECORD.rows]
    assert cli.main(["claim", "--list", "copa.table2."]) == 0
    few = capsys.readouterr().out.splitlines()
    assert f"{CELL}: {RECORD.rows[CELL]['verdict']}" in few and len(few) < len(every) / 10
    assert all(line.startswith("copa.table2.") for line in few)
    assert cli.main(["claim", "--list", "tabel2"]) == 2
