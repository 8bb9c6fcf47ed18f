"""The whole pipeline on the embedded images at smoke scale: every target, once and again."""

import re

import numpy as np
import pandas as pd
import pytest

import golden
import kernels
from conftest import ROOT
from gradleak.claims.outcome import VERDICTS
from gradleak.claims.recorded import EVIDENCE
from gradleak.pipeline.results.schema import load
from html_tree import parse
from pipeline_trees import SMOKE, assert_same_bytes, copied, made, need_room, results_of, scheduled
from test_figures_all import assert_print

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tree in which everything was made once; 5 GB, removed at the end."""
    folder = tmp_path_factory.mktemp("built")
    need_room(folder)
    with pytest.MonkeyPatch.context() as patched:
        # Later runs of these tests then have the same kernels.
        if golden.reason_to_skip() is None:
            for key, value in kernels.environment(golden.KERNEL).items():
                patched.setenv(key, value)
        with made(folder):
            yield folder


@pytest.fixture
def copy(built, tmp_path):
    return copied(built, tmp_path / "tree")


def test_every_target_is_made(built):
    papers = [load(path) for path in built.glob("papers/*/results.yaml")]
    kinds = {
        "figures/*.pdf": "figures",
        "figures/*.png": "figures",
        "results/tables/*.csv": "tables",
    }
    for pattern, kind in kinds.items():
        names = {name for paper in papers for name in getattr(paper, kind)}
        assert {path.stem for path in built.glob(pattern)} == names and len(names) > 30
    claims = pd.read_csv(built / "results/claims.csv")
    counts = claims.paper.value_counts()
    assert counts["copa"] > 100 and counts["rgap"] > 100 and counts["mkor"] > 200
    assert set(claims.images) == {"embedded"} and set(claims.whose) == {"paper"}
    assert set(claims.verdict) <= set(VERDICTS)
    sizes = claims[claims.kind == "definition"]
    assert len(sizes) > 100 and set(sizes.paper) == set(counts.index)
    assert set(sizes.verdict[sizes.id.str.startswith("copa.")]) == {"by definition"}
    exact = claims[claims.id.str.match(r"copa\.table1\.v.\.c$")]
    assert len(exact) == 4 and set(exact.verdict) == {"reproduced"}
    ours = pd.read_csv(built / "results/claims_ours.csv")
    assert set(ours.whose) == {"ours"} and set(ours.paper) == set(counts.index)
    parts = pd.read_csv(built / "results/claims_parts.csv")
    assert set(parts.part_of) <= set(claims.id) and set(parts.paper) == set(counts.index)
    table = pd.read_csv(built / "results/tables/copa_table2.csv")
    assert (table.n_ok.dropna() <= table.n.dropna()).all()


def test_files_hold_what_the_golden_run_held(built):
    """A refactoring changes none; a change that is meant is recorded, and its commit says why."""
    reason = golden.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    before, expected = golden.recorded()
    assert golden.conditions() == before, "python tests/golden.py says how to record it again"
    assert golden.differences(expected, golden.sums(built)) == []


def test_what_holds_of_any_run_is_as_it_was_recorded(built):
    """Sizes and equations give the numbers and verdicts of the runs that docs/results keeps."""
    folders = [path.parent for path in (ROOT / "docs/results").glob(f"*/{EVIDENCE}")]
    names = ("claims.csv", "claims_parts.csv")
    pairs = [(path, name) for path in folders for name in names]
    recorded = pd.concat(pd.read_csv(path / name) for path, name in pairs).set_index("id")
    here = pd.concat(pd.read_csv(built / "results" / name) for name in names).set_index("id")
    here = here.loc[recorded.index]
    judged = (recorded.verdict != "not judged") & (here.verdict != "not judged")
    assert judged.sum() > 70
    assert list(recorded.index[judged & (recorded.verdict != here.verdict)]) == []
    exact = recorded[recorded.kind.isin(["exact", "definition"]) & judged]
    # c(M), RA-i, shares of parameters and the like, which the paper prints.
    equal = exact[exact.reason.str.match(r"all (equal to|within .* of) the paper's value")]
    assert len(equal) > 40 and set(equal.paper) == {path.name for path in folders}
    np.testing.assert_allclose(here.ours[equal.index], equal.ours, rtol=1e-9, atol=1e-7)  # rounding


def test_a_second_run_does_nothing(built, snakemake):
    done = snakemake(built, *SMOKE)
    assert "Nothing to be done" in done.stdout + done.stderr
    for target in ("all", "figures", "tables", "claims"):
        assert scheduled(snakemake, built, *SMOKE, "--", target) == []


def test_an_edited_explanation_or_claim_reruns_tables_claims_and_the_report_alone(copy, snakemake):
    found = []
    for name in ("explanations", "claims"):
        path = copy / f"papers/copa/{name}.yaml"
        path.write_text(path.read_text() + "\n# touched\n")
        jobs = scheduled(snakemake, copy, *SMOKE, "--", "all", "results/report.html")
        found.append({rule for rule, _ in jobs})
    assert found[0] == {"claims_table", "report_page", "all"}
    assert found[1] >= found[0]
    assert found[1].isdisjoint({"score", "attack", "gradient", "model", "security", "figure"})


def test_a_fresh_copy_makes_the_same_bytes(built, tmp_path, snakemake, monkeypatch):
    found = assert_same_bytes(built, tmp_path / "another" / "tree", snakemake, ["all"], monkeypatch)
    assert found == results_of(built).keys()


def test_all_figures_hold_their_words_as_text_and_fit_a_page(built):
    for path in sorted(built.glob("figures/*.pdf")):
        assert_print(path)


def test_the_report_shows_all_that_was_made_and_stays_small(copy, snakemake):
    done = snakemake(copy, *SMOKE, "--", "results/report.html")
    page = copy / "results/report.html"
    figures = len(list(copy.glob("figures/*.pdf")))
    told = f"Look at results/report.html, results/claims.csv, figures/ ({figures} of {figures} "
    assert done.stderr.splitlines()[-1].startswith(told)
    assert "puts them on one page" not in done.stderr
    assert page.stat().st_size < 15e6, "it goes by mail"
    html = parse(page.read_text(encoding="utf-8"))
    links = {link["href"] for link in html.all("a")}
    ids = {element["id"] for element in html.all() if "id" in element.attributes}
    # The papers' own code.
    for link in (link for link in links if not link.startswith("https://github.com/")):
        assert link[1:] in ids if link.startswith("#") else (page.parent / link).is_file(), link
    # Every figure, table and claim of the tree, and each with a caption of its own.
    assert {f"figure-{path.stem}" for path in copy.glob("figures/*.pdf")} <= ids
    assert {f"sheet-{path.stem}" for path in copy.glob("results/tables/*.csv")} <= ids
    for name in ("claims", "claims_ours", "claims_parts"):
        assert set(pd.read_csv(copy / f"results/{name}.csv").id) <= ids
    # An interval says what it is.
    bare = re.compile(r"(\S*\d\S*|open) to (\S*\d\S*|open)")
    assert [cell.text() for cell in html.all("td") if bare.fullmatch(cell.text())] == []
    assert scheduled(snakemake, copy, *SMOKE, "--", "results/report.html") == []


def test_snakemake_s_own_report_of_everything_is_made(built, snakemake, tmp_path):
    snakemake(built, *SMOKE, "--report", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("copa_fig1.png", "fedkl_table6.csv", "mkor_table4.csv", "claims.csv"):
        assert name in text
