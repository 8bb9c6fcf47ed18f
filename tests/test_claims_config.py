"""Claims files against the rest of the repository: config, limits, explanations, words on pages."""

import importlib
import re
from functools import cache
from itertools import product
from typing import get_args

import pandas as pd
import pytest
import yaml

from claims_synthetic import FILE, ROOT, copa, explained
from conftest import sentence
from gradleak.analysis.copa_index import COLUMNS as SECURITY_COLUMNS
from gradleak.analysis.rank_table import COLUMNS as RANK_COLUMNS
from gradleak.claims import load, load_all, load_explanations, tally
from gradleak.claims.forms import Query
from gradleak.claims.forms.base import EXTREMES
from gradleak.claims.metrics import label
from gradleak.claims.outcome import VERDICTS
from gradleak.claims.recorded import EVIDENCE, parts, run
from gradleak.claims.statement import Rule
from gradleak.errors import ConfigError
from gradleak.runtime.tidy import TABLES
from gradleak.scoring.metrics.image import AT_TWIN, INVISIBLE
from gradleak.settings.fields import SCALES
from papers.fedkl.distributions import COLUMNS as FIG4
from papers.mkor.inconspicuous import COLUMNS as INCONSPICUOUS
from papers.mkor.leakage import COLUMNS as LEAKAGE
from papers.mkor.low_pass import COLUMNS as BOUND
from papers.mkor.unique_samples import COLUMNS as UNIQUE
from pipeline_trees import whole


def _wheres(value, outer):
    """Every selection in a query, with what stands around it, and the mapping it stands in."""
    if isinstance(value, list):
        for item in value:
            yield from _wheres(item, outer)
    if not isinstance(value, dict):
        return
    outer = {**outer, **value.get("where", {})}
    inner = {key: value[key] for key in ("better", "than", "one", "other") if key in value}
    sides = {key: side for key, side in inner.items() if "where" not in side}
    for side in sides.values():
        yield {**outer, **side}, value
    rest = [item for key, item in value.items() if key not in ("where", *sides)]
    deeper = [found for item in rest for found in _wheres(item, outer)]
    yield from deeper
    if not sides and not deeper and outer:
        yield outer, value


def _listed(value):
    return {str(item) for item in (value if isinstance(value, list) else [value])}


PAPERS = {path.parent.name: load(path) for path in sorted(ROOT.glob("papers/*/claims.yaml"))}
IMAGE_METRICS = "src/gradleak/scoring/metrics/image.py"
# Columns of tables whose module names none.
TIDY = {
    "mkor_soteria_cost": ["model", "features", "passes", "gradient_passes"],
    "mkor_inconspicuous": INCONSPICUOUS,
    "mkor_fishing": INCONSPICUOUS,
    "mkor_leakage": LEAKAGE,
    "mkor_unique_samples": UNIQUE,
    "mkor_bound": BOUND,
    "fedkl_fig4": FIG4,
    **{name: [*TABLES, "model"] for name in ("rgap_fig4", "rgap_resnet101")},
}


@cache
def columns_of(name):
    """Columns of a table of ours, as its module has them."""
    (file,) = (path for path in RESULTS if name in yaml.safe_load(path.read_text())["tables"])
    made_by = yaml.safe_load(file.read_text())["tables"][name]["make"]
    return TIDY.get(name) or getattr(importlib.import_module(made_by), "COLUMNS", TABLES)


RESULTS = sorted(ROOT.glob("papers/*/results.yaml"))
# One row per layer, which no module of results makes.
LAYERED = {"rank": [*RANK_COLUMNS, "local"], "security": SECURITY_COLUMNS}


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_name_only_what_the_config_makes(paper):
    config = whole()
    experiments, groups = config["experiments"], config.get("groups", {})
    code = [*ROOT.glob("src/gradleak/scoring/scores*.py"), ROOT / IMAGE_METRICS]
    metrics = "".join(path.read_text(encoding="utf-8") for path in code)
    looked_at = 0
    for claim in PAPERS[paper].claims:
        for where, inside in _wheres(claim.query.model_dump(), {}):
            looked_at += 1
            assert _listed(where.get("model", [])) <= set(config["models"]), claim.id
            if "column" in inside and claim.query.form in ("column", "columns", "estimates"):
                columns = LAYERED.get(inside["table"]) or columns_of(inside["table"])
                assert inside["column"] in columns, claim.id
                known = {*columns, "result", "position"}
                assert where.keys() <= known, claim.id
            assert _listed(where.get("server", [])) <= set(config["servers"]), claim.id
            if "result" not in where:
                continue
            entry = experiments[where["result"]]
            made = {m for name in entry["models"] for m in groups.get(name, [name])}
            assert _listed(where.get("model", [])) <= made, claim.id
            for key in ("attack", "defence"):
                assert _listed(where.get(key, [])) <= set(entry[f"{key}s"]), (claim.id, key)
            metric = inside.get("metric") or getattr(claim.query, "metric", "mse")
            assert f'"{metric}"' in metrics, (claim.id, metric)
    assert looked_at > 100


