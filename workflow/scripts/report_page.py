"""Writes the report: figures, tables and claims of all papers on one page."""

import _package  # isort: split

from pathlib import Path

from gradleak.reporting import page
from gradleak.runtime.job import job

with job(snakemake):
    files = snakemake.input
    sources = page.Sources(
        figures=[Path(path) for path in files.figures],
        tables=[Path(path) for path in files.tables],
        claimed=Path(files.claimed),
        claims=[Path(path) for path in files.claims],
        explanations=[Path(path) for path in files.explanations],
        captions=[Path(path) for path in files.captions],
    )
    page.write(snakemake.output[0], sources)
