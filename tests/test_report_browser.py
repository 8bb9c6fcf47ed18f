"""The report in a headless Chromium: filters, links to claims, figures that open, print, axe."""

import pytest

from browser import FOCUSED, assert_fits, assert_tab_reaches_all, axe_missing, reason_to_skip
from gradleak.claims.outcome import VERDICTS
from report_samples import EXPLAINED, write

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
WIDTHS, SCHEMES, CLOSE_ALL = (400, 1280), ("light", "dark"), '[data-open=""]'
# A4 less the margins of @page, in CSS pixels.
PRINT = {"width": 695, "media": "print"}
ROWS = "Array.from(document.querySelectorAll('tr[data-verdict]'))"
SHOWN = f"{ROWS}.filter(row => !row.hidden && !row.closest('[data-paper]').hidden)"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("report"))


@pytest.fixture
def shown(browser, path):
    opened = []

    def show(**how):
        opened.append(browser.open(path, **how))
        return opened[-1]

    yield show
    for tab in opened:
        tab.close()


def go(tab, name):
    """Follow the address of a claim, and wait until the page has seen it."""
    seen = 'addEventListener("hashchange", () => setTimeout(done), {once: true})'
    tab.js(f'new Promise(done => {{ {seen}; location.hash = "{name}"; }})')


def click(tab, selector):
    tab.js(f"document.querySelector('{selector}').click(); new Promise(done => setTimeout(done))")


def choose(tab, name, *values):
    for value in values:
        click(tab, f'[name="{name}"][value="{value}"]')


def open_all(tab, what="details"):
    tab.js(f"document.querySelectorAll('{what}').forEach(d => {{ d.open = true; }})")


def visible(tab, name):
    return tab.js(f"document.getElementById('{name}').checkVisibility()")


def said(tab):
    return tab.js("document.getElementById('said').textContent")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_alone_without_errors_and_fits_its_window(shown, width):
    tab = shown(width=width)
    open_all(tab)
    assert_fits(tab, "report.html")
    names = "Array.from(document.querySelectorAll('td.metric .small code'))"
    lines = tab.js(f"{names}.map(code => code.getClientRects().length)")
    assert len(lines) > 20 and (width > 400 or set(lines) == {1}), "names stay on one line"


@pytest.mark.skipif(axe_missing(), reason="needs the package axe-core-python")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_with_all_open_nor_in_the_dialog(shown, width, scheme):
    tab = shown(width=width, scheme=scheme)
    open_all(tab)
    assert tab.axe() == []
    click(tab, ".picture button")
    assert tab.js("document.getElementById('zoom').open")
    assert tab.axe() == []


def test_verdicts_filter_rows_tables_figures_headings_and_counts(shown):
    tab = shown()
    heads = """Array.from(document.querySelectorAll('#rgap h3')).filter(h => h.checkVisibility())
        .map(h => h.textContent)"""
    claims = ["Sentences and other claims", "Parts of sentences", "Claims of ours"]
    before = ["Figures", "Tables", *claims]
    assert tab.js(heads) == before
    every = tab.js(f"{ROWS}.length")
    assert said(tab) == f"{every} of {every} claims shown"
    choose(tab, "verdict", *(name for name in VERDICTS if name != "differs"))
    left = tab.js(f"{SHOWN}.map(row => row.dataset.verdict)")
    assert set(left) == {"differs"} and 3 < len(left) < every
    assert said(tab) == f"{len(left)} of {every} claims shown"
    assert tab.js(f"{SHOWN}.every(row => row.checkVisibility())"), "their tables opened"
    # Tables of ours alone have nothing that differs.
    assert not visible(tab, "sheet-copa_index") and visible(tab, "sheet-copa_table1")
    found = "document.querySelector('#sheet-copa_table2 .found').textContent"
    inside = tab.js(f"{SHOWN}.filter(r => r.closest('#sheet-copa_table2')).length")
    assert tab.js(found) == f"({inside} shown)"
    assert not tab.js("Array.from(document.images).some(i => i.checkVisibility())")
    # R-GAP's one table here has no verdicts.
    assert tab.js(heads) == ["Sentences and other claims"]
    click(tab, "[type=reset]")
    assert said(tab) == f"{every} of {every} claims shown"
    assert visible(tab, "sheet-copa_index") and tab.js(found) == ""
    assert tab.js(heads) == before and visible(tab, "figure-rgap_fig1")


