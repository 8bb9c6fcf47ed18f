"""Claims of FedKL: its tables, and its sentences against them and against made-up results."""

import re
from itertools import product
from zipfile import ZipFile

import pandas as pd
import pytest
import yaml

from claims_synthetic import ROOT, read, score, verdicts
from gradleak.claims import load, load_explanations, table
from gradleak.claims.evaluate import Judge
from gradleak.claims.forms import Column, Runs
from gradleak.claims.forms.estimates import Estimates

FILE = ROOT / "papers/fedkl/claims.yaml"
IMAGES = 5
ERROR = 0.02


@pytest.fixture(scope="module")
def claims():
    return load(FILE)


def _cells(claims):
    return [claim for claim in claims.claims if claim.cell is not None and claim.is_printed]


@pytest.fixture(scope="module")
def world(claims, tmp_path_factory):
    """Results that are those of the paper's tables, accuracies known to 0.02 points."""
    scores = []
    tables = {"fedkl_accuracy": [], "fedkl_parameters": []}
    for claim in _cells(claims):
        query = claim.query
        if isinstance(query, Column):
            row = {**query.where, "ours": claim.paper_value}
            row |= {"error": ERROR, "tested": 5000}
            if row not in tables[query.table]:
                tables[query.table].append(row)
        elif isinstance(query, Runs):
            for index in range(IMAGES):
                value = claim.value * (1 + 0.001 * (index - (IMAGES - 1) / 2))
                scores.append(score(query.where, index, query.metric, value))
    return read(tmp_path_factory.mktemp("fedkl"), scores, **tables)


@pytest.fixture(scope="module")
def judged(claims, world):
    return verdicts(claims, world, scale="paper")


def test_every_number_of_the_tables_is_there(claims):
    tables = [claim.cell.table for claim in _cells(claims) if claim.cell is not None]
    counts = {name: tables.count(f"fedkl_table{name}") for name in (1, 3, 6)}
    # 44 models, three references; five nets of five keys, two numbers, two data sets, LeNet of one,
    # and six shares; 22 rows of ten numbers.
    assert counts == {1: 44 + 3, 3: 5 * 5 * 2 * 2 + 5 * 2 + 6, 6: 22 * 10}
    by_id = {claim.id: claim for claim in claims.claims}
    share = by_id["fedkl.table3.vgg16.share"]
    assert (share.paper_value, share.decimals) == (0.097, 3)
    assert by_id["fedkl.table6.dlg_lenet_mnist_kl.ssim_with"].paper_value == -0.003
    assert by_id["fedkl.table1.reference.lenet_mnist"].paper_value == 99.05


def test_the_papers_own_world_reproduces_its_tables(claims, judged):
    cells = judged.loc[[claim.id for claim in _cells(claims) if claim.is_judged]]
    judgeable = cells[~cells.index.str.contains("reference")]
    # An MSE and its PSNR are one claim, and averages of Table III stand in Table I.
    assert len(judgeable) == 44 + 116 - 11 + 220 - 44
    assert set(judgeable["verdict"]) == {"reproduced", "by definition", "not judged"}
    waiting = judgeable[judgeable["verdict"] == "not judged"]
    # One training each; similarities near 0; errors that the eye cannot see; flat images.
    assert waiting["reason"].str.startswith(("one draw: ", "too wide: ", "nothing: ")).all()
    nothing = waiting.index[waiting["reason"].str.startswith("nothing: ")]
    assert len(nothing) == 9 * 4
    assert {name.split(".")[2] for name in nothing} == {
        f"{attack}_{net}_{data}_kl"
        for attack, net in (("dlg", "lenet"), ("grnn", "lenet"), ("grnn", "resnet20"))
        for data in ("mnist", "cifar10", "cifar100")
    }
    alone = waiting[waiting["reason"].str.contains("a single value")]
    assert len(alone) == 44 + 110 - 2 * 11
    shares = judgeable[judgeable["verdict"] == "by definition"].index
    assert set(shares) == {name for name in cells.index if name.endswith(("share", "_gap"))} - set(
        alone.index
    )
    references = cells[cells.index.str.contains("reference")]
    assert references["reason"].str.startswith("data: numbers of other papers").all()


REFUTED_BY_TABLES = {
    *("fedkl.best.overall.lenet_mnist.without", "fedkl.best.small.lenet_mnist"),
    *("fedkl.text.gain_vgg16", "fedkl.text.fedavg_vgg16", "fedkl.random.vgg16_cifar10"),
    *("fedkl.narrows.cifar10.resnet20", "fedkl.worse.ig_resnet20_mnist.lpips_alex_255"),
    *(f"fedkl.worse.ig_resnet18_{name}.ssim_255" for name in ("cifar10", "cifar100", "imagenet")),
    *("fedkl.infeasible.resnet18_cifar10", "fedkl.infeasible.resnet18_cifar100"),
    "fedkl.psnr.with",
}


