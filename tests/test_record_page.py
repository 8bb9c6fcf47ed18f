"""The page of the recorded claims: made from docs/results alone, complete, small, and usable."""

import json
import shutil

import pandas as pd
import pytest

from browser import assert_fits, assert_tab_reaches_all, axe_missing, reason_to_skip
from conftest import ROOT
from gradleak.claims import recorded
from gradleak.claims.tally import KINDS
from gradleak.reporting import record_page
from html_tree import assert_policy, parse

RECORD, PAPERS = ROOT / "docs/results", ROOT / "papers"
PAGE = RECORD / record_page.FILE
SHOWN = """Array.from(document.querySelectorAll("tr[data-verdict]"))
    .filter(row => row.checkVisibility()).map(row => row.id)"""
PAPERS_SHOWN = """Array.from(document.querySelectorAll(".paper"))
    .filter(part => part.checkVisibility()).map(part => part.id)"""
FIND = """(() => { const box = document.getElementById("words"); box.value = %r;
    box.dispatchEvent(new Event("input", {bubbles: true})); })()"""


def rows(name):
    return pd.concat(pd.read_csv(path, keep_default_na=False) for path in RECORD.glob(f"*/{name}"))


def test_it_is_made_from_what_is_recorded_today():
    assert record_page.render(RECORD, PAPERS) == PAGE.read_text(encoding="utf-8"), (
        f"docs/results or its page changed; run {record_page.COMMAND}"
    )


def test_it_has_every_claim_with_its_verdict_no_picture_and_is_small():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.encode()) < 1.1e6
    html = parse(text)
    assert_policy(html)
    assert not html.all("img")
    shown = [row for row in html.all("tr") if "data-verdict" in row.attributes]
    found = {row["id"]: (row["data-verdict"], row.all("td")[-1].text()) for row in shown}
    assert len(found) == len(shown)
    parts = [rows(name) for name in recorded.FILES.values()]
    claims = pd.concat(parts)
    said = html.one("header").text()
    for part, what in zip(parts, ("claims of the papers", "claims of ours", "parts"), strict=True):
        assert f"{len(part)} {what}" in said
    feet = [foot.all("td")[0].text() for foot in html.one("section", id="overview").all("tfoot")]
    assert sorted(map(int, feet)) == sorted(map(len, parts)), "of each kind"
    assert set(found) == set(claims.id) and len(recorded.FILES) == len(KINDS)
    for claim in claims.itertuples():
        verdict, words = found[claim.id]
        assert verdict == claim.verdict and words.startswith(" ".join(claim.reason.split()))
    for link in (a["href"] for a in html.all("a")):
        assert link[1:] in text if link.startswith("#") else (RECORD / link).is_file()


def test_it_tells_when_and_by_what_it_was_recorded():
    html = parse(PAGE.read_text(encoding="utf-8"))
    said, lead = html.one("section", id="made").text(), html.one("header").text()
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in RECORD.glob("*/run.json")]
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in RECORD.rglob("run.json")]
    days = sorted(run["made"][:10] for run in parts)
    assert days[0] in lead and days[-1] in lead
    for run in runs:
        assert all(
            f"{n} file" in said and commit[:10] in said for commit, n in run["commits"].items()
        )
        assert all(version in said for version in run["versions"].values())
        assert run["made"][:10] in said and f"{run['scale']} scale" in said


