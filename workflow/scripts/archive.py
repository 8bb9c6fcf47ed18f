"""Writes the supplement of a paper: settings, results and where they come from."""

import _package  # isort: split

from pathlib import Path

from gradleak.reporting import archive
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given = snakemake.input
    sources = {"config.yaml": given.config, "requirements.lock": given.lock}
    for names, paths in (("included", given.included), ("workflow", given.workflow)):
        sources |= dict(zip(snakemake.params[names], paths, strict=True))
    of_papers = map(Path, given.claims)
    sources |= {f"papers/{path.parent.name}/{path.name}": str(path) for path in of_papers}
    archive.write(snakemake.output[0], given.provenance, given.results, sources)
