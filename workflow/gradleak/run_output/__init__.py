"""Lines of a run of the pipeline, in the place of Snakemake's own.

Snakemake prints about fifteen lines a job. Here a run is a display on a terminal, and elsewhere a
line a job; what failed is said at its end. Snakemake's own account stays in `.snakemake/log/`, and
`--verbose` prints it. No plugin of Snakemake's loggers is used: one that a profile names has to be
installed before Snakemake reads anything of this folder, and prints failures in a frame of its own.
"""
