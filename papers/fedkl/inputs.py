"""Inputs of tables that need more of the config than an entry of results.yaml can express."""

from gradleak.data.catalogue import resolve
from gradleak.pipeline.inputs import plain
from gradleak.pipeline.results.expand import Files, Words, Writer

Made = tuple[Files, Words]


def parameters(writer: Writer, files: Files, words: Words) -> Made:
    """Networks at paper scale, whatever the scale of this run."""
    paper = writer.config.at("paper")
    for case in words["cases"]:
        case["chain"] = paper.chain(case.pop("model")).describe()
    return files, words


def propositions(writer: Writer, files: Files, words: Words) -> Made:
    """Images for the propositions."""
    return files, {**words, "dataset": resolve(str(writer.entry.dataset), writer.config.images)}


def histograms(writer: Writer, files: Files, words: Words) -> Made:
    """Data, networks and clients' keys (a folder) of trainings without and with a lock."""
    paths, config = writer.paths, writer.config
    unlocked, locked = ([c for c in writer.curves if c["lock"] == lock] for lock in (False, True))
    files = {
        "data": [paths.dataset_of(one["training"]) for one in unlocked],
        "plain": [writer.trained(one) for one in unlocked],
        "locked": [writer.trained(one) for one in locked],
        "clients": [writer.trained(one, ".clients") for one in locked],
    }
    cases = [
        {
            "row": one["row"],
            "dataset": resolve(config.trainings[one["training"]].dataset, config.images),
            "settings": plain(config, "trainings", one["training"]),
            "networks": [one["model"], other["model"]],
        }
        for one, other in zip(unlocked, locked, strict=True)
    ]
    return files, {"cases": cases}


def random_keys(writer: Writer, files: Files, words: Words) -> Made:
    """Data, networks and clients' keys (folders) of federations with a lock.

    Networks on larger images, whose passes take longest, get one draw of the random key.
    """
    paths, config, curves = writer.paths, writer.config, writer.curves
    assert writer.entry.samples is not None
    draws = writer.entry.samples.at(config.scale)
    files = {
        "data": [paths.dataset_of(one["training"]) for one in curves],
        "locked": [writer.trained(one) for one in curves],
        "clients": [writer.trained(one, ".clients") for one in curves],
    }
    cases = [
        {
            **{key: one[key] for key in ("column", "model", "training", "network", "dataset")},
            "source": resolve(config.trainings[one["training"]].dataset, config.images),
            "split": one["split"],
            "settings": plain(config, "trainings", one["training"]),
            "draws": 1 if one["size"] else draws,
        }
        for one in curves
    ]
    return files, {"cases": cases}


def constants(writer: Writer, files: Files, words: Words) -> Made:
    """Target sets by name."""
    return {**files, "sets": [writer.paths.targets.format(targets=n) for n in words["sets"]]}, words
