"""Inputs of tables that need more of the config than an entry of results.yaml can express."""

from gradleak.pipeline.results.expand import Files, Words, Writer

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
