"""What the rules of figures and tables ask for, as functions of their wildcards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from gradleak.config import PAPERS
from gradleak.errors import ConfigError
from gradleak.pipeline.paths import Paths
from gradleak.provenance import code_hash
from gradleak.results.expand import Results
from gradleak.results.schema import NAME, Entry, load


class Asked:
    """One kind of results: each method takes the wildcards of a job, of which one is `result`.

    Parameters
    ----------
    results
        All results.
    kind
        Which of them: ``figures`` or ``tables``.
    """

    def __init__(self, results: Results, kind: str) -> None:
        self.results, self.kind = results, kind

    def _entry(self, wildcards: Any) -> Entry:
        return self.results.entries[self.kind][wildcards.result]

    def files(self, wildcards: Any) -> dict[str, Any]:
        """Input files by name."""
        try:
            return self.results.needs(self.kind, wildcards.result).files
        except ConfigError as error:
            # Of this one Snakemake shows the sentence alone, less what led to it.
            raise WorkflowError(str(error)) from None

    def words(self, wildcards: Any) -> dict[str, Any]:
        """What the module is told beside its files."""
        return self.results.needs(self.kind, wildcards.result).words

    def make(self, wildcards: Any, output: Any) -> str:
        """Module that draws or computes it.

        Snakemake does not compare parameters that depend on the output, such as this and the
        caption: `code` tells whether the module has changed.
        """
        return self._entry(wildcards).make

    def code(self, wildcards: Any) -> str:
        """Code of this result alone."""
        return code_hash(self._entry(wildcards).make)

    def caption(self, wildcards: Any, output: Any) -> str:
        """What to see in it; see `make`."""
        entry = self._entry(wildcards)
        return f"{entry.title}\n{'=' * len(entry.title)}\n\n{entry.caption}"

    def category(self, wildcards: Any) -> str:
        """Its paper."""
        return self.results.paper(wildcards.result).title

    def labels(self, wildcards: Any) -> dict[str, str]:
        """What Snakemake's report calls it."""
        return {"result": self.results.title(self.kind, wildcards.result)}


def read(folder: Path, paths: Paths, claims: Any) -> Results:
    """Results of all papers that have some in a folder.

    Raises
    ------
    ConfigError
        If a file of them cannot be read, or has an entry that is none.
    """
    files = {paper: folder / paper / NAME for paper in PAPERS}
    files = {paper: path for paper, path in files.items() if path.exists()}
    papers = {paper: load(path) for paper, path in files.items()}
    return Results(papers, paths, claims, list(map(str, files.values())))
