"""Expand entries of results.yaml into a job's input files and settings."""

import itertools
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from gradleak.errors import ConfigError
from gradleak.pipeline.paths import Paths
from gradleak.pipeline.results.fill import combinations, fill, lookups
from gradleak.pipeline.results.schema import NAME, Compared, Entry, Loop, Paper

# Keys of a row or column that the figure reads; others are names for its panels.
SHOWN = ("name", "group", "below", "original")
KINDS = ("figures", "tables")
# Draws a paper's table beside our numbers, from its claims.
PAPER_TABLE = "gradleak.claims.paper_table"

Files = dict[str, Any]
Words = dict[str, Any]
Part = TypeVar("Part", bound=Loop)


def table_path(name: str) -> str:
    """Return the path of a table."""
    return f"results/tables/{name}.csv"


class Needs(NamedTuple):
    """Inputs of a figure's or table's job."""

    files: Files  # input files by name
    words: Words  # settings passed to the module


class Results:
    """Figures and tables of all papers.

    `papers` are contents of results.yaml files, whose paths are `sources`; `claims` returns the
    claims file of a paper.
    """

    def __init__(
        self,
        papers: Mapping[str, Paper],
        paths: Paths,
        claims: Callable[[str], str],
        sources: Sequence[str] = (),
    ) -> None:
        self.sources = list(sources)
        self.papers, self.claims = dict(papers), claims
        self.paths, self.config = paths, paths.config
        self.known = lookups(paths.config)
        self.entries = {
            kind: {n: e for paper in papers.values() for n, e in paper.entries(kind).items()}
            for kind in KINDS
        }
        # Files and settings of one result; `ConfigError` for names missing in config.
        self.needs = cache(lambda kind, name: Writer(self, kind, name).needs())

    @property
    def figures(self) -> list[str]:
        """Paths of all figures."""
        return [f"figures/{name}.pdf" for name in self.entries["figures"]]

    @property
    def tables(self) -> list[str]:
        """Paths of all tables."""
        return [table_path(name) for name in self.entries["tables"]]

    @property
    def names(self) -> dict[str, dict[str, str]]:
        """Names of `attacks` and `models` in figures and tables, by id; the first of several."""
        papers = self.papers.values()
        shown = [entry for kind in KINDS for entry in self.entries[kind].values()]
        headed = (entry.attacks for entry in shown if isinstance(entry.attacks, dict))
        labelled = (entry.names for entry in shown if entry.names)
        return {
            "attacks": dict(ChainMap(*(paper.attacks for paper in papers), *headed)),
            "models": dict(ChainMap(*(paper.models for paper in papers), *labelled)),
        }

    def evidence(self, kind: str) -> list[str]:
        """Tables used by claims: `table`, or `index` for tables of networks."""
        tables = self.entries["tables"].items()
        return [table_path(name) for name, entry in tables if entry.evidence == kind]

    def of_training(self, training: str) -> dict[str, Needs]:
        """Files and settings of tables for claims, by name, as of one training's curves alone.

        Tables that the config lacks something for are left out: whoever asks for them is told.
        """
        out = {}
        for name, entry in self.entries["tables"].items():
            if entry.evidence != "table" or not entry.curves or entry.inputs:
                continue
            try:
                files, words = self.needs("tables", name)
            except ConfigError:
                continue
            own = [curve["training"] == training for curve in words["curves"]]
            if any(own):
                few = {key: list(itertools.compress(found, own)) for key, found in files.items()}
                curves = list(itertools.compress(words["curves"], own))
                out[name] = Needs(few, {**words, "curves": curves})
        return out

    @property
    def compared(self) -> dict[str, Compared]:
        """Servers whose weights are compared with a model's initial weights, by model."""
        tables = self.entries["tables"].values()
        return {model: one for entry in tables for model, one in entry.compared.items()}

    def compared_files(self, wildcards: Any) -> Files:
        """Initial weights of a model, weights sent by servers, and images for gradients."""
        one, model, paths = self.compared[wildcards.model], wildcards.model, self.paths
        return {
            "honest": paths.model.format(model=model),
            "sent": [paths.sent.format(server=name, model=model) for name in one.servers],
            "targets": paths.targets.format(targets=one.targets),
        }

    def compared_servers(self, wildcards: Any) -> list[str]:
        """Servers whose weights are compared."""
        return self.compared[wildcards.model].servers

    def compared_samples(self, wildcards: Any) -> int:
        """Number of single-image gradients that a client samples."""
        tables = self.entries["tables"].values()
        (samples,) = [entry.samples for entry in tables if wildcards.model in entry.compared]
        assert samples is not None
        return samples.at(self.config.scale)

    def title(self, kind: str, name: str) -> str:
        """Title of a result, without the paper's title that it begins with."""
        label = self.entries[kind][name].title.removeprefix(self.paper(name).title).lstrip(": ")
        return label[0].upper() + label[1:] if label.partition(" ")[0].isalpha() else label

    def paper(self, name: str) -> Paper:
        """Return the paper whose id the result's name begins with."""
        return self.papers[name.partition("_")[0]]


