"""Inputs and parameters of the audit's rules, as functions of their wildcards."""

from pathlib import Path
from typing import Any

from gradleak.config.audit import DatasetSamples
from gradleak.pipeline import shared_cache
from gradleak.pipeline.inputs import Settings, plain
from gradleak.pipeline.paths import Paths

# Keys that decide only whether an audit passes.
GATE = ("limit", "baseline", "counts")


def _there(path: str | None) -> list[str]:
    """A user's file as an input; where it is missing, the script says what to do."""
    return [path] if path and Path(path).is_file() else []


class Audits:
    """The entries of `audit`."""

    def __init__(self, paths: Paths) -> None:
        self.paths, self.entries = paths, paths.config.audit
        # Those with something to pass.
        self.gated = [n for n, e in self.entries.items() if e.limit is not None or e.baseline]

    def files(self, wildcards: Any) -> dict[str, list[str]]:
        """Files that an audit reads: the network's, its weights, its images."""
        entry = self.entries[wildcards.audit]
        network = _there(getattr(entry.network, "file", None))
        found = {"network": network, "weights": _there(entry.weights), "dataset": []}
        if isinstance(entry.samples, DatasetSamples):
            found["dataset"] = [self.paths.dataset(entry.samples.dataset, entry.samples.split)]
        return found

    def settings(self, wildcards: Any) -> Settings:
        """Entry of `audit`, less what decides whether it passes."""
        entry = plain(self.paths.config, "audit", wildcards.audit)
        return {key: value for key, value in entry.items() if key not in GATE}

    def listing(self, wildcards: Any) -> str | None:
        """Stand-in for a folder of the user's own images: Snakemake cannot hash a folder."""
        return shared_cache.listing(getattr(self.entries[wildcards.audit].samples, "folder", None))

    def baseline_file(self, wildcards: Any) -> list[str]:
        """Earlier result that an audit is held against."""
        return _there(self.entries[wildcards.audit].baseline)

    def value(self, key: str) -> Any:
        """Function of wildcards that gives a setting of the entry."""
        return lambda wildcards: getattr(self.entries[wildcards.audit], key)
