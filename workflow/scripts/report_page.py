"""Writes the report: figures, tables and claims of all papers on one page."""

import _package  # isort: split

from pathlib import Path

from gradleak.reporting import page
from gradleak.runtime.job import job

with job(snakemake):
    files = snakemake.input
    kinds = ("figures", "tables", "claimed", "claims", "explanations", "captions")
    many = {kind: [Path(path) for path in getattr(files, kind)] for kind in kinds}
    page.write(snakemake.output[0], page.Sources(**many, threats=snakemake.params.threats))
