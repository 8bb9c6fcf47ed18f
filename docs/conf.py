"""Settings of Sphinx for `make docs`: the pages of the repository and of the library's names."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

project = "gradleak"
author = copyright = "The gradleak maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Pages stay where they are, so that their links lead to the same places here as on a code host.
include_patterns = ["*.md", "docs/**.md", "config/README.md", "envs/README.md"]
exclude_patterns = [".*", "build", "data", "figures", "results", "wheels"]
root_doc = "docs/README"
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px"}
html_copy_source = False
# Anchors of headings as on code hosts.
myst_heading_anchors = 6
autodoc_typehints = "none"
napoleon_google_docstring = False
add_module_names = False
default_role = "py:obj"
# Not all pages are in the table of contents.
suppress_warnings = ["toc.not_included"]


def _add_contents(app, page, text):
    """Make a table of contents of the links on the page that lists all pages."""
    if page == root_doc:
        for heading, part in re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", text[0], re.M | re.S):
            pages = dict.fromkeys(re.findall(r"\]\(([^)#]+)\.md\)", part))
            entries = "\n".join(pages)
            text[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{entries}\n```\n"


def _add_index(app, error):
    """Lead from the folder's index to the first page."""
    if error is None and app.builder.name == "html":
        target = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(target, encoding="utf-8")


def setup(app):
    """Register both."""
    app.connect("source-read", _add_contents)
    app.connect("build-finished", _add_index)
