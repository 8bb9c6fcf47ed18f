"""Runs a notebook and writes its page.

A script named notebook.py would be what nbconvert imports as the package of that name.
"""

import _package
from gradleak.reporting.notebooks import execute, page, source
from gradleak.runtime.job import job

with job(snakemake):
    path = snakemake.input.notebook
    notebook = source.with_parameters(source.read(path), {"scale": snakemake.params.scale}, path)
    page.write(execute.run(notebook, path), path, snakemake.output[0])
