"""Output of a run of the pipeline, in place of Snakemake's own.

Snakemake prints about fifteen lines a job. This package shows a display on a terminal, and
elsewhere a line a job; failures are explained at the end. Snakemake's own output stays in
`.snakemake/log/`, and `--verbose` prints it. Logger plugins are not used: one named by a profile
must be installed before Snakemake reads anything here, and prints failures in a frame of its own.
"""