@pytest.mark.parametrize("place", ["nav", "#overview"])
def test_a_link_to_a_paper_that_is_filtered_out_brings_it_back(shown, place):
    tab = shown()
    box = """document.querySelector('[name="paper"][value="copa"]').checked"""
    # The second time the address names it already.
    for _ in range(2):
        choose(tab, "paper", "copa")
        assert not visible(tab, "copa") and not tab.js(box)
        click(tab, f'{place} a[href="#copa"]')
        tab.js("new Promise(done => setTimeout(done, 100))")
        assert visible(tab, "copa") and tab.js(box)
        top = tab.js("document.getElementById('copa').getBoundingClientRect().top")
        assert -2 <= top <= 400, "it is scrolled to"


@pytest.mark.parametrize("name", ["sheet-copa_table1", "sheet-copa_index", "figure-copa_fig1"])
def test_a_link_to_a_table_or_figure_shows_it_open(shown, name):
    tab = shown()
    click(tab, CLOSE_ALL)
    go(tab, name)
    inside = f"document.getElementById('{name}').querySelector('tbody, img')"
    assert tab.js(f"{inside}.checkVisibility()")
    go(tab, "overview")
    choose(tab, "verdict", *VERDICTS)
    choose(tab, "paper", "copa")
    assert not visible(tab, name)
    go(tab, name)
    assert tab.js(f"{inside}.checkVisibility()"), "although it was filtered out"


@pytest.mark.parametrize("width", WIDTHS)
def test_column_headings_stay_in_sight_of_a_long_table(shown, width):
    tab = shown(width=width)
    tab.js("document.getElementById('sheet-copa_index').open = true")
    scrolled, height, tops = tab.js(
        """(() => { const box = document.querySelector("#sheet-copa_index .scroll");
        box.scrollTop = 900;
        const of = (e) => e.getBoundingClientRect(), heads = box.querySelectorAll("thead th");
        return [box.scrollTop, of(box).height / innerHeight,
            Array.from(heads, head => of(head).top - of(box).top)]; })()"""
    )
    assert scrolled == 900 and height <= 0.86 and all(abs(top - 1) < 1.5 for top in tops)


def test_papers_filter_whole_sections_also_by_keys(shown):
    tab = shown()
    choose(tab, "paper", "copa")
    assert not visible(tab, "copa") and visible(tab, "rgap")
    assert tab.js(f"{SHOWN}.every(row => row.id.startsWith('rgap.'))")
    choose(tab, "paper", "copa")
    assert visible(tab, "copa")
    tab.js("""document.querySelector('[name="paper"][value="copa"]').focus()""")
    tab.press(" ")
    assert not visible(tab, "copa")
    assert said(tab) == f"{tab.js(f'{SHOWN}.length')} of {tab.js(f'{ROWS}.length')} claims shown"


def test_a_linked_claim_is_shown_whatever_is_filtered_or_closed(shown):
    tab = shown()
    click(tab, CLOSE_ALL)
    assert not visible(tab, EXPLAINED), "its table is closed"
    go(tab, EXPLAINED)
    assert visible(tab, EXPLAINED) and tab.js(f"{FOCUSED}.id") == EXPLAINED
    box = f"document.getElementById('{EXPLAINED}').getBoundingClientRect()"
    assert tab.js(f"{box}.top >= 0 && {box}.bottom <= innerHeight"), "it is scrolled to"
    choose(tab, "verdict", "differs")
    choose(tab, "paper", "copa")
    go(tab, "copa.table1.v1.layer1.channels")
    assert visible(tab, "copa.table1.v1.layer1.channels")
    go(tab, EXPLAINED)
    assert visible(tab, EXPLAINED), "although its paper and its verdict are filtered out"
    mates = f"{SHOWN}.filter(r => r.closest('#copa') && r.dataset.verdict === 'differs')"
    assert tab.js(f"{mates}.map(row => row.id)") == [EXPLAINED]


def test_a_link_to_a_claim_opens_it_at_once(shown, path):
    tab = shown()
    tab.call("Page.navigate", url=f"{path.resolve().as_uri()}#{EXPLAINED}")
    tab.js("new Promise(done => setTimeout(done, 0))")
    assert visible(tab, EXPLAINED)
    tab.call("Page.reload")
    ready = 'document.readyState === "complete" ? done() : addEventListener("load", done)'
    tab.js(f"new Promise(done => {ready})")
    assert visible(tab, EXPLAINED) and tab.problems() == []
    # An address that names no claim changes nothing.
    before = said(tab)
    for address in ("nothing", "%E0%A4%A", "main"):
        go(tab, address)
        assert said(tab) == before and tab.problems() == []


