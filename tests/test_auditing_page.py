"""The page of an audit: all that was found is in it, in its order, escaped, from no other place."""

import re
from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit_samples import (
    GRADES,
    LONG,
    NETWORK,
    ODD,
    SETTING,
    absent,
    all_terms,
    audit,
    bare,
    classes,
    count,
    run,
    structure,
    table,
    terms,
    tree,
    tried,
)
from gradleak_audit import result
from html_tree import assert_policy

AUDITS = {grade: audit(grade) for grade in GRADES} | {"bare": bare()}
TREES = {name: tree(found) for name, found in AUDITS.items()}
every = pytest.mark.parametrize("html", TREES.values(), ids=TREES)
LEAKS = TREES["leaks"]


@every
def test_ids_are_unique_and_links_and_labels_resolve(html):
    ids = Counter(element["id"] for element in html.all() if "id" in element.attributes)
    assert max(ids.values()) == 1
    named = []
    for element in html.all():
        named += [element["href"][1:]] if element.tag == "a" else []
        for attribute in ("aria-labelledby", "for", "data-table", "data-count"):
            named += element.get(attribute, "").split()
    assert len(named) > 20
    assert set(named) <= set(ids)
    assert {link["href"][0] for link in html.all("a")} == {"#"}


@every
def test_nothing_comes_from_elsewhere_and_the_policy_lets_in_what_is_in_the_page(html):
    assert_policy(html)
    for element in html.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on") and name not in ("style", "srcset", "action")
            if name in ("src", "href"):
                assert value.startswith(("data:", "#")), value
            assert "://" not in value or element.tag == "meta"
    own = html.one("style").raw() + html.one("script").raw()
    assert not re.search(r"https?:|//\w|@import|url\(|fetch|XMLHttp|import\(", own)


