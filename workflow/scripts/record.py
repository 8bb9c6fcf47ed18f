"""Writes what docs/results keeps of a paper's run, or of one experiment's scores."""

import _package
from gradleak.config.schema import Config
from gradleak.reporting import recording
from gradleak.reporting.provenance_record import Layout, make
from gradleak.runtime.job import job

with job(snakemake, altered=True):
    given, params = snakemake.input, snakemake.params
    config = Config.model_validate_json(params.resolved)
    layout = Layout(params.data_root, tuple(params.made), tuple(params.pictured))
    included = dict(zip(params.included, given.included, strict=True))
    files = {"config.yaml": given.config, **included}
    told = make([*given.results], config, layout, settings=files, lock=given.lock)
    if given.get("claims"):
        kept = recording.Kept(given.claims, given.tables, given.evidence)
        recording.write(snakemake.output[0], told, kept)
    else:
        recording.write_part(snakemake.output[0], told, given.results)
