"""What tests read from an audit's page: tables, lists of terms, dashes."""

from audit_samples import audit, pictures
from gradleak_audit.report import page
from html_tree import parse


def tree(findings=None, shown=None, command=None):
    """Page of findings, by default of one that leaks, as a tree."""
    findings = audit() if findings is None else findings
    return parse(page.render(findings, pictures() if shown is None else shown, command))


def table(of, name):
    """Rows of a table, each header -> cell."""
    found = of.one("table", id=name)
    headers = [cell.text() for cell in found.one("thead").all("th")]
    rows = []
    for row in found.one("tbody").all("tr"):
        cells = row.all("th", "td")
        assert len(cells) == len(headers), row.text()
        rows.append(dict(zip(headers, cells, strict=True)))
    return rows


def terms(*lists):
    """Term -> text of lists of terms."""
    pairs = [zip(listed.all("dt"), listed.all("dd"), strict=True) for listed in lists]
    return {name.text(): text.text() for pair in pairs for name, text in pair}


def all_terms(html, name):
    """Of all lists of a section."""
    return terms(*html.one("section", id=name).all("dl"))


def classes(element):
    return element.get("class", "").split()


def absent(cell):
    """Why a cell shows a dash and no number; empty where it shows one."""
    dashes = [span for span in cell.all("span") if "absent" in classes(span)]
    if not dashes:
        return ""
    (dash,) = dashes
    sign, unseen = dash.all("span")
    assert sign.text() == "–" and sign["aria-hidden"] == "true"
    assert dash["title"] == unseen.text() and cell.text() == f"–{unseen.text()}"
    return unseen.text()


def count(number):
    """A whole number as the page writes it."""
    return f"{number:,}".replace("-", "−")