def test_sentences_that_tests_check_name_them():
    named = 0
    for claim in PAPERS["mkor"].claims:
        reason = getattr(claim.query, "reason", "")
        assert reason.split(": ")[0] in ("", "data", "scale", "time", "test"), claim.id
        if reason.startswith("test: "):
            file, name = reason.removeprefix("test: ").split(";")[0].split("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), claim.id
            named += 1
    assert named >= 4


def test_sentences_about_seconds_cite_what_was_recorded():
    rows = pd.read_csv(ROOT / "docs/results/mkor/speed.csv").set_index("what")
    reasons = {claim.id: getattr(claim.query, "reason", "") for claim in PAPERS["mkor"].claims}
    soteria = rows.loc["gradient of mkor_lenet against Soteria", "ratio"]
    assert f"{soteria:.0f} times as long" in reasons["mkor.soteria.time"]
    mkor = rows.loc["MKOR mkor_vgg16_100 against its gradient"]
    words = f"{mkor['ours_s']:.2f} seconds, after {mkor['reference_s']:.0f} for the gradient"
    assert words in reasons["mkor.speed"]


def test_the_page_on_claims_has_every_form_with_its_rules():
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    rows = page.partition("\n## Forms")[2].partition("\n## ")[0].splitlines()
    shown = {}
    for names, _, rules, asks in (row.strip("| ").split(" | ") for row in rows if "| `" in row):
        for name in re.findall(r"`(\w+)`", names):
            shown[name] = (re.findall(r"`(\w+)`", rules) or list(get_args(Rule)), asks)
    forms = get_args(get_args(Query)[0])
    named = {get_args(form.model_fields["form"].annotation)[0]: form for form in forms}
    assert shown == {name: (list(form.rules), form.asks) for name, form in named.items()}


def test_figures_and_claims_have_the_same_limits():
    amounts = {name: tolerance.amount for name, tolerance in PAPERS["rgap"].tolerances.items()}
    assert amounts["invisible"] == amounts["visible"] == INVISIBLE
    query = CLAIMS["rgap.twin.dlg_random"][0].query.model_dump()
    assert amounts["at_twin"] == amounts["off_twin"] == query["more"]["amount"] == AT_TWIN
    # The paper's sentences rest on its own arithmetic.
    for claim in PAPERS["rgap"].claims:
        selected = [where for where, _ in _wheres(claim.query.model_dump(), {})]
        attacks = {name for where in selected for name in _listed(where.get("attack", []))}
        if claim.whose == "paper" and claim.id != "rgap.label":
            assert "rgap_balanced" not in attacks, claim.id


FILES = {path.parent.name: path for path in sorted(ROOT.glob("papers/*/explanations.yaml"))}
WHYS = {paper: load_explanations(path, PAPERS[paper]) for paper, path in FILES.items()}
CLAIM, OTHER = "copa.fig1.captured", "copa.fig1.close.v1"
ENTRY = {"claims": [CLAIM], "text": "why", "evidence": ["docs/copa.md"]}


def test_a_pattern_reaches_its_claims_and_no_other(tmp_path):
    why = explained(tmp_path, copa(), {"copa.table1.v1.*": "one", CLAIM: "two"})
    first = {claim.id for claim in copa().claims if claim.id.startswith("copa.table1.v1.")}
    assert set(why.by_id) == first | {CLAIM} and len(first) > 3
    assert why.text(CLAIM, "refuted", "real", "laptop") == "two"
    assert why.text(OTHER, "differs", "real", "laptop") == ""
    # What holds in any run is shown in every one.
    given = [{**ENTRY, "of": "any"}, {**ENTRY, "claims": [OTHER]}]
    why = explained(tmp_path, copa(), {}, explanations=given)
    for case in product(("real", "embedded"), SCALES):
        assert why.text(CLAIM, "differs", *case) == "why"
        assert why.text(OTHER, "differs", *case) == ("why" if case == ("real", "laptop") else "")
        for claim, verdict in product((CLAIM, OTHER), ("reproduced", "not judged")):
            assert why.text(claim, verdict, *case) == ""


# What an explanation of any run must not speak of: how a run went.
OF_A_RUN = re.compile(r"p = |\d dB|SSIM|recorded|\d+ of \d+ runs|over five images")


def test_explanations_of_any_run_have_no_numbers_of_one():
    known = {name: entry for why in WHYS.values() for name, entry in why.by_id.items()}
    entries = {entry.text for entry in known.values() if entry.of == "any"}
    assert len(entries) >= 5
    assert [text for text in entries if OF_A_RUN.search(text)] == []
    for name in ("fedkl.share.lenet_mnist", "fedkl.prop2.scale", "rgap.resnet18.ra.critical"):
        assert known[name].of == "any"


BAD = [
    ({"explanations": [{**ENTRY, "of": "smoke"}]}, "explanations.0.of"),
    ({"explanations": [{**ENTRY, "claims": ["copa.none.*"]}]}, "none.*"),
    ({"explanations": [{**ENTRY, "claims": []}]}, "explanations.0.claims"),
    ({"explanations": [{**ENTRY, "text": ""}]}, "explanations.0.text"),
    ({"explanations": [{**ENTRY, "evidence": []}]}, "explanations.0.evidence"),
    ({"explanations": [{**ENTRY, "why": "x"}]}, "explanations.0.why"),
    ({"explanations": [ENTRY, {**ENTRY, "claims": ["*.captured"]}]}, "twice"),
    ({"paper": "rgap"}, "'rgap' is not 'copa'"),
    ({"of": {"images": "real", "scale": "large"}}, "of.scale"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_files_are_refused_in_one_sentence(tmp_path, change, words):
    said = sentence(ConfigError, explained, tmp_path, copa(), {CLAIM: "why"}, **change)
    assert words in said and "explanations.yaml" in said


def test_a_paper_may_have_none(tmp_path):
    others = [str(path) for paper, path in FILES.items() if paper != "copa"]
    ((found, why),) = load_all([str(FILE)], others)
    assert found.paper == "copa" and why is None


RECORDED = sorted(path.parent.name for path in (ROOT / "docs/results").glob(f"*/{EVIDENCE}"))


@pytest.mark.parametrize("paper", RECORDED)
def test_failed_recorded_claims_are_explained_and_counted_in_the_readme(paper):
    why, folder = WHYS[paper], ROOT / "docs/results" / paper
    recorded = tally.read(folder / "claims.csv")
    whole, *larger = (run(place) for place in (folder, *parts(folder)))
    assert (why.of.images, why.of.scale) == (whole["images"], whole["scale"])
    scales = {each["scale"] for each in (whole, *larger)}
    assert set(recorded.scale) == scales and set(recorded.images) == {whole["images"]}
    failed = recorded[recorded.verdict == "differs"]
    assert len(failed) and list(failed.id[failed.explanation.isna()]) == []
    counts = [len(recorded), *((recorded.verdict == verdict).sum() for verdict in VERDICTS)]
    shown = f"(docs/results/{paper}.md) | {' | '.join(map(str, counts))} | "
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(shown) == 1, shown
    ours = tally.read(folder / "claims_ours.csv")
    counts = [len(ours), *((ours.verdict == verdict).sum() for verdict in OF_OURS)]
    shown = f"(docs/results/{paper}.md#ours) | {' | '.join(map(str, counts))} | "
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(shown) == 1, shown


# Ours are never refuted by the paper, nor do they exceed it.
OF_OURS = [verdict for verdict in VERDICTS if verdict not in ("exceeds", "refuted")]


def test_limits_at_which_nothing_was_found_are_those_of_recorded_images_of_one_colour():
    folder, found = ROOT / "docs/results", {}
    flat = pd.read_csv(folder / "fedkl/fedkl_constants.csv")
    mean = flat[(flat.answer == "mean colour") & (flat.metric == "rmse_255")].set_index("targets")
    for claim in PAPERS["fedkl"].claims:
        for limit in claim.nothing:
            images = claim.query.where["result"].split("_")[-1]
            found[images] = (limit.at_least, mean.loc[f"fedkl_{images}", "mean"])
    assert set(found) == {"mnist", "cifar10", "cifar100"}
    assert all(limit == pytest.approx(own, abs=0.06) for limit, own in found.values())
    black = pd.read_csv(folder / "mkor/mkor_methods.csv", dtype={"batch": str})
    black = black[(black.attack == "black") & (black.batch == "all") & (black.metric == "psnr")]
    limits = {(one.metric, one.at_most) for claim in PAPERS["mkor"].claims for one in claim.nothing}
    assert {metric for metric, _ in limits} == {"avg_psnr", "max_psnr"}
    assert all(limit == pytest.approx(black["mean"].item(), abs=0.05) for _, limit in limits)


CLAIMS = {
    claim.id: (claim, found.tolerances[claim.tolerance])
    for found in PAPERS.values()
    for claim in found.claims
}
# A claim of each form and rule, the beginning of what ours is, and what lies between its low and
# high.
SAID = {
    "copa.table1.v1.layer1.kernel": ("", EXTREMES),
    "fedkl.prop2.scale": ("", EXTREMES),
    "copa.table2.fig1.v1.truck.copa.mse": ("", "95 %: one further run"),
    "mkor.table2.mkor.o_avg_psnr": (
        "mean over batches of each one's mean PSNR",
        "95 %: one further batch",
    ),
    "rgap.table1.rgap64.cnn6": ("", "95 %: the mean, widened"),
    "copa.fig1.close.v1": ("mean difference of MSE", "90 %"),
    "copa.c.full.fig1": ("median over runs of MSE", "95 % of the runs"),
    "copa.c.position": ("ratio of MSEs", "90 %"),
    "copa.c.indicator.copa": ("Spearman's rank correlation over networks", "95 %"),
    "fedkl.decline.central.lenet_mnist": ("least clear difference; above −3 where", "95 %"),
    "rgap.twin.same_class": ("share of starts", "90 %"),
    "copa.variants.cover": ("smallest gap", None),
    "mkor.better.original.gi.ssim": ("mean difference of 1 − SSIM", None),
    "fedkl.worse.ig_resnet20_mnist.rmse_255": ("ratio of RMSEs", None),
    "mkor.sweep.ssim": ("Spearman's rank correlation over batches", None),
    "rgap.fig1.zero": ("the number that decides", None),
    "fedkl.models": ("what the paper's own numbers come to", None),
    "fedkl.psnr.with": ("share of the paper's numbers", None),
    "copa.table2.psnr_matches_mse": ("cells of the paper's that agree", None),
    "copa.padding.copa": ("the change's effect", None),
}


def test_ours_and_its_interval_are_called_what_the_judge_makes():
    for name, (claim, tolerance) in CLAIMS.items():
        ours, shown = claim.query.ours(tolerance), claim.query.interval(tolerance)
        beginning, interval = SAID.get(name, ("", None))
        assert ours.startswith(beginning), name
        assert bool(ours) == (claim.query.form != "elsewhere"), name
        assert interval in (None, shown), name
        # An exact claim has no share of certainty.
        if claim.kind == "exact" and claim.query.form in ("runs", "column"):
            assert shown == EXTREMES, name
    assert SAID.keys() <= CLAIMS.keys()


LABELS = {
    "rmse_255": "the paper's “MSE”: a root, of 0..255", "avg_psnr": "mean PSNR, dB",
    "psnr_median": "median PSNR, dB", "eq33_printed": "Equation (33), as printed", "kernel": "",
    "max_nothing": "",
}  # fmt: skip


def test_labels_of_metrics_and_of_those_in_the_docs():
    assert {name: label(name) for name in LABELS} == LABELS
    rows = (ROOT / "docs/metrics.md").read_text(encoding="utf-8").split("| --- | --- | --- |")[1]
    table = rows.partition("\n\n")[0]
    names = [part for line in table.splitlines() for part in line.partition(" | ")[0].split("`")]
    metrics = [name for name in names[1:] if name.isidentifier()]
    assert len(metrics) > 8 and all(label(name) for name in metrics)
