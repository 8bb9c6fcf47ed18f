"""Documents: links, keys and commands lead somewhere, nothing is left to fill in."""

import json
import re
import sys
from collections import defaultdict
from functools import cache
from typing import get_args

import pytest
from pydantic import TypeAdapter

import gradleak
from conftest import ROOT, run
from gradleak.claims import outcome
from gradleak.claims.forms import Query
from gradleak.claims.load import ClaimsFile
from gradleak.claims.model import Claim
from gradleak.claims.statement import Rule
from gradleak.config.schema import Config
from gradleak.models.chain import ConvSpec, LinearSpec
from gradleak.pipeline.results.schema import Paper
from pipeline_trees import whole

CODE = ("src", "papers", "benchmarks", "workflow")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PAGES += [ROOT / "config/README.md", ROOT / "envs/README.md"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Words of config that are not Config's: Snakemake's own, the beginnings of a claim's reasons, and
# an option of a class that docs/second_order.md names.
OTHER_KEYS = {"benchmark", "cache", "include", "retries", "threads", "test", "time", "commit"}
OTHER_KEYS |= {"precondition", "prefix"}
SETTING = re.compile(r"(?:[a-z_]+: )*[a-z_]+:(?: [\w.|{}\[\], ]+)?")


def text_of(page):
    """Words of a page; of a notebook those of its Markdown cells."""
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def anchors(page):
    """What GitHub makes of the headings of a page."""
    found = []
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text_of(page)), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return found


def links(page):
    """(file, anchor) of each link of a page that stays in the repository."""
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES + NOTEBOOKS, ids=names(PAGES + NOTEBOOKS))
def test_links_and_named_files_exist(page):
    text = text_of(page)
    for path, anchor in links(page):
        assert path.exists(), f"{page.name} links to {path}, which is missing"
        if anchor:
            assert anchor in anchors(path), f"{page.name} links to #{anchor} of {path.name}"
    # docs/adding.md names the files that it adds; a container image is built on the spot.
    made = {"envs/gradleak.sif", *re.findall(r"[Nn]ew file\s`([^`]+)`", text)}
    for name in re.findall(r"`((?:workflow|tests|envs|docs|profiles)/[\w./]+)`", text):
        assert (ROOT / name).exists() or name in made, f"{page.name} names {name}, which is missing"
    assert not re.search(r"\b(TODO|TIME_|SPEED_TABLE|FIXME)", text), f"{page.name} is unfinished"


def test_every_page_can_be_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        reached.add(page)
        found = [path for path, _ in links(page) if path.suffix == ".md"]
        ahead += [path for path in found if path not in reached]
    assert set(PAGES) <= reached


def test_anchors_are_those_of_github(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# c(M), `a_b` and more\n```\n# none\n```\n## [x](y.md): z\n## [x](y): z\n")
    assert anchors(page) == ["cm-a_b-and-more", "x-z", "x-z-1"]


@cache
def keys_and_words():
    """Every key of config.yaml, results and claims files; words of those that are closed."""
    words = defaultdict(list)

    def walk(node):
        if isinstance(node, dict):
            for key, value in node.get("properties", {}).items():
                closed = [value["const"]] if "const" in value else value.get("enum")
                words[key].append(closed and set(closed))
            words.update({key: [None] for key in node.get("propertyNames", {}).get("enum", ())})
        if isinstance(node, dict | list):
            for one in node.values() if isinstance(node, dict) else node:
                walk(one)

    walk(Config.model_json_schema())
    for part in (ClaimsFile, Claim, Query, Paper):
        walk(TypeAdapter(part).json_schema())
    for spec in (ConvSpec, LinearSpec):
        words.update({key: [None] for key in spec.__dataclass_fields__})
    for key in Config.model_json_schema()["properties"]:
        words[key].append(None)
    return words


def settings(page):
    """Settings that a page names in code: (keys, value)."""
    for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text())):
        if SETTING.fullmatch(span) and not span.startswith("gradleak:"):
            *keys, value = [part.strip() for part in span.split(":")]
            yield keys, value


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_settings_that_a_page_names_exist(page):
    known = keys_and_words()
    scales = set(whole()["scales"])
    for keys, value in settings(page):
        for key in keys:
            assert key in known or key in OTHER_KEYS | scales, f"{page.name}: {key}"
        closed = known.get(keys[-1], [None])
        if None in closed or not re.fullmatch(r"[a-z_]+", value):
            continue
        assert value in set.union(*closed), f"{page.name}: {keys[-1]}: {value}"


def test_settings_and_targets_of_the_papers_have_not_been_renamed():
    """Ids such as `rgap_float32`: of config.yaml, of a target, of a claim or of the code."""
    sources = [path for folder in CODE for path in (ROOT / folder).rglob("*.*")]
    sources += (ROOT / "tests").glob("*.py")
    text = "\n".join(p.read_text() for p in sources if p.suffix in (".yaml", ".smk", ".py", ".csv"))
    for page in PAGES:
        for name in re.findall(r"`((?:copa|rgap|mkor|fedkl|cnn3)_[a-z0-9_]+)`", page.read_text()):
            assert name in text, f"{page.name} names {name}, which is nowhere"


def test_verdicts_and_rules_of_the_page_on_claims_are_all():
    parts = (ROOT / "docs/claims.md").read_text().split("\n## ")

    def first_column(title):
        (part,) = [part for part in parts if part.startswith(title)]
        rows = [line.split(" | ")[0] for line in part.splitlines() if line.startswith("| `")]
        return set(re.findall(r"`([^`]+)`", " ".join(rows)))

    assert first_column("Verdicts") == set(outcome.VERDICTS)
    assert first_column("Tolerances") - {"rule"} == set(get_args(Rule))


def test_the_site_builds_and_documents_each_public_name(tmp_path):
    """As `make docs`: without a warning, so without a broken link."""
    options = ("-E", "-W", "--keep-going", "-q", "-c", ROOT / "docs", ROOT)
    done = run(sys.executable, "-m", "sphinx", *options, tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "docs/api.html").read_text()
    described = set(re.findall(r'id="gradleak\.(\w+)"', page))
    assert described == set(gradleak.__all__) - {"__version__"}
    assert 'url=docs/README.html"' in (tmp_path / "index.html").read_text()
    # The first page leads to all others of docs/.
    first = (tmp_path / "docs/README.html").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f'href="{path.stem}.html"' in first or path.name == "README.md"