def test_which_sentences_the_papers_tables_refute(claims, judged):
    refuted = set(judged[judged["verdict"] == "refuted"].index)
    averages = {name for name in judged.index if name.startswith("fedkl.average.")}
    stated = {claim.id for claim in claims.claims if claim.contradicted_by}
    assert len(averages) == 11
    sentences = ("average", "best.small", "infeasible", "narrows", "random", "worse")
    combined = {f"fedkl.{name}" for name in sentences}
    assert refuted == REFUTED_BY_TABLES | averages | stated | combined
    # What nothing is measured for rests on the paper's own words.
    assert judged.loc["fedkl.mse", "evidence"] == judged.loc["fedkl.capacity", "evidence"]
    assert judged.loc["fedkl.mse", "evidence"] == "the paper"
    assert "is 97.8133, not 97.45" in judged.loc["fedkl.average.lenet_mnist", "reason"]
    assert judged.loc["fedkl.text.gain_vgg16", "ours"] == pytest.approx(18.01, abs=0.005)
    ours = judged.loc["fedkl.narrows.cifar10.resnet20"]
    assert "ours: differs" in ours["reason"] and ours["ours"] == pytest.approx(-4.1)
    # Its other sentences hold.
    forms = {claim.id: claim.query for claim in claims.claims}
    orders = judged[judged["kind"] == "order"]
    compared = orders[[isinstance(forms.get(name), Estimates) for name in orders.index]]
    # Changes stand in no table, so nothing tells of them here.
    wrong = set(compared[~compared["verdict"].isin(["reproduced", "refuted"])].index)
    unseen = {name for name in compared.index if name.startswith("fedkl.random_lock.")}
    assert wrong == {"fedkl.most_gained"} | unseen
    worse = judged.filter(like="fedkl.worse.grnn_lenet_mnist.", axis=0)["whose"].to_dict()
    others = ("rmse_255", "lpips_vgg_255", "lpips_alex_255", "ssim_255")
    assert worse == {
        **{f"fedkl.worse.grnn_lenet_mnist.{name}": "paper" for name in others},
        "fedkl.worse.grnn_lenet_mnist.lpips_squeeze": "ours",
    }
    names = ("worse.grnn_lenet_mnist.rmse_255", "grnn_best.resnet18_imagenet.ig", "classes.vgg16")
    assert (orders.loc[[f"fedkl.{name}" for name in names], "verdict"] == "reproduced").all()


def test_without_results_nothing_but_the_papers_arithmetic_is_judged(claims):
    found = verdicts(claims, images="embedded", scale="smoke")
    judged = found[found["verdict"] == "by definition"]
    texts = {"models", "text.gain_resnet20", "text.dlg_mnist", "text.grnn_mnist", "psnr.without"}
    gaps = {name for name in found.index if name.startswith("fedkl.gap.")}
    assert set(judged.index) == {f"fedkl.{name}" for name in texts} | gaps | {"fedkl.gap"}
    assert set(found["verdict"]) == {"by definition", "refuted", "not judged"}
    waiting = found[found["verdict"] == "not judged"]["reason"]
    assert waiting.str.match(r"(of \d+ parts: [\w, ]+; \S+: )?(data|scale|weights): ").all()


def test_what_fits_or_opens_a_lock_is_asked_for_both_of_lenets(claims):
    by_id = {claim.id: claim for claim in claims.claims}
    locks = (("relu", "ReLU", "kl"), ("sigmoid", "Sigmoid", "kls"))
    for case, (lock, words, kind) in product(("lenet_mnist", "lenet_cifar10"), locks):
        names = [f"{said}.{case}.{lock}" for said in ("adaptive", "unlocked")]
        names += [f"fitted.{case}.{lock}.{attack}" for attack in ("dlg", "grnn", "ig")]
        for claim in (by_id[f"fedkl.{name}"] for name in names):
            assert getattr(claim.query, "where", {})["model"] == f"fedkl_{case}_{kind}"
            assert f"{words} in the lock" in claim.statement


# Scales at which searches end by themselves, or with the paper's counts.
LARGER = ("night", "paper")


