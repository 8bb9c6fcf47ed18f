"""Inputs of tables that need more of the config than an entry can express."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradleak.data.catalogue import resolve
from gradleak.pipeline.inputs import plain

if TYPE_CHECKING:
    from gradleak.pipeline.results.expand import Files, Words, Writer

Made = tuple["Files", "Words"]


def paper_table(writer: Writer, files: Files, words: Words) -> Made:
    """A paper's table beside ours, whose cells are defined by claims."""
    claims = writer.results.claims(writer.name.partition("_")[0])
    return {"claims": claims, **files}, {**words, "name": writer.name}


def inconspicuous(writer: Writer, files: Files, words: Words) -> Made:
    """Weights sent by servers, compared in one job per model."""
    pattern = writer.paths.inconspicuous
    return {**files, "parts": [pattern.format(model=name) for name in writer.entry.compared]}, words


def pruned(writer: Writer, files: Files, words: Words) -> Made:
    """Gradients of experiments (one network or group each), without and with Soteria."""
    for key, defence in (("before", "none"), ("after", "soteria")):
        files[key] = [
            writer.paths.gradient.format(
                experiment=name,
                model=writer.config.experiments[name].models[0],
                defence=defence,
            )
            for name in writer.entry.experiments
        ]
    return files, {**words, "results": writer.entry.experiments}


def losses(writer: Writer, files: Files, words: Words) -> Made:
    """Scores of experiments, weights sent by their servers, and each one's loss and output bias."""
    config, paths = writer.config, writer.paths
    files |= {"scores": [], "models": []}
    words["cases"] = []
    for name in writer.entry.experiments:
        entry = config.experiments[name]
        for model in entry.models:
            for path in paths.scores(name, models=[model]):
                files["scores"].append(path)
                files["models"].append(paths.sent.format(server=entry.server, model=model))
                bias = getattr(config.servers[entry.server], "output_bias", 0.0)
                words["cases"].append({"loss": entry.loss, "output_bias": bias})
    return files, words


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
    pairs: list[list[dict[str, Any]]] = [[], []]
    for curve in writer.curves:
        pairs[curve["lock"]].append(curve)
    unlocked, locked = pairs
    files = {
        "data": [paths.dataset_of(one["training"]) for one in unlocked],
        "plain": [writer.trained(one) for one in unlocked],
        "locked": [writer.trained(one) for one in locked],
        "clients": [writer.trained(one, ".clients") for one in locked],
    }
    cases = []
    for one, other in zip(unlocked, locked, strict=True):
        training = config.trainings[one["training"]]
        cases.append(
            {
                "row": one["row"],
                "dataset": resolve(training.dataset, config.images),
                "settings": plain(config, "trainings", one["training"]),
                "networks": [one["model"], other["model"]],
            }
        )
    return files, {"cases": cases}


# By the module in an entry's `make`.
SPECIAL: dict[str, Callable[[Writer, Files, Words], Made]] = {
    "gradleak.claims.paper_table": paper_table,
    "papers.mkor.tables.joined": inconspicuous,
    "papers.mkor.tables.pruned": pruned,
    "papers.mkor.tables.losses": losses,
    "papers.fedkl.tables.parameters": parameters,
    "papers.fedkl.proofs.table": propositions,
    "papers.fedkl.distributions": histograms,
}
