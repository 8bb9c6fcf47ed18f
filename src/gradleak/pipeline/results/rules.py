"""Inputs and parameters of the rules for figures and tables."""

from pathlib import Path
from typing import Any

from gradleak.pipeline.paths import Paths
from gradleak.pipeline.results.expand import Results
from gradleak.pipeline.results.schema import NAME, Entry, load
from gradleak.runtime.provenance import code_hash


class Asked:
    """Results of one `kind`, ``figures`` or ``tables``; methods take a job's wildcards."""

    def __init__(self, results: Results, kind: str) -> None:
        self.results, self.kind = results, kind

    def _entry(self, wildcards: Any) -> Entry:
        return self.results.entries[self.kind][wildcards.result]

    def files(self, wildcards: Any) -> dict[str, Any]:
        """Input files by name."""
        return self.results.needs(self.kind, wildcards.result).files

    def words(self, wildcards: Any) -> dict[str, Any]:
        """Settings passed to the module."""
        return self.results.needs(self.kind, wildcards.result).words

    def make(self, wildcards: Any, output: Any) -> str:
        """Module that draws or computes the result.

        Snakemake does not compare parameters that depend on the output, such as this and the
        caption: `code` tells whether the module has changed.
        """
        return self._entry(wildcards).make

    def code(self, wildcards: Any) -> str:
        """Hash of the code of this result alone."""
        return code_hash(self._entry(wildcards).make)

    def caption(self, wildcards: Any, output: Any) -> str:
        """Caption of the result; see `make`."""
        entry = self._entry(wildcards)
        return f"{entry.title}\n{'=' * len(entry.title)}\n\n{entry.caption}"

    def category(self, wildcards: Any) -> str:
        """Category in Snakemake's report: the paper."""
        return self.results.paper(wildcards.result).title

    def labels(self, wildcards: Any) -> dict[str, str]:
        """Labels in Snakemake's report."""
        return {"result": self.results.title(self.kind, wildcards.result)}


class OfTraining:
    """Tables for claims of one training's curves; methods take a job's wildcards."""

    def __init__(self, results: Results) -> None:
        self.results = results

    @property
    def trainings(self) -> list[str]:
        """Ids of those that have such tables and no experiment of the same name."""
        config = self.results.config
        free = (name for name in config.trainings if name not in config.experiments)
        return [name for name in free if self.results.of_training(name)]

    def files(self, wildcards: Any) -> list[str]:
        """Curves and summaries that the tables are made from."""
        tables = self.results.of_training(wildcards.training).values()
        paths = (path for one in tables for group in one.files.values() for path in group)
        return list(dict.fromkeys(paths))

    def tables(self, wildcards: Any) -> dict[str, dict[str, Any]]:
        """Module, files and settings of each table."""
        return {
            name: {"make": self._make(name), "files": one.files, "words": one.words}
            for name, one in self.results.of_training(wildcards.training).items()
        }

    def code(self, wildcards: Any) -> list[str]:
        """Hashes of the code of each table."""
        return [code_hash(self._make(name)) for name in self.tables(wildcards)]

    def _make(self, name: str) -> str:
        return self.results.entries["tables"][name].make


def read(folder: Path, paths: Paths, claims: Any) -> Results:
    """Read the results of all papers in a folder; raise `ConfigError` for invalid files."""
    files = {paper: folder / paper / NAME for paper in paths.config.papers}
    papers = {paper: load(path) for paper, path in files.items() if path.exists()}
    return Results(papers, paths, claims, [str(files[paper]) for paper in papers])
