"""The page of an audit in a headless Chromium: looks, keys, print, accessibility."""

import re
from contextlib import ExitStack, closing

import pytest

from audit_samples import AUDITS, audit, layer, pictures, structure
from browser import (
    FOCUSED,
    Page,
    assert_fits,
    assert_tab_reaches_all,
    axe_missing,
    reason_to_skip,
)
from gradleak_audit.api import Report
from gradleak_audit.report import page

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=f"{reason_to_skip()}")
# Names and numbers as long as those of VGG-16 at 224x224.
COUNTS = "unknowns own_unknowns outputs rank free"
LARGE = layer(
    "features.denseblock4.denselayer16.self_attention.out_proj",
    **dict.fromkeys(COUNTS.split(), 13_211_264),
    parameters=102_764_544,
    weights=102_760_448,
    carried=12_845_056,
    virtual=111_214_592,
    index=-213_975_040,
    condition=1.234e12,
    rank_kind="at most",
    critical=True,
    input=(512, 224, 224),
    output=(512, 112, 112),
    note="counted with the layer that its skip ends at; no condition number above 4500 unknowns",
)
FOUND = AUDITS | {"large": audit(structure=structure(layers=(LARGE,) * 60, critical=LARGE.layer))}
WIDTHS, SCHEMES = (360, 1280), ("light", "dark")
HEAD = "document.querySelectorAll('#layers thead th')"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, found in FOUND.items():
        page.write(folder / f"{name}.html", found, pictures())
    return {name: folder / f"{name}.html" for name in FOUND}


@pytest.fixture
def shown(browser, files):
    with ExitStack() as opened:

        def show(name="read", **how):
            return opened.enter_context(closing(browser.open(files[name], **how)))

        yield show


def number_of(tab, header):
    return tab.js(f"Array.from({HEAD}).findIndex(th => th.textContent === '{header}')")


def column(tab, number):
    return tab.js(
        f"""Array.from(document.querySelectorAll("#layers tbody tr"))
        .filter(row => !row.hidden).map(row => row.cells[{number}].dataset.v)"""
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FOUND)
def test_a_page_opens_alone_without_errors_and_fits_its_window(shown, name, width):
    tab = shown(name, width=width)
    assert_fits(tab, f"{name}.html")
    broken = "Array.from(document.images).filter(i => !i.complete || !i.naturalWidth).length"
    assert tab.js(broken) == 0


@pytest.mark.skipif(axe_missing(), reason="needs the package axe-core-python")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("name", "width"), [("read", 360), ("read", 1280), ("bare", 1280)])
def test_axe_finds_nothing(shown, name, width, scheme):
    tab = shown(name, width=width, scheme=scheme)
    assert (lightness(tab, "document.body") < 0.2) == (scheme == "dark")
    if name == "read":
        tab.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.axe() == []


@pytest.mark.skipif(axe_missing(), reason="needs the package axe-core-python")
def test_axe_finds_what_is_wrong(browser, tmp_path):
    wrong = tmp_path / "wrong.html"
    wrong.write_text(
        "<!DOCTYPE html><title>wrong</title><main><h1>x</h1>"
        '<img src="data:,"><p style="color:#ccc;background:#fff">pale</p></main>'
    )
    with closing(browser.open(wrong)) as tab:
        found = {rule for rule, _, _ in tab.axe()}
    assert {"image-alt", "color-contrast", "html-has-lang"} <= found


