"""Paths of the pipeline's files, and what rules need for given wildcards."""

from gradleak.errors import require_extra

require_extra("pipeline", "snakemake")
