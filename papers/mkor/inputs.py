"""Inputs of tables that need more of the config than an entry of results.yaml can express."""

from typing import Any

from gradleak.data.catalogue import resolve
from gradleak.pipeline.inputs import plain
from gradleak.pipeline.results.expand import Files, Words, Writer, trained_with

Made = tuple[Files, Words]


def inconspicuous(writer: Writer, files: Files, words: Words) -> Made:
    """Weights sent by servers, compared in one job per model."""
    pattern = writer.paths.inconspicuous
    return {**files, "parts": [pattern.format(model=name) for name in writer.entry.compared]}, words


def pruned(writer: Writer, files: Files, words: Words) -> Made:
    """Gradients of experiments (one network or group each), without and with Soteria."""
    names, config, path = writer.entry.experiments, writer.config, writer.paths.gradient
    models = {name: config.experiments[name].models[0] for name in names}
    for key, defence in (("before", "none"), ("after", "soteria")):
        files[key] = [path.format(experiment=n, model=models[n], defence=defence) for n in names]
    return files, {**words, "results": names}


def losses(writer: Writer, files: Files, words: Words) -> Made:
    """Scores of experiments, weights sent by their servers, and each one's loss and output bias."""
    config, paths = writer.config, writer.paths
    files |= {"scores": [], "models": []}
    words["cases"] = []
    for name in writer.entry.experiments:
        entry = config.experiments[name]
        bias = getattr(config.servers[entry.server], "output_bias", 0.0)
        for model in entry.models:
            sent = paths.sent.format(server=entry.server, model=model)
            for path in paths.scores(name, models=[model]):
                files["scores"].append(path)
                files["models"].append(sent)
                words["cases"].append({"loss": entry.loss, "output_bias": bias})
    return files, words


def batches(writer: Writer, files: Files, words: Words) -> Made:
    """Settings by name of servers and attacks that a table runs by itself, and of a training.

    `words` have ``setting``, or several by name in ``settings``; ``training`` is that of the first
    of ``initial``, whose weights and summary are input too if ``trained`` is set; ``sets`` are
    target sets.
    """
    config, paths = writer.config, writer.paths

    def entries(one: dict[str, Any]) -> dict[str, Any]:
        sent, attack = plain(config, "servers", one["server"]), one["attack"]
        return {**one, "server": sent, "attack": plain(config, "attacks", attack)}

    words = dict(words)
    if "setting" in words:
        words["setting"] = entries(words["setting"])
    if "settings" in words:
        words["settings"] = {name: entries(one) for name, one in words["settings"].items()}
    if "sets" in words:
        files["sets"] = [paths.targets.format(targets=name) for name in words["sets"]]
    if training := words.get("training"):
        if words.pop("trained", False):
            model = trained_with(config.groups, writer.entry.initial[0])
            files["trained"] = paths.trained.format(training=training, model=model)
            files["summary"] = files["trained"].replace(".safetensors", ".csv")
        else:
            files["dataset"] = paths.dataset_of(training)
        settings = plain(config, "trainings", training)
        settings["dataset"] = resolve(settings["dataset"], config.images)
        words["training"] = settings
    return files, words
