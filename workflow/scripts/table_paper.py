"""Writes one of the paper's tables with our numbers beside."""

import _package
from gradleak.artifacts import write_csv
from gradleak.claims import Evidence, load, table
from gradleak.script import job

with job(snakemake):
    files = snakemake.input
    given = {kind: files.get(kind, []) for kind in ("scores", "security", "rank", "tables")}
    found = table(
        load(files.claims), Evidence.read(**given), snakemake.params.name, **snakemake.params.case
    )
    write_csv(snakemake.output[0], found[found["paper"].notna()])
