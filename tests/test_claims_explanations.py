"""Explanations of claims that failed: what is refused, whom they reach, what they rest on."""

import re
from pathlib import Path

import pandas as pd
import pytest

from claims_synthetic import FILE, copa, explained
from gradleak.claims import load, load_all, load_explanations
from gradleak.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "papers").glob("*/explanations.yaml"))
CLAIM, OTHER = "copa.fig1.captured", "copa.fig1.close.v1"
RUN = {"images": "real", "scale": "laptop"}
ENTRY = {"claims": [CLAIM], "text": "why", "evidence": ["docs/copa.md"]}


def test_a_pattern_reaches_its_claims_and_no_other(tmp_path: Path) -> None:
    why = explained(tmp_path, copa(), {"copa.table1.v1.*": "one", CLAIM: "two"})
    first = {claim.id for claim in copa().claims if claim.id.startswith("copa.table1.v1.")}
    assert set(why.by_id) == first | {CLAIM} and len(first) > 3
    assert why.text(CLAIM, "refuted", "real", "laptop") == "two"
    for verdict, images, scale in (
        ("reproduced", "real", "laptop"),
        ("not judged", "real", "laptop"),
        ("differs", "embedded", "laptop"),
        ("differs", "real", "smoke"),
    ):
        assert why.text(CLAIM, verdict, images, scale) == ""
    assert why.text(OTHER, "differs", "real", "laptop") == ""


def test_what_holds_in_any_run_is_shown_in_every_one(tmp_path: Path) -> None:
    given = [{**ENTRY, "of": "any"}, {**ENTRY, "claims": [OTHER]}]
    why = explained(tmp_path, copa(), {}, explanations=given)
    for images in ("real", "embedded"):
        for scale in ("smoke", "laptop", "paper"):
            assert why.text(CLAIM, "differs", images, scale) == "why"
            assert why.text(CLAIM, "reproduced", images, scale) == ""
            same = (images, scale) == ("real", "laptop")
            assert why.text(OTHER, "differs", images, scale) == ("why" if same else "")


# What an explanation of any run must not speak of: how a run went.
OF_A_RUN = re.compile(r"p = |\d dB|SSIM|recorded|\d+ of \d+ runs|over five images")


def test_explanations_of_any_run_have_no_numbers_of_one() -> None:
    files = [load_explanations(path, load(path.with_name("claims.yaml"))) for path in FILES]
    entries = {entry.text for why in files for entry in why.by_id.values() if entry.of == "any"}
    assert len(entries) >= 5
    assert [text for text in entries if OF_A_RUN.search(text)] == []
    known = {name: entry for why in files for name, entry in why.by_id.items()}
    for name in ("fedkl.share.lenet_mnist", "fedkl.prop2.scale", "rgap.resnet18.ra.critical"):
        assert known[name].of == "any"


BAD = {
    "a run for an entry": ({"explanations": [{**ENTRY, "of": "smoke"}]}, "explanations.0.of"),
    "a pattern of nothing": ({"explanations": [{**ENTRY, "claims": ["copa.none.*"]}]}, "none.*"),
    "one claim twice": ({"explanations": [ENTRY, {**ENTRY, "claims": ["*.captured"]}]}, "twice"),
    "no claims": ({"explanations": [{**ENTRY, "claims": []}]}, "explanations.0.claims"),
    "no text": ({"explanations": [{**ENTRY, "text": ""}]}, "explanations.0.text"),
    "no evidence": ({"explanations": [{**ENTRY, "evidence": []}]}, "explanations.0.evidence"),
    "an unknown key": ({"explanations": [{**ENTRY, "why": "x"}]}, "explanations.0.why"),
    "another paper": ({"paper": "rgap"}, "'rgap' is not 'copa'"),
    "a run that is none": ({"of": {"images": "real", "scale": "large"}}, "of.scale"),
}


@pytest.mark.parametrize(("change", "words"), BAD.values(), ids=BAD)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, change: dict, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        explained(tmp_path, copa(), {CLAIM: "why"}, **change)
    assert words in str(raised.value) and "explanations.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_paper_may_have_none(tmp_path: Path) -> None:
    others = [path for path in FILES if path.parent != FILE.parent]
    ((found, why),) = load_all([str(FILE)], map(str, others))
    assert found.paper == "copa" and why is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_recorded_claims_that_differ_are_explained_by_evidence_that_is_there(path: Path) -> None:
    why = load_explanations(path, load(path.with_name("claims.yaml")))
    for entry in why.by_id.values():
        for place in entry.evidence:
            assert (ROOT / place).is_file(), place
    recorded = pd.read_csv(
        ROOT / f"docs/results/{path.parent.name}/claims.csv", keep_default_na=False
    )
    assert {(why.of.images, why.of.scale)} == set(zip(recorded.images, recorded.scale, strict=True))
    failed = set(recorded.id[recorded.verdict == "differs"])
    assert failed and failed <= set(why.by_id)
    for row in recorded.itertuples():
        assert row.explanation == why.text(row.id, row.verdict, row.images, row.scale), row.id
