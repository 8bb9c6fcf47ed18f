"""Output of a run of the pipeline, in place of Snakemake's own fifteen lines a job.

A terminal shows a display, anything else a line a job; failures are explained at the end.
Snakemake's own output stays in `.snakemake/log/`, and `--verbose` prints it. A logger plugin is not
used: Snakemake would need it before it reads anything here.
"""