def test_orders_that_few_rounds_cannot_answer_need_the_papers_amounts(claims):
    needs = {}
    for claim in claims.claims:
        # Ours say what few rounds are worth; DLG on residual networks has not even begun.
        if claim.kind != "order" or claim.whose == "ours" or "DLG consistently" in claim.statement:
            continue
        said = str(claim.query.model_dump())
        if isinstance(claim.query, Estimates):
            deep = [net for net in ("resnet", "vgg") if net in said]
            needs.setdefault("trained" if deep else "digits", set()).add(str(claim.needs.scale))
        elif "attack" in said:
            net = next(net for net in ("resnet18", "resnet20", "lenet", "ggl") if net in said)
            found = {claim.needs.scale, claim.to_hold.scale, claim.to_fail.scale}
            short = any(name in said for name in ("grnn", "_ig", "ggl"))
            needs.setdefault(net if short else f"{net} dlg", set()).add(
                not found.isdisjoint(LARGER)
            )
    assert needs.pop("trained") == {"paper"} and needs.pop("digits") == {"laptop"}
    # GRNN and IG are cut short, whatever they attack; DLG on some of LeNet's gradients.
    assert needs.pop("lenet dlg") == {False, True} and set().union(*needs.values()) == {True}
    assert {"lenet", "resnet18", "resnet20", "ggl"} <= needs.keys()


def test_runs_declared_too_short_wait_for_the_papers_steps(claims):
    cells = {claim.id: claim for claim in claims.judged() if claim.cell is not None}
    for name, claim in cells.items():
        row = name.removeprefix("fedkl.table6.")
        if row == name:
            continue
        if row.startswith("dlg_"):
            spent = row.startswith(("dlg_lenet_cifar10.", "dlg_lenet_cifar100."))
            assert (claim.needs.scale in LARGER) == (spent or "resnet" in row), name
            continue
        assert claim.needs.scale in LARGER, name
        # ResNet-18 has all iterations at night, but a quarter of the pixels' side.
        assert re.search("iterations|generations|pixels", claim.needs.why), name
    by_id = {claim.id: claim for claim in claims.claims}
    assert "200 of its 10,000" in by_id["fedkl.dlg_fails.resnet20_mnist"].needs.why
    # Where DLG stops by itself, that it finds nothing is judged; where it spends all, it is not.
    cases = {"lenet_mnist": ("bn", "kl", "gradient"), "lenet_cifar10": ("kl",)}
    for case, judged in cases.items():
        for norm in ("bn", "kl", *(("key", "gradient", "both") if case == "lenet_mnist" else ())):
            needed = by_id[f"fedkl.dlg_fails.{case}.{norm}"].to_hold
            assert (needed.scale not in LARGER) == (norm in judged), (case, norm)


def test_other_readings_stand_beside_and_are_not_judged(claims):
    beside = [claim for claim in claims.claims if claim.cell is not None and claim.whose == "ours"]
    assert not any(claim.is_judged for claim in beside)
    rows = {claim.cell.row for claim in beside if claim.cell.table == "fedkl_table6"}
    for words, count in (
        ("PyTorch's initial weights", 9),
        ("evaluation mode", 6),
        ("lock weights of the attacker's own", 15),
    ):
        assert len([row for row in rows if words in row]) == count, words
    random = [c for c in beside if c.cell.column.endswith("random lock")]
    assert len(random) == 2 * 11 and {c.query.table for c in random} == {"fedkl_random_keys"}


def test_orderings_on_cifar100_say_that_they_are_of_a_split(claims):
    for claim in claims.claims:
        said = str(claim.query.model_dump())
        if "cifar100" not in said or "fedkl_accuracy" not in said:
            continue
        if claim.cell is None:
            assert "(here its test set, split)" in claim.statement, claim.id
        else:
            assert claim.query.where["split"] == "train"


@pytest.mark.parametrize(("locked", "gap"), [(-0.9, 0.4), (0.2, -0.3)])
def test_an_asymmetry_has_no_sign(claims, tmp_path, locked, gap):
    rows = [
        {"row": "ResNet-20, CIFAR-10", "column": column, "metric": metric, "ours": value}
        for column, skewness in (("w/o KL", 0.5), ("w/ KL", locked))
        for metric, value in (("skewness", skewness), ("asymmetry", abs(skewness)))
    ]
    found = verdicts(claims, read(tmp_path, fedkl_fig4=rows))
    one = found.loc["fedkl.fig4.asymmetric.resnet20_cifar10"]
    # One training a side.
    assert one["ours"] == pytest.approx(gap) and one["verdict"] == "not judged"
    assert one["reason"].startswith("one draw: ")


