"""Hints of a run beyond its jobs: locations of data and results, similar targets."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.config.loader import ROOT_VARIABLE
from gradleak.data.catalogue import CATALOGUE, IMAGES
from gradleak.settings.fields import SCALES
from gradleak.settings.validation_messages import closest, nearest

# Largest number of paths listed one by one at a run's end; of more, the folders.
MOST_PATHS = 12
# A wildcard of an output, with the values that it may have.
WILDCARD = re.compile(r"\{\w+(?:,([^{}]*))?\}")
CONSTRAINT = re.compile(r"(?<=\w),[^{}]*(?=\})")
IDS = re.compile(r"\w+(\|\w+)*")  # such as a|b
# Images and scale of a run, in paths of its files.
CASE = re.compile(
    rf"results/(?P<folder>\w+)/(?:(?P<images>{'|'.join(IMAGES)})-)?(?P<scale>{'|'.join(SCALES)})/"
)
SETTINGS = ("images", "scale")
EMBEDDED = tuple(name for name, info in CATALOGUE.items() if info.source == "embedded")


def data_line(root: str) -> str:
    """Sentence on where this run looks for data sets, and how to change that."""
    return (
        f"Data sets are looked for in {Path(root).absolute()}; for another folder set "
        f"{ROOT_VARIABLE}, or --config 'data={{root: FOLDER}}'."
    )


def wants_data(jobs: Iterable[Any], root: str) -> bool:
    """Return whether one of these jobs reads or makes a file of `root` that is not embedded."""
    folder = Path(root)
    return any(
        Path(path).is_relative_to(folder) and not Path(path).name.startswith(EMBEDDED)
        for job in jobs
        for path in map(str, (*job.input, *job.output))
    )


def unknown(target: str, rules: Collection[Any], root: str) -> str:
    """Sentence on a target that no rule makes, with the most similar one, of its kind if any is.

    Or with what to put into ``--config``, if a run of other images or of another scale makes it.
    `root` is the folder of the data sets.
    """
    outputs = [str(path) for rule in rules for path in rule.output]
    if said := _other_case(target, outputs):
        return said
    known = {rule.name for rule in rules if not rule.has_wildcards()}
    inputs = (path for rule in rules for path in rule.input)
    known |= {str(path) for path in inputs if isinstance(path, str) and "{" not in path}
    known |= {
        str(Path(root) / f"{name}-{split}.safetensors")
        for name, info in CATALOGUE.items()
        for split in info.splits
    }
    patterns = [_Pattern.of(path) for path in outputs]
    known |= {path for pattern in patterns for path in pattern.paths()}
    kind = [path for pattern in patterns if (path := pattern.meant(target)) is not None]
    said = f"gradleak: No rule makes '{target}'{nearest(target, kind or sorted(known))}"
    return f"{said}; README.md lists what can be asked for, docs/targets.md the files between."


def with_wildcards(targets: Iterable[str], rules: Collection[Any]) -> str:
    """Sentence on a rule given as a target that makes one of many files; empty without one."""
    asked = set(targets)
    for rule in rules:
        if rule.name in asked and rule.has_wildcards():
            path = CONSTRAINT.sub("", rule.output[0])
            return (
                f"gradleak: '{rule.name}' is a rule for many files, {path}; ask for one of them "
                "(docs/targets.md)."
            )
    return ""


def _other_case(target: str, outputs: Iterable[str]) -> str:
    """Say that a run of other images or of another scale makes a target; empty if none does."""
    found = CASE.match(target)
    for path in outputs:
        known = CASE.match(path)
        if found is None or known is None or known["folder"] != found["folder"]:
            continue
        own, asked = (" ".join(f"{k}={m[k]}" for k in SETTINGS if m[k]) for m in (known, found))
        alike = _Pattern.of(path[known.end() :]).match(target[found.end() :])
        if alike and own != asked and own.count("=") == asked.count("="):
            return (
                f"gradleak: '{target}' is of {asked}, and this run of {own}; put {asked} into its "
                "--config."
            )
    return ""


@dataclass(frozen=True)
class _Pattern:
    """Path of an output: `texts`, and between them wildcards, each with the ids it may have."""

    texts: list[str]
    ids: list[list[str]]  # none for a wildcard that may be anything

    @staticmethod
    def of(path: str) -> "_Pattern":
        parts = WILDCARD.split(path)
        ids = [part.split("|") if part and IDS.fullmatch(part) else [] for part in parts[1::2]]
        return _Pattern(parts[::2], ids)

    def paths(self) -> list[str]:
        """All paths, of a pattern with at most one wildcard, which has ids."""
        if len(self.ids) == 1:
            return [one.join(self.texts) for one in self.ids[0]]
        return [] if self.ids else self.texts

    def match(self, target: str) -> re.Match[str] | None:
        """Values of the wildcards, whatever ids they may have; None for a path of another kind."""
        return re.fullmatch("([^/]+)".join(map(re.escape, self.texts)), target)

    def meant(self, target: str) -> str | None:
        """Path that was meant; empty if no id is similar, None if `target` is of another kind."""
        found = self.match(target)
        if found is None or not any(self.ids):
            return None
        named = [
            closest(value, ids) if ids else value
            for value, ids in zip(found.groups(), self.ids, strict=True)
        ]
        pairs = zip(self.texts, [*named, ""], strict=True)
        return "".join(map("".join, pairs)) if all(named) else ""


def asked_for(jobs: Iterable[Any], targets: Iterable[str]) -> list[str]:
    """Files that stand for targets: themselves, or the outputs or inputs of a rule."""
    named = set(targets)
    files: set[str] = set()
    for job in jobs:
        made = {str(path) for path in job.output}
        files |= made & named or made or {str(path) for path in job.input}
    return sorted(files)


def shortened(paths: list[str]) -> list[str]:
    """One path a line; the folders of more than `MOST_PATHS` with the number of their files."""
    if len(paths) <= MOST_PATHS:
        return paths
    folders: dict[str, list[str]] = {}
    for path in paths:
        folders.setdefault(str(Path(path).parent), []).append(path)
    return [f"{at}/ ({len(own)} files)" if len(own) > 1 else own[0] for at, own in folders.items()]
