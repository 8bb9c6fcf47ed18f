"""Writes how our attacks compare with those of other libraries on the same clients."""

import _package  # isort: split

from pathlib import Path

from benchmarks import peers
from gradleak.runtime.artifacts import write_csv
from gradleak.runtime.job import job

with job(snakemake):
    params, given = snakemake.params, snakemake.input
    train, test = (
        peers.read_images(given[part], params.dataset, part) for part in ("train", "test")
    )
    amounts, folder = peers.Amounts(**params.amounts), Path(snakemake.output[0]).with_suffix("")
    compared = peers.Comparison(params.images, train, test, amounts, folder)
    write_csv(snakemake.output[0], compared.run())
