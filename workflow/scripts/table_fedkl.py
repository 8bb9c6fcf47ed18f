"""Writes one of the tidy tables that FedKL's claims read."""

import _package
from gradleak.artifacts import write_csv
from gradleak.script import job


def accuracy():
    """Accuracies of all trainings."""
    from gradleak.tables import fedkl_accuracy

    files = snakemake.input
    cases = [
        {"summary": summary, "curve": curve, **words}
        for summary, curve, words in zip(
            files.summaries, files.curves, snakemake.params.cases, strict=True
        )
    ]
    return fedkl_accuracy.table(cases, **snakemake.params.case)


def parameters():
    """Parameters of networks and of their locks."""
    from gradleak.tables import fedkl_parameters

    return fedkl_parameters.table(snakemake.params.cases, **snakemake.params.case)


def propositions():
    """What gradients tell in the networks of the proofs."""
    from gradleak.data import arrays
    from gradleak.propositions import table

    data = arrays.load(snakemake.input.dataset, snakemake.params.dataset, "test")
    return table.table(data, **snakemake.params.case)


MAKERS = {maker.__name__: maker for maker in (accuracy, parameters, propositions)}

with job(snakemake):
    write_csv(snakemake.output[0], MAKERS[snakemake.params.table]())
