"""Paths of the pipeline's files, and what rules need for given wildcards."""
