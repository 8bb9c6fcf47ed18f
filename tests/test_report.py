"""The report's page: what is on it, what it links to, how large it may be, what it refuses."""

import base64
import io
import itertools
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from conftest import sentence
from gradleak.claims import load as load_claims
from gradleak.claims import recorded
from gradleak.claims.outcome import VERDICTS
from gradleak.errors import ArtifactError, ConfigError
from gradleak.pipeline.results.schema import load
from gradleak.reporting import captions, content, page, pictures
from html_tree import assert_policy, parse
from report_samples import CLOSE, DRAWN, EXACT, EXPLAINED, ODD, OPEN, ROOT, sources, write

FILES = sorted((ROOT / "papers").glob("*/results.yaml"))
CAPTIONS = captions.Captions(FILES)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def html(made):
    return parse(made.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The page of another run."""
    path = write(tmp_path_factory.mktemp("other"), images="embedded", scale="smoke")
    return parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def claimed(made):
    files = (made.parent / name for name in recorded.FILES.values())
    return pd.concat(pd.read_csv(path, keep_default_na=False) for path in files)


def of_class(element, tag, name):
    return [found for found in element.all(tag) if name in found.get("class", "").split()]


def test_ids_are_unique_and_every_link_and_label_resolves(made, html):
    ids = Counter(element["id"] for element in html.all() if "id" in element.attributes)
    assert max(ids.values()) == 1
    links = [link["href"] for link in html.all("a")]
    assert len(links) > 80
    told = {a["href"] for part in of_class(html, "div", "told") for a in part.all("a")}
    assert told == {"https://github.com/JunyiZhu-AI/R-GAP"}, "where the authors' code is"
    for link in set(links) - told:
        assert link[1:] in ids if link.startswith("#") else (made.parent / link).is_file(), link
    for element in html.all():
        assert set(element.get("aria-labelledby", "").split()) <= set(ids)


def test_nothing_comes_from_elsewhere_and_the_policy_lets_nothing_else_in(html):
    for element in html.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on") and name not in ("style", "srcset", "action")
            assert name != "src" or value.startswith("data:image/webp;base64,")
    own = html.one("style").raw() + html.one("script").raw()
    assert not re.search(r"https?:|//\w|@import|url\(|fetch|XMLHttp|import\(", own)
    assert_policy(html)
    # Texts are shown as they are, and headings in order.
    assert not html.all("b")
    text = html.one("body").text()
    assert "Network <1>" in text and "<a>" in text
    levels = [int(heading.tag[1]) for heading in html.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def overview(html):
    """Rows of the table on top by paper, texts by column."""
    table, *_ = html.one("section", id="overview").all("table")
    header = [cell.text() for cell in table.one("thead").all("th")]
    rows = table.one("tbody").all("tr") + table.one("tfoot").all("tr")
    texts = ([cell.text() for cell in row.all("th", "td")] for row in rows)
    return {row[0]: dict(zip(header, row, strict=True)) for row in texts}


def test_the_overview_counts_results_and_verdicts_of_each_paper(html, other, claimed):
    rows = overview(html)
    assert list(rows) == ["COPA", "R-GAP", "All"]
    assert [row["Figures"] for row in rows.values()] == ["2", "2", "4"]
    assert [row["Tables"] for row in rows.values()] == ["4", "2", "6"]
    # A sentence counts once, whatever its cases.
    claimed = claimed[(claimed.whose == "paper") & (claimed.part_of == "")]
    for row, paper in zip(rows.values(), ("copa", "rgap", None), strict=True):
        part = claimed if paper is None else claimed[claimed.paper == paper]
        assert row["Claims"] == str(len(part))
        for verdict in VERDICTS:
            assert row[verdict.capitalize()] == str((part.verdict == verdict).sum())
    *_, tests = html.one("section", id="overview").all("table")
    for row, paper in zip(tests.one("tbody").all("tr"), ("copa", "rgap"), strict=True):
        tried = str((claimed[claimed.paper == paper].p != "").sum())
        cells = [cell.text() for cell in row.all("td")]
        assert cells[:5] == [tried, "0", "0", tried, "0"] and tried != "0"
    # The last two: what another run explains, and what none does.
    total, row = ([*map(int, [*overview(found)["All"].values()][-2:])] for found in (html, other))
    differ = claimed[claimed.verdict == "differs"]
    assert sum(total) == (differ.explanation == "").sum()
    assert row == [total[0] + 1, total[1]], EXPLAINED


def test_images_and_scale_are_said_on_top(html, other):
    lead = html.one("header").text()
    assert "Every number" not in lead and "of the recorded run" in lead
    assert "Images: real" in lead and "Scale: laptop" in lead and "not judged on these" not in lead
    lead = other.one("header").text()
    assert "Images: embedded" in lead and "Scale: smoke" in lead and "not judged on these" in lead
    assert "images=embedded scale=smoke" in other.one("pre").text()


def test_every_claim_is_there_once_with_its_numbers_verdict_and_link(html, claimed):
    rows = {row["id"]: row for row in html.all("tr") if "data-verdict" in row.attributes}
    assert set(rows) == set(claimed.id)
    sections = [part for part in html.all("section") if "data-paper" in part.attributes]
    papers = {row.get("id"): part["data-paper"] for part in sections for row in part.all("tr")}
    for claim in claimed.to_dict("records"):
        row = rows[claim["id"]]
        assert (row["data-verdict"], papers[row["id"]]) == (claim["verdict"], claim["paper"])
        (link,) = of_class(row, "a", "own")
        assert link["href"] == f"#{claim['id']}" and claim["id"] in link.text()
        text = row.text()
        between = "all 10" if claim["id"] == EXACT else "0.04100 to 0.06200"
        for shown in (claim["verdict"], "0.05123", between, ODD):
            assert shown in text
        if claim["paper_value"] != "":
            assert f"{float(claim['paper_value']):.10g}".replace("-", "−") in text
        if "copa.table" not in claim["id"]:
            assert row.one("th").text().startswith(" ".join(claim["statement"].split()))


def test_cases_of_a_sentence_stand_apart_from_it(html, claimed):
    headings = {}
    for row in (row for row in html.all("tr") if "data-verdict" in row.attributes):
        table = row.parent.parent
        headings[row["id"]] = table.one("caption").text()
    parts = claimed[claimed.part_of != ""]
    assert len(parts) > 3
    for part, whole in zip(parts.id, parts.part_of, strict=True):
        assert "with several parts, each part by itself" in headings[part]
        assert "in none of the tables above" in headings[whole]


def cells(html, claim):
    row = html.one("tr", id=claim)
    header = [cell.text() for cell in row.parent.parent.one("thead").all("th")]
    return dict(zip(header, (cell.text() for cell in row.all("th", "td")), strict=True))


def test_the_interval_and_ours_say_what_they_are(html):
    assert cells(html, EXACT)["Interval"] == "all 10"
    said = {"copa.table1.v1.layer1.stride": "least and largest", DRAWN: "95 %: one further run"}
    for claim, words in (said | {CLOSE: "90 %"}).items():
        assert cells(html, claim)["Interval"] == f"0.04100 to 0.06200 {words}"
    # Below a sentence stands what ours is, and below a label its metric.
    said = cells(html, CLOSE)["Claim"].partition("Ours: ")[2]
    assert said == "mean difference of MSE, the first side's less the other's."
    assert html.all("code") and "docs/metrics.md" in html.one("section", id="overview").text()
    row = html.one("tr", id=DRAWN)
    (label,) = [cell for cell in row.all("td") if cell.all("code")]
    assert label.text() == "MSE mse" and of_class(label, "span", "small")[0].text() == "mse"


def test_what_failed_is_explained_or_said_to_be_unexplained(html, other):
    rows = {row["id"]: row for row in html.all("tr") if "data-verdict" in row.attributes}
    (why,) = of_class(rows[EXPLAINED], "details", "why")
    assert "It is solved to rounding." in why.text()
    assert "docs/copa.md#start-and-optimiser" in [code.text() for code in why.all("code")]
    assert "Not explained yet." in rows[OPEN].text()
    for name, row in rows.items():
        if row["data-verdict"] in ("reproduced", "not judged"):
            assert not of_class(row, "details", "why") and "Not explained" not in row.text(), name
    (row,) = [row for row in other.all("tr") if row.get("id") == EXPLAINED]
    text = of_class(row, "details", "why")[0].text()
    assert "not explained for this run" in text and "COPA has one solution" in text


def test_figures_stand_in_the_papers_order_beside_their_captions(html):
    figures = html.all("figure")
    order = ("copa_fig1", "copa_index", "rgap_fig1", "rgap_fig9")
    assert [f["id"] for f in figures] == [f"figure-{name}" for name in order]
    for figure in figures:
        name = figure["id"].removeprefix("figure-")
        caption = CAPTIONS.of("figures", name)
        words = figure.one("figcaption")
        assert words.one("h4").text() == caption.title
        assert parse(f"<html>{caption.text}</html>").text() in words.text()
        picture = figure.one("img")
        height, width, _ = pixels(decoded(picture["src"])).shape
        assert (picture["width"], picture["height"]) == (str(width), str(height))
        assert caption.title in picture["alt"]
        assert f"../figures/{name}.pdf" in [link["href"] for link in words.all("a")]


def test_tables_have_captions_scopes_counts_and_regions_that_take_the_focus(html):
    for table in html.all("table"):
        assert table.one("caption").text()
        for cell in table.all("th"):
            assert cell.get("scope") in ("col", "row")
        assert table.parent["tabindex"] == "0" and table.parent["role"] == "region"
    for sheet in of_class(html, "details", "sheet"):
        assert "open" in sheet.attributes, "without a script all is shown"
        rows = [row for body in sheet.all("tbody") for row in body.all("tr")]
        said = of_class(sheet, "span", "counts")[0].text()
        found = Counter(row.get("data-verdict") for row in rows)
        for verdict in VERDICTS:
            many = {"differs": "differ", "exceeds": "exceed"}.get(verdict, verdict)
            words = f"{found[verdict]} {verdict if found[verdict] == 1 else many}"
            assert bool(re.search(rf"\b{words}(,|$)", said)) == (found[verdict] > 0)


def test_a_long_table_is_cut_and_columns_of_numbers_are_aligned(html):
    assert "ours, without verdicts" in html.one("details", id="sheet-copa_images").text()
    sheet = html.one("details", id="sheet-copa_index")
    assert len(sheet.one("tbody").all("tr")) == 100
    assert "The first 100 of 500 rows; all are in copa_index.csv" in sheet.text()
    assert "As a file: copa_table1.csv" in html.one("details", id="sheet-copa_table1").text()
    table = html.one("details", id="sheet-rgap_speed").one("table")
    rows = [row.all("td") for row in table.one("tbody").all("tr")]
    for cells in (table.one("thead").all("th")[1:], *rows):
        assert [cell.get("class") for cell in cells] == ["n", None], "0.5, and a dash"
    assert rows[0][0].text() == "11,310,000"
    # Whole numbers keep their digits, and the papers' have a minus.
    said = {1.131e7: "11,310,000", 505524: "505,524", -2266.5: "−2266.5", 2.5e7: "25,000,000"}
    said |= {1995.0: "1995"}
    assert {value: str(page.short(value)) for value in said} == said
    said = {-2266.5: "−2266.5", "1.9e-4 ± 7.0e-5": "1.9e−4 ± 7.0e−5", "-0.5": "−0.5"}
    said |= {"label-free, 3-5": "label-free, 3-5", np.nan: ""}
    assert {printed: content._stated(printed) for printed in said} == said


def test_equal_inputs_give_equal_bytes(made, tmp_path):
    assert write(tmp_path).read_bytes() == made.read_bytes()


def noise(path, width, height):
    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def decoded(uri):
    return io.BytesIO(base64.b64decode(uri.partition(",")[2]))


def pixels(source):
    with Image.open(source) as picture:
        return np.asarray(picture.convert("RGB"))


def test_pictures_fit_the_budget_and_small_ones_keep_every_pixel(tmp_path):
    small = tmp_path / "small.png"
    Image.linear_gradient("L").save(small)
    large = [noise(tmp_path / f"{n}.png", 1400 + n, 1000) for n in range(3)]
    budget = 2_000_000
    found = pictures.embed([small, *large], budget)
    assert (pixels(decoded(found[small].uri)) == pixels(small)).all()
    sizes = {path: len(decoded(picture.uri).getvalue()) for path, picture in found.items()}
    assert sizes[small] < small.stat().st_size and sum(sizes.values()) <= budget
    for path in large:
        height, width, _ = pixels(decoded(found[path].uri)).shape
        assert (width, height) == (found[path].width, found[path].height)
        assert width >= pictures.LEAST and width / height == pytest.approx(1.4, rel=0.01)
    # Loss is tried before fewer pixels.
    path = noise(tmp_path / "noise.png", 1400, 700)
    most = path.stat().st_size * 2 // 3
    (picture,) = pictures.embed([path], most).values()
    assert picture.width == 1400 and len(decoded(picture.uri).getvalue()) <= most
    # All of them leave room for the text, in a page below 15 MB.
    assert pictures.BUDGET * 4 / 3 <= 12_000_000


@pytest.mark.parametrize(
    ("sizes", "budget", "limit"),
    [([], 10, 10), ([1, 2, 3], 10, 3), ([1, 9, 9], 11, 5), ([4, 4, 4], 6, 2), ([1, 2, 90], 10, 7)],
)
def test_the_limit_of_each_picture_uses_what_others_leave(sizes, budget, limit):
    assert pictures.allowed(sizes, budget) == limit
    assert sum(min(size, limit) for size in sizes) <= budget


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_captions_are_short_text_with_a_title(path):
    paper, made = path.parent.name, load(path)
    names = [(kind, name) for kind in ("figures", "tables") for name in getattr(made, kind)]
    for kind, name in [("papers", paper), *names]:
        caption = CAPTIONS.of(kind, name)
        assert caption.title.startswith(CAPTIONS.of("papers", paper).title), name
        words = parse(f"<html>{caption.text}</html>").text().split()
        assert 5 <= len(words) <= 90 and words[-1].endswith((".", "?")), name


BAD = {
    "no title": "caption: Some text alone.\n",
    "no text": "title: TOY\n",
    "broken": "title: TOY\ncaption: A *word that never ends.\n",
    "a file": "title: TOY\ncaption: '.. include:: /etc/hostname'\n",
    "HTML": 'title: TOY\ncaption: ".. raw:: html\\n\\n   <script>1</script>"\n',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_bad_captions_are_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "toy/results.yaml"
    path.parent.mkdir()
    path.write_text(text)
    said = sentence(ConfigError, lambda: captions.Captions([path]).of("papers", "toy"))
    assert "toy/results.yaml: " in said


def test_what_has_no_caption_is_shown_under_its_name(tmp_path):
    (paper, _) = page.papers(replace(sources(tmp_path), captions=[]))
    assert paper["caption"].title == "copa"
    assert paper["figures"][0]["caption"].title == "copa_fig1"


SPOILT = {
    "a figure that is none": ("copa_fig1.png", "no picture", "delete it and make it again"),
    "a table that is none": ("copa_table1.csv", "", "it is empty"),
    "claims without verdicts": ("claims.csv", "id,paper\nx,copa\n", "has no column 'whose'"),
    "a verdict that is none": ("claims.csv", None, "'perhaps' is no verdict"),
}


@pytest.mark.parametrize(("name", "text", "words"), SPOILT.values(), ids=SPOILT)
def test_damaged_files_are_named_and_no_page_is_left(tmp_path, name, text, words):
    found = sources(tmp_path)
    files = (*found.figures, *found.tables, *found.claimed)
    path = next(path for path in files if path.name == name)
    path.write_text(path.read_text().replace("refuted", "perhaps", 1) if text is None else text)
    said = sentence(ArtifactError, page.write, tmp_path / "results/report.html", found)
    assert name in said and words in said
    assert not (tmp_path / "results/report.html").exists()


@pytest.mark.parametrize("paper", [path.parent.name for path in FILES])
def test_every_interval_of_a_recorded_table_says_what_it_is(paper):
    claims = load_claims(ROOT / "papers" / paper / "claims.yaml")
    paths = sorted((ROOT / "docs/results" / paper).glob(f"{paper}_*.csv"))
    found = [content.table(path, claims, {}) for path in paths]
    rows = [(part["name"], row) for part in found for row in part["rows"] if row["low"] is not None]
    assert rows and [(name, row["row"]) for name, row in rows if not row["span"]] == []
