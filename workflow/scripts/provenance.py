"""Writes what all results were made from."""

import _package
from gradleak.config.schema import Config
from gradleak.reporting.provenance_record import Layout, make
from gradleak.runtime.artifacts import write_json
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    params = snakemake.params
    config = Config.model_validate_json(params.resolved)
    layout = Layout(params.data_root, tuple(params.made), tuple(params.pictured))
    given = snakemake.input
    included = dict(zip(params.included, given.included, strict=True))
    files = {"config.yaml": given.config, **included}
    told = make(map(str, given.results), config, layout, settings=files, lock=given.lock)
    write_json(snakemake.output[0], told)
