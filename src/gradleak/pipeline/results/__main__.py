"""Write all figures and tables into docs/targets.md: `python -m gradleak.pipeline.results`."""

import re
from collections.abc import Iterable

from gradleak.config import yaml_checks
from gradleak.config.loader import load as load_config
from gradleak.pipeline.results.schema import NAME, Paper, load
from gradleak.runtime.provenance import TREE

PAGE = TREE / "docs/targets.md"
BEGIN, END = "<!-- made by python -m gradleak.pipeline.results -->\n", "<!-- end -->"
PLACE = re.compile(f"(?<={re.escape(BEGIN)}).*(?={END})", re.DOTALL)


def lines(papers: Iterable[Paper]) -> list[str]:
    """Rows of the table: path, title, and time if known."""
    return [
        f"| `{path.format(name)}` | {entry.title} | {entry.time} |"
        for paper in papers
        for kind, path in (("figures", "figures/{}.pdf"), ("tables", "results/tables/{}.csv"))
        for name, entry in paper.entries(kind).items()
    ]


def with_table(page: str, papers: Iterable[Paper]) -> str:
    """Replace the table in the page."""
    head = ["| `snakemake …` | what it is | laptop scale, 2 cores |", "| --- | --- | --- |"]
    table = "\n".join(["", *head, *lines(papers), "", ""])
    return PLACE.sub(lambda _: table, page)


def main() -> None:
    """Rewrite the page."""
    config = load_config(yaml_checks.read(TREE / "config.yaml"))
    papers = [load(TREE / "papers" / paper / NAME) for paper in config.papers]
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), papers), encoding="utf-8")


if __name__ == "__main__":
    main()
