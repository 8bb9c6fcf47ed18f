"""Inputs of tables that need more of the config than an entry of results.yaml can express."""

from gradleak.models.chain import Chain
from gradleak.models.resnet import KINDS, specs
from gradleak.pipeline.results.expand import Files, Words, Writer

Made = tuple[Files, Words]


def counts(writer: Writer, files: Files, words: Words) -> Made:
    """Networks of experiments, and residual networks with the skip of each block cut in turn."""
    config = writer.config
    names = [m for name in writer.entry.experiments for m in config.experiments[name].models]
    members = dict.fromkeys(member for name in names for member in config.members(name))
    chains = {member: config.chain(member) for member in members}
    words["networks"] = {name: chain.describe() for name, chain in chains.items()}
    for entry in words["cut"].values():
        model = config.models[entry["model"]]
        shape = dict(model.architecture or {})
        cuts = [[], *([number] for number in range(1, sum(KINDS[shape["kind"]].blocks) + 1))]
        layers = [specs(**{**shape, "cut": cut}) for cut in cuts]
        entry["chains"] = [Chain(entry["model"], model.input, own).describe() for own in layers]
    return files, words


def batches(writer: Writer, files: Files, words: Words) -> Made:
    """Images, initial weights and undefended gradients of experiments with one network each."""
    paths, config = writer.paths, writer.config
    names = writer.entry.experiments
    models = {name: config.experiments[name].models[0] for name in names}
    files["targets"] = [paths.targets_of(name) for name in names]
    files["models"] = [paths.model.format(model=models[name]) for name in names]
    files["gradients"] = [
        paths.gradient.format(experiment=n, model=models[n], defence="none") for n in names
    ]
    return files, words