def test_a_changed_verdict_is_on_the_page_and_a_folder_without_a_record_is_refused(
    tmp_path, capsys
):
    shutil.copytree(RECORD / "rgap", tmp_path / "rgap")
    path = tmp_path / "rgap/claims.csv"
    table = pd.read_csv(path, keep_default_na=False, dtype=str)
    table.loc[0, ["verdict", "reason"]] = "differs", "a <new> reason"
    table.to_csv(path, index=False)
    assert record_page.main([str(tmp_path), "--papers", str(PAPERS)]) == 0
    html = parse((tmp_path / record_page.FILE).read_text(encoding="utf-8"))
    row = html.one("tr", id=table.loc[0, "id"])
    assert row["data-verdict"] == "differs" and "a <new> reason" in row.text()
    (tmp_path / "rgap" / recorded.RUN).write_text("{")
    assert record_page.main([str(tmp_path), "--papers", str(PAPERS)]) == 2
    assert "run.json cannot be read" in capsys.readouterr().err
    assert record_page.main([str(tmp_path / "rgap")]) == 2
    assert "holds no paper's evidence.zip; name a record." in capsys.readouterr().err


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_words_find_claims_and_axe_finds_nothing(browser, width, scheme):
    tab = browser.open(PAGE, width=width, scheme=scheme)
    assert_fits(tab, PAGE.name)
    tab.js(FIND % "Truck")
    wanted = [name for name in tab.js(SHOWN) if ".truck." in name]
    assert len(wanted) > 20 and len(tab.js(SHOWN)) < 200, "their tables opened"
    tab.js(FIND % "copa.table1.v1.layer1.kernel")
    assert tab.js(SHOWN) == ["copa.table1.v1.layer1.kernel"]
    assert tab.js(PAPERS_SHOWN) == ["copa"], "no heading without a claim"
    tags = """Array.from(document.querySelectorAll("tr[data-verdict] .tag"))
        .filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect())"""
    assert tab.js(f"{tags}.every(box => box.left >= 0 && box.right <= innerWidth)")
    if not axe_missing():
        assert tab.axe() == []
    tab.js("document.querySelector('[type=reset]').click(); new Promise(d => setTimeout(d))")
    told = tab.js("document.getElementById('said').textContent")
    assert told.split()[0] == told.split()[2]
    tab.close()


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
@pytest.mark.parametrize("width", [390, 1280])
def test_keys_alone_filter_claims_and_text_has_both_halves_of_a_wide_window(browser, width):
    tab = browser.open(PAGE, width=width)
    top = tab.js("document.getElementById('filter').getBoundingClientRect().top")
    assert top < 420 and tab.js(f"{SHOWN}.length") > 10
    sides = """Array.from(document.querySelectorAll("#overview dl"),
        e => e.checkVisibility() && e.getBoundingClientRect().right / innerWidth > 0.9)"""
    assert tab.js(sides) == [False, False], "it is folded"
    tab.js("document.querySelector('nav a').click(); new Promise(d => setTimeout(d))")
    assert tab.js(sides) == ([True, True] if width == 390 else [False, True])

    def walk(there):
        while not tab.js(f"document.activeElement.matches({there!r})"):
            tab.press("Tab")

    tab.js("document.querySelector('.skip').focus()")
    walk("#words")
    for key in "truck":
        tab.press(key)
    assert tab.js(PAPERS_SHOWN) and all(".truck." in name for name in tab.js(SHOWN)[:5])
    walk("[value=copa]")
    tab.press(" ")
    assert not any(name.startswith("copa.") for name in tab.js(SHOWN))
    tab.js(FIND % "xyzzy")
    assert tab.js(SHOWN) == tab.js(PAPERS_SHOWN) == [], "no claim has this word"
    assert tab.js("document.getElementById('said').textContent") == "No claim matches"
    walk("[type=reset]")
    tab.press("Enter")
    tab.js("new Promise(done => setTimeout(done))")
    assert any(name.startswith("copa.") for name in tab.js(SHOWN)), "all are shown again"
    tab.js("document.querySelector('[data-open=\\'\\']').click()")
    closed = "document.querySelector('.sheet summary')"
    tab.js(f"{closed}.focus()")
    tab.press("Enter")
    assert tab.js(f"{closed}.parentElement.open")
    tab.press(" ")
    assert not tab.js(f"{closed}.parentElement.open")
    tab.close()


@pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
def test_tab_reaches_every_control(browser):
    tab = browser.open(PAGE, width=390)
    tab.js("document.querySelector('[data-open=\\'\\']').click()")
    assert_tab_reaches_all(tab, 50)
    tab.close()
