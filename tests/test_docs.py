"""Documents: links lead somewhere, nothing is left to fill in."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def test_links_and_named_files_exist(page):
    text = page.read_text()
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in t]
    for target in targets:
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is missing"
    for name in re.findall(r"`((?:workflow|tests|envs|docs|profiles)/[\w./]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}, which is missing"
    assert not re.search(r"\b(TODO|TIME_|SPEED_TABLE|FIXME)", text), f"{page.name} is unfinished"
