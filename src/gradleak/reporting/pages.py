"""Common parts of all pages: one file each, without external resources."""

import base64
import hashlib
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape

from gradleak.reporting import page_text
from gradleak.runtime.provenance import ROOT, TREE

# Examples of audits' grades, which `python -m benchmarks.grades` writes.
GRADES = "grades.json"
# Templates, styles and scripts: in a wheel within the package, otherwise where Snakemake's users
# look for them.
FOLDER = next(p for p in (ROOT / "report", TREE / "workflow/report") if p.is_dir())


@cache
def template(name: str) -> Template:
    """Template of `workflow/report/`; values are escaped, and an undefined one is an error."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= page_text.FILTERS | {"digest": _digest}
    return environment.get_template(name)


def _digest(text: str) -> str:
    """SHA-256 as a content security policy writes it."""
    return base64.b64encode(hashlib.sha256(str(text).encode()).digest()).decode("ascii")
