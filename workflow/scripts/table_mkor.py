"""Writes one of MKOR's tidy tables."""

import _package  # isort: split

import pandas as pd

from gradleak.artifacts import read_csv, write_csv
from gradleak.script import job


def joined():
    """Tables of several files, one after the other."""
    return pd.concat([read_csv(path) for path in snakemake.input], ignore_index=True)


def unique_samples():
    """Eq. (3) and its simulation."""
    from gradleak import unique_samples

    return pd.DataFrame(unique_samples.table(), columns=unique_samples.COLUMNS)


def low_pass():
    """Photos of few numbers."""
    from gradleak import low_pass, targets

    rows = low_pass.table(targets.read(snakemake.input[0]))
    return pd.DataFrame(rows, columns=low_pass.COLUMNS)


def soteria_cost():
    """Passes back that Soteria takes, and that a gradient takes."""
    from gradleak.defences import soteria
    from gradleak.models import files

    chains = [chain for path in snakemake.input.models for chain in files.read(path).chains]
    return pd.DataFrame([soteria.cost(chain) for chain in chains])


def soteria_pruned():
    """What Soteria takes from each gradient."""
    from gradleak.tables import mkor_pruned

    params, files = snakemake.params, snakemake.input
    return mkor_pruned.table(
        [
            {"result": result, "before": before, "after": after}
            for result, before, after in zip(params.results, files.before, files.after, strict=True)
        ]
    )


def losses():
    """What each loss and output bias leaves of the images."""
    from gradleak.tables import mkor_losses

    files = snakemake.input
    cases = [
        {"scores": scores, "model": model, **words}
        for scores, model, words in zip(
            files.scores, files.models, snakemake.params.words, strict=True
        )
    ]
    return mkor_losses.table(cases)


MAKERS = {
    maker.__name__: maker
    for maker in (joined, unique_samples, low_pass, soteria_cost, soteria_pruned, losses)
}

with job(snakemake):
    write_csv(snakemake.output[0], MAKERS[snakemake.params.table]())
