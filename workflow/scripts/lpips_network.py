"""Downloads a network that LPIPS looks through, or takes it from torchvision's file by hand."""

import _package
from gradleak.data import backbones
from gradleak.runtime.job import job

with job(snakemake):
    backbones.make(snakemake.output[0], snakemake.wildcards.network, snakemake.params.mirror)