def test_a_figure_opens_and_closes_by_keys_and_the_focus_returns(shown):
    tab = shown()
    button = "document.querySelector('#figure-copa_index .picture button')"
    tab.js(f"{button}.focus()")
    tab.press("Enter")
    dialog = "document.getElementById('zoom')"
    assert tab.js(f"{dialog}.matches(':modal') && {dialog}.contains({FOCUSED})")
    assert "is c(M) an indicator" in tab.js("document.getElementById('zoom-title').textContent")
    own = tab.js(f"{button}.querySelector('img').src")
    assert tab.js(f"{dialog}.querySelector('img').src") == own
    tab.press("Escape")
    assert not tab.js(f"{dialog}.open") and tab.js(f"{FOCUSED} === {button}")
    tab.press(" ")
    assert tab.js(f"{dialog}.open")
    tab.js(f"{dialog}.querySelector('button').click()")
    assert not tab.js(f"{dialog}.open") and tab.js(f"{FOCUSED} === {button}")


def test_tables_open_and_close_together_and_tab_reaches_every_control(shown):
    tab = shown()
    sheets = "Array.from(document.querySelectorAll('.sheet'))"
    click(tab, "[data-open=yes]")
    assert tab.js(f"{sheets}.every(sheet => sheet.open)")
    click(tab, CLOSE_ALL)
    assert tab.js(f"{sheets}.every(sheet => !sheet.open)")
    assert_tab_reaches_all(tab, 26)


def test_the_screen_reader_s_tree_has_landmarks_and_names(shown):
    tab = shown()
    found = {}
    for node in tab.call("Accessibility.getFullAXTree")["nodes"]:
        if not node["ignored"]:
            name = node.get("name", {}).get("value", "")
            found.setdefault(node["role"]["value"], []).append(name)
    assert len(found["main"]) == len(found["banner"]) == len(found["contentinfo"]) == 1
    assert found["navigation"] == ["Parts of this page"] and found["form"] == ["Filter claims"]
    assert {"Overview", "COPA", "R-GAP", "How it was made"} <= set(found["region"])
    for role in ("region", "image", "table", "button", "checkbox", "link", "figure"):
        assert found[role] and all(found[role]), role


def test_print_is_light_and_has_no_controls_and_nothing_is_cut(shown):
    tab = shown(**PRINT, scheme="dark")
    assert tab.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    hidden = "Array.from(document.querySelectorAll('nav, #filter, .skip, a.own'))"
    assert tab.js(f"{hidden}.every(e => getComputedStyle(e).display === 'none')")
    open_all(tab, ".sheet")
    cut = tab.js(
        """Array.from(document.querySelectorAll("p, dl, figure, img, pre, table"))
        .filter(e => !e.closest("dialog") && e.getBoundingClientRect().right > 696)
        .map(e => e.id || e.outerHTML.slice(0, 80))"""
    )
    assert cut == []
    why = f"""document.getElementById("{EXPLAINED}").querySelector(".why p")"""
    assert tab.js(f"{why}.checkVisibility({{contentVisibilityAuto: true}})"), "reasons are printed"
    # Names break between their parts only.
    lines = tab.js(
        """Array.from(document.querySelectorAll('#sheet-rgap_wide :is(tbody, thead) th'))
        .map(th => { const all = document.createRange(); all.selectNodeContents(th);
        return [th.textContent, new Set(Array.from(all.getClientRects(), r => r.top)).size]; })"""
    )
    assert len(lines) == 13 + 3
    assert [name for name, count in lines if count > len(name.split("_"))] == []
    # A closed table says what it keeps, and an open one has all.
    hint = "document.querySelector('#sheet-{} .shut').checkVisibility()"
    for sheet, is_open in (("copa_index", "false"), ("copa_table1", "true")):
        tab.js(f"document.getElementById('sheet-{sheet}').open = {is_open}")
    assert tab.js(hint.format("copa_index")) and not tab.js(hint.format("copa_table1"))
    box = "document.querySelector('#sheet-copa_table1 .scroll')"
    assert tab.js(f"{box}.scrollHeight <= {box}.clientHeight + 1"), "no rows are cut off"
    screen = shown()
    click(screen, CLOSE_ALL)
    assert not screen.js(hint.format("copa_index"))


def test_without_its_script_the_page_shows_everything(shown):
    tab = shown(script=False)
    document = tab.call("DOM.getDocument", depth=0)["root"]["nodeId"]

    def count(selector):
        found = tab.call("DOM.querySelectorAll", nodeId=document, selector=selector)
        return len(found["nodeIds"])

    assert count(".sheet") == count(".sheet[open]") > 4
    assert count("tr[data-verdict]") > 60 and count("tr[hidden], section[hidden]") == 0
    assert count(".picture button") == 0 and count("#filter[hidden]") == 1