def lightness(tab, element):
    colour = tab.js(f"getComputedStyle({element}).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3 / 255


@pytest.mark.parametrize("width", WIDTHS)
def test_every_control_is_reached_by_tab_and_seen(shown, width):
    assert_tab_reaches_all(shown(width=width), 41)


def test_the_skip_link_leads_to_the_main_part_and_a_wide_table_scrolls_by_keys(shown):
    tab = shown(width=360)
    tab.press("Tab")
    tab.press("Enter")
    assert tab.js(f"{FOCUSED}.id") == "main"
    tab.press("Tab")
    assert tab.js(f"{FOCUSED}.closest('main') !== null")
    tab.js("document.getElementById('layers-part').focus({preventScroll: true})")
    moved = "document.getElementById('layers-part').scrollLeft"
    assert tab.js(moved) == 0
    tab.press("ArrowRight")
    # It glides; the frames are waited for.
    tab.js(
        f"""new Promise(done => {{
        const look = () => {moved} > 0 ? done() : requestAnimationFrame(look);
        look(); }})"""
    )


def test_a_column_is_sorted_by_keys_and_says_so(shown):
    tab = shown()
    number = number_of(tab, "RA-i")
    first = column(tab, number)
    assert first == ["-2100", "5400", "0", "", "", "-1"]
    tab.js(f"{HEAD}[{number}].querySelector('button').focus()")
    tab.press("Enter")
    assert column(tab, number) == ["-2100", "-1", "0", "5400", "", ""]
    assert tab.js(f"{HEAD}[{number}].ariaSort") == "ascending"
    tab.press(" ")
    assert column(tab, number) == ["5400", "0", "-1", "-2100", "", ""]
    assert tab.js(f"{HEAD}[{number}].ariaSort") == "descending"
    assert tab.js("document.getElementById('said').textContent") == "Sorted by RA-i, descending"
    tab.js(f"{HEAD}[0].querySelector('button').focus()")
    tab.press("Enter")
    assert column(tab, number) == first, "the order in which layers run comes back"
    assert tab.js(f"Array.from({HEAD}).filter(th => th.ariaSort).length") == 1
    number = number_of(tab, "Condition")
    tab.js(f"{HEAD}[{number}].querySelector('button').click()")
    found = [value for value in column(tab, number) if value]
    assert found == ["73.456", "1500000000.0", "Infinity"], "infinity is the largest"


def test_layers_are_found_by_typing_and_runs_open_by_a_key(shown):
    tab = shown()
    tab.js("document.getElementById('find-layers').focus()")
    for key in "unread":
        tab.press(key)
    assert tab.js("document.getElementById('find-layers').value") == "unread"
    assert column(tab, 0) == ["4"]
    assert tab.js("document.getElementById('found-layers').textContent") == "1 of 6 rows shown"
    tab.js("document.querySelector('summary').focus()")
    seen = "document.getElementById('runs').checkVisibility({contentVisibilityAuto: true})"
    assert not tab.js(seen)
    tab.press("Enter")
    assert tab.js(seen)


def test_the_screen_reader_s_tree_has_landmarks_names_and_words_for_dashes(shown):
    tab = shown()
    found = {}
    for node in tab.call("Accessibility.getFullAXTree")["nodes"]:
        if not node["ignored"]:
            name = node.get("name", {}).get("value", "")
            found.setdefault(node["role"]["value"], []).append(name)
    assert len(found["main"]) == len(found["banner"]) == len(found["contentinfo"]) == 1
    assert found["navigation"] == ["Parts of this page"]
    assert {"Verdict", "Structure", "What would help"} <= set(found["region"])
    assert all(name for role in ("region", "image", "searchbox", "table") for name in found[role])
    assert "not computed" in found["StaticText"]
    assert "–" not in found["StaticText"][: found["StaticText"].index("What the columns say")]


def displays(tab, what):
    found = f"Array.from(document.querySelectorAll('{what}'))"
    return set(tab.js(f"{found}.map(e => getComputedStyle(e).display)"))


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize(
    ("width", "parts"),
    # A4 less the margins of @page, in CSS pixels: upright, and lying for the wide parts.
    [(695, "section:not(.landscape)"), (1039, ".landscape")],
)
def test_nothing_is_cut_in_print(shown, name, width, parts):
    tab = shown(name, width=width, media="print", scheme="dark")
    assert lightness(tab, "document.body") == 1, "print is light"
    cut = tab.js(
        f"""Array.from(document.querySelectorAll("{parts}")).flatMap(part => Array.from(
        part.querySelectorAll("table, p, dl, figure, pre, .verdict"))
        .filter(e => e.getBoundingClientRect().right > {width} + 1).map(e => e.id || e.tagName))"""
    )
    assert cut == []
    assert displays(tab, "nav, .find, .skip, .runs") == {"none"}
    # As boxes of their own they would be blank where a header is printed again.
    assert displays(tab, "th button") <= {"contents"}
    assert displays(tab, "thead") <= {"table-header-group"}


def test_a_long_table_is_printed_on_as_many_lying_pages_as_it_needs(shown, tmp_path):
    shown("large").pdf(tmp_path / "long.pdf")
    content = (tmp_path / "long.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content)
    upright = [float(high) > float(wide) for wide, high in sizes]
    assert upright[0] and upright[-1] and upright.count(False) > 6


def test_a_notebook_shows_the_page_in_a_frame_whose_links_stay_there(browser, tmp_path):
    path, frame = tmp_path / "notebook.html", "document.querySelector('iframe')"
    shown = Report(audit(), pictures())._repr_html_()
    path.write_text(f"<!DOCTYPE html><html lang='en'><title>Notebook</title>{shown}</html>")
    with closing(browser.open(path)) as tab:
        assert tab.js(f"{frame}.contentDocument.images[0].naturalWidth") > 0
        tab.js(f"{frame}.contentDocument.querySelector('nav a[href=\"#attacks\"]').click()")
        # The frame's page is no longer to be read once it is that of a file.
        assert tab.js(f"String({frame}.contentWindow.location)") == "about:srcdoc#attacks"
        assert not tab.problems()


def test_without_its_script_the_page_shows_everything(browser, files):
    tab = Page(browser, files["read"], 1280, "light", "", script=False)
    document = tab.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    buttons = tab.call("DOM.querySelectorAll", nodeId=document, selector="button")["nodeIds"]
    rows = tab.call("DOM.querySelectorAll", nodeId=document, selector="#layers tbody tr")
    assert buttons == [] and len(rows["nodeIds"]) == 6
    tab.close()