@every
def test_headings_are_in_order_and_sections_too(html):
    levels = [int(h.tag[1]) for h in html.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(new - old <= 1 for old, new in pairwise(levels))
    order = ["verdict", "pictures", "help", "attacks", "malicious", "structure", "made"]
    assert [section["id"] for section in html.all("section")] == order
    assert [a["href"][1:] for a in html.one("nav").all("a")] == order
    assert html["lang"] == "en"
    assert [len(html.all(tag)) for tag in ("header", "nav", "main", "footer")] == [1] * 4


@every
def test_tables_have_captions_headers_with_scope_and_a_region_to_scroll_in(html):
    for found in html.all("table"):
        region, caption = found.parent, found.one("caption")
        assert region["role"] == "region" and region["tabindex"] == "0"
        assert region["aria-labelledby"] == caption["id"] and caption.text()
        assert {cell["scope"] for cell in found.one("thead").all("th")} == {"col"}
        for row in found.one("tbody").all("tr"):
            assert [cell["scope"] for cell in row.all("th")] == ["row"], row.text()
    captions = Counter(found.one("caption").text() for found in html.all("table"))
    assert not captions or max(captions.values()) == 1


@every
def test_controls_have_labels_and_wait_for_the_script(html):
    labels = {label["for"] for label in html.all("label")}
    for control in html.all("input", "select", "textarea"):
        assert control["id"] in labels
        assert "hidden" in control.parent.attributes, "it does nothing without the script"
    assert not html.all("button")


@pytest.mark.parametrize("grade", result.Grade.__args__)
def test_the_verdict_comes_first_with_what_it_rests_on_and_its_limits(grade):
    html, verdict = TREES[grade], AUDITS[grade].verdict
    section = html.all("section")[0]
    (banner,) = [div for div in section.all("div") if "verdict" in classes(div)]
    assert grade.replace(" ", "-") in classes(banner)
    assert all(text in banner.text() for text in (*GRADES[grade], verdict.sentence))
    assert verdict.malicious in html.one("section", id="malicious").text()
    assert html.one("title").text().endswith(f": {GRADES[grade][0]}")
    rests_on, limits = [listed.all("li") for listed in section.all("ul")]
    assert [line.text().lower() for line in rests_on] == [s.lower() for s in verdict.rests_on]
    assert "no proof of safety" in limits[0].text()
    assert [line.text().lower() for line in limits[1:]] == [s.lower() for s in verdict.limits]


def test_names_are_shown_as_they_are_and_make_no_elements():
    text = LEAKS.one("body").text()
    shown_names = (ODD, LONG, "factory of my <file>.py", "Cut the largest <skip>")
    assert all(name in text for name in shown_names)
    assert not LEAKS.all("b") and len(LEAKS.all("script")) == 1
    assert "ReLU is <not> invertible & gives 0." in text


@settings(max_examples=25, deadline=None)
@given(name=st.text(min_size=1), number=st.integers(0, 10**12))
def test_any_text_and_number_is_taken(name, number):
    odd = {"source": name, "kind": name, "weights": name, "multiply_adds": number}
    network = NETWORK.model_copy(update=odd)
    html = tree(audit(said={"sentence": name, "limits": (name,)}, network=network))
    assert len(html.all()) == len(LEAKS.all()) - 1  # there is one limit less
    found = all_terms(html, "made")
    # A tab in a text is white space to HTML, like any other.
    assert found["Weights"] == " ".join(name.split())
    assert f"{count(number)} for one picture" in found["Multiply-adds"]


def test_every_layer_has_its_counts_and_a_dash_where_there_is_none():
    rows = table(LEAKS, "layers")
    layers = AUDITS["leaks"].structure.layers
    headers = ["Parameters", "|x|", "carried", "|W|", "|z|", "|V|", "RA-i", "Columns of U"]
    names = "parameters unknowns carried weights outputs virtual index own_unknowns rank free"
    columns = dict(zip([*headers, "rank U", "Free"], names.split(), strict=True))
    assert len(layers) > 5
    for row, layer in zip(rows, layers, strict=True):
        name, kind = row["Layer"].text(), row["Kind"].text()
        assert name.startswith(layer.layer) and layer.detail in name and kind == layer.kind
        assert row["Input"].text() == "×".join(map(str, layer.input))
        assert row["Output"].text() == "×".join(map(str, layer.output))
        assert layer.note in row["Note"].text()
        for header, name in columns.items():
            value = getattr(layer, name)
            if value is None:
                assert absent(row[header]) and row[header]["data-v"] == ""
            else:
                assert row[header].text().split()[0] == count(value)
                assert float(row[header]["data-v"]) == value
        assert row["rank U"].text().endswith(layer.rank_kind)
    found = [re.sub(r"^–.*", "–", row["Condition"].text()) for row in rows]
    assert found == ["73.5", "–", "1.50 × 109", "–", "–", "∞"]
    assert rows[2]["Condition"].one("sup").text() == "9"


def facts_of(html):
    return terms(html.one("section", id="structure").all("dl")[0])


def test_the_critical_layer_and_unreadable_ones_are_marked_in_text_and_look():
    layers = AUDITS["leaks"].structure.layers
    rows = LEAKS.one("table", id="layers").one("tbody").all("tr")
    for row, layer in zip(rows, layers, strict=True):
        tags = [span.text() for span in row.all("span", class_="tag")]
        assert ("critical layer" in tags) == ("critical" in classes(row)) == layer.critical
        assert ("unreadable" in tags) == ("unreadable" in classes(row)) == (not layer.readable)
    found = all_terms(LEAKS, "structure")
    assert found["Critical layer"].startswith(LONG)
    (link,) = LEAKS.one("section", id="structure").all("a")
    assert "critical" in classes(LEAKS.one("tr", id=link["href"][1:]))
    assert found["attn"] == layers[4].note
    assert found["RA-i"].startswith("|x|")  # the legend's; the network's stands before it
    facts = facts_of(LEAKS)
    assert facts["RA-i"].startswith("5,400; above 0")
    assert facts["c(M)"].startswith("−1,012 (at most)")
    for index, said in ((1, "1; above 0"), (0, "0; not above 0"), (-5, "−5; not above 0")):
        assert facts_of(tree(audit(structure=structure(index=index))))["RA-i"].startswith(said)


def test_a_network_without_c_m_or_a_chain_says_why():
    facts = facts_of(TREES["bare"])
    assert "two branches meet at cat." in facts["c(M)"] and facts["c(M)"].startswith("–")
    assert "two branches meet at cat." in facts["As a chain"]
    assert facts["RA-i"].startswith("–")
    assert "no layer" in TREES["bare"].one("table", id="layers").text().lower()


def test_every_column_of_layers_is_explained():
    headers = [*table(LEAKS, "layers")[0]][2:-1]
    legend = " ".join(LEAKS.one("section", id="structure").all("dl")[-1].text().split())
    left_out = [header for header in headers if header not in legend]
    assert left_out == ["Parameters", "Columns of U"] and "columns of U" in legend


def scores(found):
    counts = {"Answered": found.ok, "Readable": found.readable, "Matched": found.matched}
    shown = {"Pictures a gradient": str(found.batch), "Attempted": str(found.attempted)}
    shown |= {name: str(value) if found.attempted else "–" for name, value in counts.items()}
    for name, own, digits in (("PSNR, dB", found.psnr, 1), ("SSIM", found.ssim, 2)):
        mean, *ends = (f"{v:.{digits}f}" for v in vars(own).values()) if own else "–"
        shown[name] = " ".join([mean, *([" to ".join(ends)] if ends else [])])
    return shown


def test_every_case_stands_in_its_chapter_with_all_its_numbers():
    found = AUDITS["leaks"]
    titles = {attack.id: attack for attack in found.attacks}
    changes = {entry.id: entry.title for entry in found.changes}
    left = list(found.cases)
    chapters = {"attacks": "honest server", "malicious": "malicious server"}
    for changed, (part, chapter) in product((False, True), chapters.items()):
        for row in table(LEAKS, f"{part}-{'changed' if changed else 'plain'}"):
            told = row["Change"].text() if changed else changes["none"]
            entry = next(
                entry
                for entry in left
                if titles[entry.attack].chapter == chapter and changes[entry.change] == told
                if titles[entry.attack].title in row["Attack"].text()
            )
            left.remove(entry)
            for header, expected in scores(entry).items():
                text = row[header].text()
                assert absent(row[header]) if expected == "–" else text == expected
            reasons = {one.reason for one in entry.runs if one.status != "ok"}
            assert all(reason in row["Why there is no answer"].text() for reason in reasons)
    assert left == []


def test_failures_are_counted_by_their_reason():
    failed = [run(0, 0, None), run(1, 0, None), run(2, 0, None, reason="out of memory")]
    (row,) = table(tree(audit(cases=(tried("none", "ig", failed),))), "attacks-plain")
    reasons = row["Why there is no answer"].text()
    assert reasons == "the search met NaN at step 7 (2); out of memory (1)"
    assert row["Readable"].text() == "0" and absent(row["PSNR, dB"])


def test_attacks_that_do_not_apply_stand_below_with_their_reason():
    found = all_terms(LEAKS, "attacks")
    assert found == {"R-GAP": "ReLU is <not> invertible & gives 0."}
    assert all_terms(LEAKS, "malicious") == {"Class fishing": "The last layer has no bias."}
    everything = all_terms(TREES["bare"], "attacks")
    assert set(everything) == {"COPA", "Inverting Gradients", "R-GAP"}


def test_every_run_is_listed():
    found = AUDITS["leaks"]
    rows = table(LEAKS, "runs")
    expected = [(entry, one) for entry in found.cases for one in entry.runs]
    assert len(rows) == len(expected) >= 40
    titles = {attack.id: attack.title for attack in found.attacks}
    for row, (entry, one) in zip(rows, expected, strict=True):
        told = ["yes" if passed else "no" for passed in (one.readable, one.matched)]
        shown = [titles[entry.attack], str(one.image + 1), str(one.seed + 1), *told]
        headers = "Attack", "Picture", "Draw", "Readable", "Matched"
        assert [row[header].text() for header in headers] == shown
        if one.status == "ok":
            assert row["SSIM"].text() == f"{one.ssim:.2f}" and row["Status"].text() == "ok"
        else:
            assert absent(row["SSIM"]) and row["Reason"].text() == one.reason
    statuses = Counter(row["Status"].text() for row in rows)
    assert statuses == {"ok": 33, "failed": 8, "not applicable": 2}


def test_setting_network_versions_and_command_are_told():
    found = all_terms(LEAKS, "made")
    assert found["Parameters"] == "11,173,962" and found["Batch sizes"] == "1, 4"
    assert found["Input"].startswith("3×32×32") and found["Classes"] == "10"
    told = {key: getattr(NETWORK, key.lower()) for key in ("Source", "Kind", "Weights")}
    told |= {key: getattr(SETTING, key.lower()) for key in ("Loss", "Mode", "Scale")}
    told |= {attack.title: attack.settings for attack in AUDITS["leaks"].attacks}
    assert found | told | {"Pictures": SETTING.images} == found
    assert found["torch"] and found["gradleak"] and found["python"]
    assert LEAKS.one("pre").text() == "snakemake results/audit/my_net/report.html"
    other = tree(command="python mine.py --now")
    assert other.one("pre").text() == "python mine.py --now"


def test_the_schema_describes_every_field():
    schema = result.schema()
    for part in (schema, *schema["$defs"].values()):
        for name, entry in part["properties"].items():
            assert entry["description"].endswith("."), f"{part['title']}.{name}"
