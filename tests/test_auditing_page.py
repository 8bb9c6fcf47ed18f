"""The page of an audit: all that was found is in it, in its order, escaped, from no other place."""

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import audit_samples
from audit_samples import AUDITS, LONG, ODD, all_terms, audit, classes, lines, table, tree
from gradleak_audit import result
from html_tree import assert_policy

TREES = {name: tree(found) for name, found in AUDITS.items()}
every = pytest.mark.parametrize("html", TREES.values(), ids=TREES)
LEAKS = TREES["read"]
# Tables by their ids: headers and rows, which a line goes on that begins with a bar.
TABLES = """
changes
Rank | Change | Read or in part, before → after | Effect | Mean SSIM, before → after
| Attack that reads most | Parameters | Multiply-adds | Time of a step | Accuracy, before → after
1 | Noise of 0.1 & more | 50 % → 0 % 3 of 6 → 0 of 6 | helps (p = 0.004) | 0.61 → 0.00
| Inverting Gradients | 1.0× | 1.0× | 1.0× | 65.5 % → 0.0 %
2 | Half the filters of LONG | 50 % → 17 % 3 of 6 → 1 of 6 | helps (p = 0.008) | 0.61 → 0.33
| Inverting Gradients | 0.51× | 0.25× | –not timed | –not measured → –not measured
–not ranked | Key-lock | 50 % → 100 % 3 of 6 → 6 of 6 | no difference shown | 0.61 → 0.97
| Inverting Gradients | 1.0× | 1.0× | 122× | 65.5 % → 61.2 %
–not ranked | Batches of 4 | 50 % → 50 % 3 of 6 → 3 of 6 | inconclusive | 0.61 → 0.60 | COPA
| –not known | –not known | –not known | –not known

attacks-plain
Attack | Images per gradient | Attempted | Reconstructed | Read | In part | Matched | PSNR, dB
| SSIM
COPA closed form, least squares; threat model B | 1 | 6 | 6 | 3 | 1 | 4 | 25.2 11.5 to 39.7
| 0.51 0.05 to 0.99
Inverting Gradients 200 steps; threat model B | 1 | 6 | 5 | 0 | 0 | 0 | 12.3 10.0 to 14.5
| 0.08 0.00 to 0.15

attacks-changed
Change | Attack | Images per gradient | Attempted | Reconstructed | Read | In part | Matched
| PSNR, dB | SSIM
Noise of 0.1 & more | COPA | 1 | 6 | 0 | 0 | 0 | 0 | –no reconstruction | –no reconstruction
Half the filters of LONG | COPA | 1 | 0 | –does not apply | –does not apply | –does not apply
| –does not apply | –no reconstruction | –no reconstruction
Noise of 0.1 & more | Inverting Gradients | 1 | 6 | 6 | 0 | 0 | 0 | 0.0 0.0 to 0.0
| 0.00 0.00 to 0.00
Half the filters of LONG | Inverting Gradients | 1 | 6 | 6 | 1 | 1 | 2 | 17.5 13.0 to 28.0
| 0.25 0.10 to 0.60
Key-lock | Inverting Gradients | 1 | 6 | 6 | 6 | 0 | 6 | 39.1 39.1 to 39.1 | 0.97 0.97 to 0.97

malicious-plain
Attack | Images per gradient | Attempted | Reconstructed | Read | In part | Matched | PSNR, dB
| SSIM
MKOR batch of 3; threat model F | 3 | 3 | 2 | 1 | 1 | 2 | 26.5 19.0 to 34.0 | 0.55 0.30 to 0.80

malicious-changed
Change | Attack | Images per gradient | Attempted | Reconstructed | Read | In part | Matched
| PSNR, dB | SSIM
Noise of 0.1 & more | MKOR | 3 | 5 | 2 | 0 | 1 | 1 | 19.0 16.0 to 22.0 | 0.30 0.20 to 0.40

scale
Attack | not shownread in part, from SSIM 0.3read, from 0.5
COPA 3 read, 1 in part, 2 not shown |
Inverting Gradients 0 read, 0 in part, 6 not shown |

strip
Image | Original | COPA | Inverting Gradients
1 | | 37.0 dB, 0.90 read | No image: no image was kept13.0 dB, 0.10 not shown
2 | | 31.0 dB, 0.70 read | 10.6 dB, 0.02 not shown
3 | | 39.7 dB, 0.99 read | 14.5 dB, 0.15 not shown

malicious-strip
Image | Original | MKOR
1 | | 34.0 dB, 0.80 read batch of 3
2 | | 19.0 dB, 0.30 smoothed 0.32 read in part batch of 3
3 | |

layers
Layer | Kind | Input | Output | Parameters | |x| | carried | |W| | |z| | |V| | RA-i | Columns of U
| rank U | Free | Condition
c1 CONV | conv | 3×32×32 | 12×16×16 | 912 | 3,072 | 0 | 900 | 4,272 | 0 | −2,100 | 3,072
| 2,060 exact | 1,012 | 73.5
LONG critical layer CONV | conv | 3×32×32 | 12×16×16 | 912 | 1,237,639 | 1,234,567 | 900 | 1,231,339
| 0 | 5,400 | 3,072 | 2,060 at most | 1,012 | –not computed
c3 CONV Note: a filter, or the gradient of its output, is 0 | conv | 3×32×32 | 12×16×16 | 912
| 3,072 | 0 | 900 | 2,172
| 0 | 0 | 3,072 | 2,060 measured | 1,012 | 1.50 × 109
bn1 BatchNorm2d(12) | norm | 3×32×32 | 12×16×16 | 912 | –nothing to count | –nothing to count
| –nothing to count | –nothing to count | –nothing to count | –nothing to count | –nothing to count
| –nothing to count | –nothing to count | –not computed
attn unreadable CONV | other | 3×32×32 | 12×16×16 | 912 | –unreadable | –unreadable | –unreadable
| –unreadable | –unreadable | –unreadable | –unreadable | –unreadable | –unreadable | –unreadable
ODD CONV | conv | 3×32×32 | 12×16×16 | 912 | 3,072 | 0 | 900 | 2,173 | 0 | −1 | 3,072 | 3,072 exact
| 0 | ∞
"""