class Writer:
    """Expands one entry."""

    def __init__(self, results: Results, kind: str, name: str) -> None:
        self.results, self.paths, self.config = results, results.paths, results.config
        self.kind, self.name = kind, name
        self.place = f"papers/{name.partition('_')[0]}/{NAME}: {kind}.{name}"
        self.entry: Entry = results.entries[kind][name]

    def needs(self) -> Needs:
        """Return files and settings."""
        self._check()
        files, words = self._files(), self._words()
        if self.entry.make == PAPER_TABLE:
            files = {"claims": self.results.claims(self.name.partition("_")[0]), **files}
            words = {**words, "name": self.name}
        elif self.entry.inputs:
            module = import_module(self.entry.inputs_module(self.name))
            files, words = getattr(module, self.entry.inputs)(self, files, words)
        return Needs(files, words)

    def missing(self, what: str) -> ConfigError:
        """Return the error for something missing in config."""
        return ConfigError(
            f"{self.place} needs {what}, which the config does not have; put "
            "it back, or set enabled: false there."
        )

    def fill(self, value: Any, names: Mapping[str, Any] | None = None) -> Any:
        """Replace names in braces."""
        try:
            return fill(value, names or {}, self.results.known)
        except LookupError as error:
            raise ConfigError(
                f"{self.place}: {error.args[0]!r} has a name in braces that neither foreach nor "
                "the config has; correct it, put what it names back, or set enabled: false there."
            ) from error

    def _need(self, there: bool, what: str) -> None:
        if not there:
            raise self.missing(what)

    def _check(self) -> None:
        entry, config = self.entry, self.config
        lists = entry.scores, entry.points, entry.security, entry.rank, entry.trained
        shown = [entry.experiment] if entry.experiment else []
        for name in itertools.chain(shown, *lists, entry.experiments):
            self._need(name in config.experiments, f"experiments.{name}")
        for where in shown:
            for attack in [*(entry.attacks or ()), *entry.unseen]:
                there = attack in config.experiments[where].attacks
                self._need(there, f"attacks: {attack} in experiments.{where}")
        models = {*config.models, *config.groups, *config.families}
        for name in [*entry.initial, *entry.compared, *(entry.names or ())]:
            self._need(name in models, f"models.{name}")
        if entry.targets is not None:
            self._need(entry.targets in config.targets, f"targets.{entry.targets}")
        for name in [*entry.tables, *([entry.table] if entry.table else [])]:
            self._need(name in self.results.entries["tables"], f"the table {name}")

    def _files(self) -> Files:
        entry, paths = self.entry, self.paths
        files: Files = {}
        if entry.panels:
            files |= self._panel_files()
        if entry.curves:
            files["curves"] = [self.trained(one, ".curve.csv") for one in self.curves]
            files["summaries"] = [self.trained(one, ".csv") for one in self.curves]
        if entry.experiment:
            files["targets"] = paths.targets_of(entry.experiment)
            files["scores"] = self._shown(entry.experiment)
            files["reconstructions"] = [paths.reconstruction_of(path) for path in files["scores"]]
        chosen = entry.models
        more = {
            "targets": entry.targets and paths.targets.format(targets=entry.targets),
            "scores": entry.scores
            and paths.scores(*entry.scores, attacks=entry.attacks, models=chosen),
            "points": entry.points and paths.scores(*entry.points),
            "security": entry.security
            and paths.by_model(paths.security, *entry.security, models=chosen),
            "rank": entry.rank and paths.by_model(paths.rank, *entry.rank, models=chosen),
            "trained": entry.trained and paths.summaries(*entry.trained),
            "initial": [paths.model.format(model=name) for name in entry.initial],
            "dataset": entry.dataset and paths.dataset(entry.dataset, entry.split),
            "table": entry.table and table_path(entry.table),
            "tables": [table_path(name) for name in entry.tables],
        }
        found = {key: value for key, value in more.items() if getattr(entry, key)}
        if entry.initial:
            found["models"] = found.pop("initial")
        return files | found

    def _words(self) -> Words:
        entry = self.entry
        words: Words = self.fill(entry.words)
        if entry.heading is not None:
            words["title"] = self.fill(entry.heading)
        if entry.note is not None:
            note = self.fill(entry.note)
            words["note"] = note if isinstance(note, str) else " ".join(note)
        if isinstance(entry.attacks, dict):
            words["attacks"] = entry.attacks
        if entry.names is not None and entry.experiment:
            experiment = self.config.experiments[entry.experiment]
            members = [one for model in experiment.models for one in self.config.members(model)]
            words["chains"] = [self.config.chain(member).describe() for member in members]
            words["names"] = entry.names
            defences = self.config.defences
            words["defences"] = {name: noise(defences[name]) for name in experiment.defences}
        elif entry.models is not None and entry.experiment:
            words["models"] = self.paths.models(entry.experiment, entry.models)
        for key in ("rows", "columns"):
            if getattr(entry, key):
                words[key] = [
                    {part: self.fill(line[part]) for part in SHOWN if part in line}
                    for line in getattr(entry, key)
                ]
        if entry.panels:
            words["panels"] = self.panels
        if entry.curves:
            words["curves"] = self.curves
        return words

    def _looped(self, loops: Sequence[Part]) -> Iterator[tuple[Part, dict[str, Any]]]:
        """Yield each combination of row, column and `foreach`, with its names and positions."""
        for loop in loops:
            for row, across in _lines(self.entry.rows, "row"):
                for column, down in _lines(self.entry.columns, "column"):
                    for names in combinations(loop.foreach):
                        found = {**row, **column, **names}
                        # Names may refer to others.
                        found = {key: self.fill(value, found) for key, value in found.items()}
                        if not any(_fits(found, skipped) for skipped in loop.skip):
                            yield loop, {**found, "_place": {**across, **down}}

    @property
    def panels(self) -> list[dict[str, Any]]:
        """Panels of the figure, one attack on one network each."""
        found = []
        for loop, names in self._looped(self.entry.panels):
            experiment = self.fill(loop.experiment, names)
            found.append(
                {
                    "title": self.fill(loop.title, names),
                    "experiment": experiment,
                    "attack": self._attack(experiment, self.fill(loop.attack, names)),
                    "model": self.fill(loop.model, names),
                    "defence": self.fill(loop.defence, names),
                    **self.fill(loop.more, names),
                    **names["_place"],
                }
            )
        return found

    def _attack(self, experiment: str, attacks: str | list[str]) -> str:
        self._need(experiment in self.config.experiments, f"experiments.{experiment}")
        choices = [attacks] if isinstance(attacks, str) else attacks
        found = [name for name in choices if name in self.config.experiments[experiment].attacks]
        self._need(bool(found), f"attacks: {choices[-1]} in experiments.{experiment}")
        return found[0]

    @property
    def curves(self) -> list[dict[str, Any]]:
        """Training curves, one network each."""
        found = []
        for loop, names in self._looped(self.entry.curves):
            training, model = self.fill(loop.training, names), self.fill(loop.model, names)
            self._need(training in self.config.trainings, f"trainings.{training}")
            self._need(model in self.config.models, f"models.{model}")
            more = self.fill(loop.more, names)
            found.append({"training": training, "model": model, **more, **names["_place"]})
        return found

    def trained(self, curve: Mapping[str, Any], end: str = ".safetensors") -> str:
        """Return a file of a training: weights, or another file with the same stem."""
        model = trained_with(self.config.groups, curve["model"])
        path = self.paths.trained.format(training=curve["training"], model=model)
        return path.removesuffix(".safetensors") + end

    def _shown(self, name: str) -> list[str]:
        experiment = self.config.experiments[name]
        return [
            self.paths.score.format(experiment=name, model=model, defence=defence, attack=attack)
            for model in self.paths.models(name, self.entry.models)
            for defence in experiment.defences
            for attack in [*(self.entry.attacks or experiment.attacks), *self.entry.unseen]
        ]

    def _panel_files(self) -> Files:
        files: Files = {"targets": [], "reconstructions": [], "scores": []}
        for panel in self.panels:
            where, entry = panel["experiment"], self.config.experiments[panel["experiment"]]
            models = [m for m in entry.models if panel["model"] in self.config.members(m)]
            self._need(bool(models), f"models: {panel['model']} in experiments.{where}")
            there = panel["defence"] in entry.defences
            self._need(there, f"defences: {panel['defence']} in experiments.{where}")
            cell = {key: panel[key] for key in ("experiment", "defence", "attack")}
            score = self.paths.score.format(model=models[0], **cell)
            files["targets"].append(self.paths.targets.format(targets=entry.targets))
            files["reconstructions"].append(self.paths.reconstruction_of(score))
            files["scores"].append(score)
        return files


def _lines(lines: Sequence[Mapping[str, Any]], key: str) -> Iterator[tuple[dict, dict]]:
    """Rows or columns that show attacks, with positions; a single one without position if none."""
    if not lines:
        yield {}, {}
    for place, line in enumerate(lines):
        if not line.get("original"):
            yield dict(line), {key: place}


def _fits(names: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """True if each name has the wanted value, or one of the wanted values."""
    lists = {key: v if isinstance(v, list) else [v] for key, v in wanted.items()}
    return all(names.get(key) in values for key, values in lists.items())


def trained_with(groups: Mapping[str, Sequence[str]], model: str) -> str:
    """Return the group that a network is trained in, or its own id."""
    paper = model.partition("_")[0]
    found = [group for group, members in groups.items() if model in members]
    return next((group for group in found if group.startswith(f"{paper}_")), model)


def noise(defence: Any) -> str:
    """Describe the amount of noise that a defence adds."""
    level = getattr(defence, "level", None)
    if not level:
        return "no noise"
    return f"noise {100 * level:g} %" if defence.relative else f"noise {level:g}"
