"""Writes a figure of originals and reconstructions."""

import _package
from gradleak import targets
from gradleak.figures import samples, style
from gradleak.script import job

with job(snakemake):
    originals = targets.read(snakemake.input.targets)
    figure = samples.make(
        originals, snakemake.input, snakemake.params.words, snakemake.params.scale
    )
    style.save(figure, snakemake.output.pdf)