@every
def test_ids_are_unique_and_links_labels_and_controls_resolve(html):
    ids = Counter(element["id"] for element in html.all() if "id" in element.attributes)
    assert max(ids.values()) == 1
    named = []
    for element in html.all():
        named += [element["href"][1:]] if element.tag == "a" else []
        for attribute in ("aria-labelledby", "for", "data-table", "data-count"):
            named += element.get(attribute, "").split()
    assert len(named) > 20 and set(named) <= set(ids)
    assert {link["href"][0] for link in html.all("a")} == {"#"}
    labels = {label["for"] for label in html.all("label")}
    for control in html.all("input", "select", "textarea"):
        assert control["id"] in labels
        assert "hidden" in control.parent.attributes, "it does nothing without the script"
    assert not html.all("button")


@every
def test_nothing_comes_from_elsewhere_and_the_policy_lets_in_what_is_in_the_page(html):
    assert_policy(html)
    for element in html.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on") and name not in ("style", "srcset", "action")
            assert name not in ("src", "href") or value.startswith(("data:", "#")), value
            assert "://" not in value or element.tag == "meta"
    own = html.one("style").raw() + html.one("script").raw()
    assert not re.search(r"https?:|//\w|@import|url\(|fetch|XMLHttp|import\(", own)


@every
def test_headings_are_in_order_tables_have_headers_and_dashes_have_words(html):
    levels = [int(h.tag[1]) for h in html.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(new - old <= 1 for old, new in pairwise(levels))
    order = ["verdict", "images", "help", "attacks", "malicious", "structure", "made"]
    assert [section["id"] for section in html.all("section")] == order
    assert [a["href"][1:] for a in html.one("nav").all("a")] == order
    assert html["lang"] == "en"
    assert [len(html.all(tag)) for tag in ("header", "nav", "main", "footer")] == [1] * 4
    captions = [found.one("caption") for found in html.all("table")]
    for found, caption in zip(html.all("table"), captions, strict=True):
        region = found.parent
        assert region["role"] == "region" and region["tabindex"] == "0"
        assert region["aria-labelledby"] == caption["id"] and caption.text()
        assert {cell["scope"] for cell in found.one("thead").all("th")} == {"col"}
        for row in found.one("tbody").all("tr"):
            assert [cell["scope"] for cell in row.all("th")] == ["row"], row.text()
    assert len({caption.text() for caption in captions}) == len(captions)
    for dash in html.all("span", class_="absent"):
        sign, unseen = dash.all("span")
        assert sign.text() == "–" and sign["aria-hidden"] == "true"
        assert dash["title"] == unseen.text() != ""


@pytest.mark.parametrize("grade", result.Grade.__args__)
def test_the_verdict_comes_first_with_what_it_rests_on_and_its_limits(grade):
    html, verdict = TREES[grade], AUDITS[grade].verdict
    section = html.all("section")[0]
    (banner,) = [div for div in section.all("div") if "verdict" in classes(div)]
    assert grade.replace(" ", "-") in classes(banner)
    assert all(text in banner.text() for text in (*audit_samples.GRADES[grade], verdict.sentence))
    assert verdict.malicious in html.one("section", id="malicious").text()
    assert html.one("title").text().endswith(f": {audit_samples.GRADES[grade][0]}")
    rests_on, limits = [listed.all("li") for listed in section.all("ul")]
    assert [line.text().lower() for line in rests_on] == [s.lower() for s in verdict.rests_on]
    assert "no proof of safety" in limits[0].text()
    assert [line.text().lower() for line in limits[1:]] == [s.lower() for s in verdict.limits]


def test_a_grade_that_rests_on_matches_alone_says_so_and_what_changes_do_to_matches():
    unchanged, noise, *others = AUDITS["partly"].changes
    none = unchanged.model_copy(update={"read": 0, "partly": 0, "leak": 0.0, "matched": 5})
    noise = noise.model_copy(update={"matched": 1})
    html = tree(audit("partly", changes=(none, noise, *others)))
    cells = [row["Matched, before → after"] for row in table(html, "changes")]
    assert [cell.text() for cell in cells[:2]] == ["5 of 6 → 1 of 6", "5 of 6 → –not counted"]
    assert [cell["data-v"] for cell in cells[:2]] == [repr(1 / 6), ""]
    assert "Matched, before → after" not in table(LEAKS, "changes")[0]
    found = html.one("section", id="verdict")
    assert (
        "The grade rests on matches alone: reconstructions may show nothing to the eye"
        in found.text()
    )
    assert "It leaks traces" in found.text() and "It leaks in part" not in found.text()


def test_names_are_shown_as_they_are_and_make_no_elements():
    text = LEAKS.one("body").text()
    shown = ODD, LONG, "factory of my <file>.py", "Cut the largest <skip>", "is <not> invertible & "
    assert all(name in text for name in shown)
    assert not LEAKS.all("b") and len(LEAKS.all("script")) == 1


@settings(max_examples=25)
@given(name=st.text(min_size=1), number=st.integers(0, 10**12))
def test_any_text_and_number_is_taken(name, number):
    odd = {"source": name, "kind": name, "weights": name, "multiply_adds": number}
    network = AUDITS["read"].network.model_copy(update=odd)
    html = tree(audit(said={"sentence": name, "limits": (name,)}, network=network))
    assert len(html.all()) == len(LEAKS.all()) - 1  # there is one limit less
    found = all_terms(html, "made")
    # A tab in a text is white space to HTML, like any other.
    assert found["Weights"] == " ".join(name.split())
    assert f"{number:,} for one image" in found["Multiply-adds"]


@pytest.mark.parametrize("expected", TABLES.strip().replace("\n|", " |").split("\n\n"))
def test_a_table_has_all_that_was_found_in_its_order(expected):
    name, *rows = expected.splitlines()
    assert lines(LEAKS, name) == rows


def test_numbers_of_layers_sort_as_numbers_marks_are_seen_and_columns_explained():
    layers = AUDITS["read"].structure.layers
    rows = table(LEAKS, "layers")
    for row, layer in zip(rows, layers, strict=True):
        for cell in [*row.values()][4:-2]:
            shown = cell.text().split()[0].replace(",", "").replace("−", "-")
            assert cell["data-v"] == ("" if shown.startswith("–") else shown)
        look = classes(row["Layer"].parent)
        assert ("critical" in look, "unreadable" in look) == (layer.critical, not layer.readable)
    assert rows[2]["Condition"].one("sup").text() == "9"
    headers = [*rows[0]][2:-1]
    legend = " ".join(LEAKS.one("section", id="structure").all("dl")[-1].text().split())
    left_out = [header for header in headers if header not in legend]
    assert left_out == ["Parameters", "Columns of U"] and "columns of U" in legend


def facts_of(html):
    return audit_samples.terms(html.one("section", id="structure").all("dl")[0])


def test_the_critical_layer_and_the_networks_numbers_are_told():
    found = all_terms(LEAKS, "structure")
    assert found["Critical layer"].startswith(LONG)
    (link,) = LEAKS.one("section", id="structure").all("a")
    assert "critical" in classes(LEAKS.one("tr", id=link["href"][1:]))
    (obstacle,) = AUDITS["read"].structure.obstacles
    assert found["attn, attn_1"] == obstacle.reason
    assert found["RA-i"].startswith("|x|")  # the legend's; the network's stands before it
    facts = facts_of(LEAKS)
    assert facts["RA-i"].startswith("5,400; above 0")
    assert facts["c(M)"].startswith("−1,012 (at most)")
    for index, said in ((1, "1; above 0"), (0, "0; not above 0"), (-5, "−5; not above 0")):
        shown = tree(audit(structure=audit_samples.structure(index=index)))
        assert facts_of(shown)["RA-i"].startswith(said)
    # A network without c(M) or a chain says why.
    facts = facts_of(TREES["bare"])
    assert facts["c(M)"] == "c(M) is defined for chains."
    assert (
        all_terms(TREES["bare"], "structure")["cat, cat_1"]
        == "cannot be a step of a chain: a chain has others."
    )
    assert facts["RA-i"].startswith("–")
    assert "no layer" in TREES["bare"].one("table", id="layers").text().lower()


def test_attacks_that_do_not_apply_stand_below_with_their_reason():
    attacks, malicious = (all_terms(LEAKS, name) for name in ("attacks", "malicious"))
    assert attacks["R-GAP"] == "ReLU is <not> invertible & gives 0."
    assert malicious["Class fishing"] == "The last layer has no bias."
    # So do runs without a reconstruction, with their number unless all of them are without.
    assert attacks["Inverting Gradients (1 of 6)"] == "NaN at step 7"
    assert attacks[f"COPA, Half the filters of {LONG}"] == "c1 has too few filters"
    assert malicious["MKOR, Noise of 0.1 & more (1 of 5)"] == "out of memory"
    twice = "NaN at step 7 (numbers of the first run)"
    assert malicious["MKOR, Noise of 0.1 & more (2 of 5)"] == twice
    # A reason that several share is told once.
    bare = all_terms(TREES["bare"], "attacks")
    assert bare.pop("R-GAP") and bare == {"COPA; Inverting Gradients": "it needs a chain"}


def test_every_run_is_listed():
    found = AUDITS["read"]
    titles = {attack.id: attack.title for attack in found.attacks}
    changes = {entry.id: entry.title for entry in found.changes}
    rows = []
    for case, one in [(c, one) for c in found.cases for one in c.runs]:
        told = (
            "read in part" if one.grade == "partly" else one.grade,
            "yes" if one.matched else "no",
        )
        own = changes[case.change], titles[case.attack], str(one.image + 1), str(one.seed + 1)
        ok = one.status == "ok"
        scores = (f"{one.psnr:.1f}", f"{one.ssim:.2f}") if ok else ("–no reconstruction",) * 2
        none = "–not matched" if ok else "–no SSIM"
        scores = *scores, none if one.smoothed is None else f"{one.smoothed:.2f}"
        status = one.status.replace("_", " "), *scores, *told, one.reason or "–the run is ok"
        rows.append(" | ".join((*own, *status)))
    headers = "Change Attack Image Seed Status PSNR,_dB SSIM Smoothed Grade Matched Reason"
    rows = [headers.replace(" ", " | ").replace("_", " "), *(r.replace(LONG, "LONG") for r in rows)]
    assert lines(LEAKS, "runs") == rows
    statuses = Counter(row.split(" | ")[4] for row in rows[1:])
    assert statuses == {"ok": 33, "failed": 11, "not applicable": 2}


def test_setting_network_versions_and_command_are_told():
    found, leaks = all_terms(LEAKS, "made"), AUDITS["read"]
    assert found["Parameters"] == "11,173,962" and found["Batch sizes"] == "1, 4"
    assert found["Input"].startswith("3×32×32") and found["Classes"] == "10"
    told = {key: getattr(leaks.network, key.lower()) for key in ("Source", "Kind", "Weights")}
    told |= {key: getattr(leaks.setting, key.lower()) for key in ("Loss", "Mode", "Scale")}
    ran = {"copa", "ig", "mkor"}
    told |= {attack.title: attack.settings for attack in leaks.attacks if attack.id in ran}
    assert not {attack.title for attack in leaks.attacks if attack.id not in ran} & found.keys()
    assert found | told | {"Images": leaks.setting.images} == found
    assert found["torch"] and found["gradleak"] and found["python"]
    assert not {"cma", "pandas", "torchvision"} & found.keys(), "nothing of this audit used them"
    network = leaks.network.model_copy(update={"source": "torchvision's resnet18()"})
    assert all_terms(tree(audit(network=network)), "made")["torchvision"]
    assert LEAKS.one("pre").text() == "snakemake results/audit/my_net/report.html"
    assert tree(command="python mine.py --now").one("pre").text() == "python mine.py --now"


def test_the_schema_describes_every_field():
    schema = result.schema()
    for part in (schema, *schema["$defs"].values()):
        for name, entry in part["properties"].items():
            assert entry["description"].endswith("."), f"{part['title']}.{name}"