@pytest.mark.parametrize(("found_ssim", "alike"), [(0.9, True), (0.7, False)])
def test_a_key_that_is_read_is_held_against_one_that_is_shared(claims, tmp_path, found_ssim, alike):
    model = {"model": "fedkl_lenet_mnist_kl"}
    rows = []
    for index in range(IMAGES):
        off = 0.001 * index
        for shared, attack, ssim in (
            ("gradient", "fedkl_grnn_fit", found_ssim + off),
            ("gradient", "fedkl_grnn", 0.1),
            ("key", "fedkl_grnn", 0.92),
            ("both", "fedkl_grnn", 0.91),
        ):
            where = {**model, "result": f"fedkl_lenet_mnist_{shared}", "attack": attack}
            for metric, value in (("ssim_255", ssim), ("rmse_255", 100 * (1 - ssim) + off)):
                rows.append(score(where, index, metric, value))
    evidence = read(tmp_path, rows)
    found = verdicts(claims, evidence)["verdict"]
    read_keys = found.filter(like="fedkl.key_read").filter(like="lenet_mnist").to_dict()
    expected = dict.fromkeys(("beats.lenet_mnist", "lenet_mnist"), "reproduced")
    names = (f"lenet_mnist.as_{what}" for what in ("key", "both"))
    expected |= dict.fromkeys(names, "reproduced" if alike else "differs")
    assert read_keys == {f"fedkl.key_read.{name}": verdict for name, verdict in expected.items()}
    # 800 steps that find nothing do not show that there is nothing to find.
    (alone,) = (c for c in claims.claims if c.id == "fedkl.gradient_only.lenet_mnist")
    assert found[alone.id] == "not judged"
    assert Judge(claims, evidence, "real", "paper")(alone).verdict == "reproduced"


def test_a_gain_with_the_lock_is_explained_by_the_authors_networks(claims):
    why = load_explanations(FILE.with_name("explanations.yaml"), claims)
    found = verdicts(claims, why=why)
    assert found.loc["fedkl.capacity", "verdict"] == "refuted"
    assert "lack the max-pool" in found.loc["fedkl.capacity", "explanation"]
    explained = {name for name, entry in why.by_id.items() if "lack the max-pool" in entry.text}
    gains = {c.id for c in claims.claims if c.id.startswith("fedkl.large.")}
    assert explained == gains | {"fedkl.capacity", "fedkl.most_gained"} and len(gains) == 12


def test_tables_show_the_papers_numbers_beside_ours(claims, world):
    shown = table(claims, world, "fedkl_table6", "real", "laptop")
    shown = shown.set_index(["row", "column", "metric"]).loc["DLG, LeNet (32*32), MNIST"]
    for lock, paper, verdict in (("w/o", 49.97, "reproduced"), ("w/", 140.87, "not judged")):
        cell = shown.loc[(lock, "rmse_255")]
        assert (cell["paper"], cell["verdict"]) == (paper, verdict)
        assert cell["ours"] == pytest.approx(paper)
    assert cell["note"].startswith("nothing: ")
    shown = table(claims, world, "fedkl_table3", "real", "laptop").set_index(["row", "column"])
    assert shown.loc[("LeNet (32*32)", "Parameter Proportion"), "paper"] == 22.43
    few = shown.loc[("VGG-16 (224*224), Client 0", "C-10"), "note"]
    assert set(few) == {"scale: needs at least paper, this is laptop"}


def test_searches_that_are_left_unjudged_are_those_that_the_record_shows_cut_short():
    """`spent` of the claims' lists, by the evaluations in the recorded scores."""
    lists = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    most = yaml.safe_load((FILE.parent / "paper.yaml").read_text(encoding="utf-8"))
    most = most["attacks"]["fedkl_dlg"]["iterations"]["laptop"]
    failing = (one for one in lists["claims"] if one["id"].startswith("fedkl.dlg_fails"))
    (sharing,) = (one for one in failing if "what" in one["foreach"])
    cases = [
        (f"{one['case']}", end, one["spent"])
        for one in lists["lists"]["lenets"]
        for end in ("", "_bn")
    ]
    cases += [
        (f"lenet_mnist_{one['id']}", "_kl", one["spent"]) for one in sharing["foreach"]["what"]
    ]
    with ZipFile(ROOT / "docs/results/fedkl/evidence.zip") as evidence:
        for case, end, spent in cases:
            (path,) = (
                n
                for n in evidence.namelist()
                if f"/fedkl_{case}/" in n and n.endswith("/fedkl_dlg.csv")
            )
            found = pd.read_csv(evidence.open(path))
            model = "fedkl_lenet_mnist" if case.startswith("lenet_mnist_") else f"fedkl_{case}"
            own = found[(found["model"] == f"{model}{end}") & (found["metric"] == "evaluations")]
            assert len(own) and (own["value"] >= most).any() == (spent in LARGER), (case, end)
