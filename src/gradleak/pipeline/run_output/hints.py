"""Hints of a run beyond its jobs: locations of data and results, similar targets."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from gradleak.config.loader import ROOT_VARIABLE
from gradleak.data.catalogue import CATALOGUE
from gradleak.settings.validation_messages import nearest

# Largest number of paths listed one by one at a run's end; of more, the folders.
MOST_PATHS = 12
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


def unknown(target: str, rules: Collection[Any]) -> str:
    """Sentence on a target that no rule makes, with the most similar one."""
    known = {rule.name for rule in rules if not rule.has_wildcards()}
    paths = (path for rule in rules for path in (*rule.output, *rule.input))
    known |= {str(path) for path in paths if isinstance(path, str) and "{" not in path}
    said = f"gradleak: No rule makes '{target}'{nearest(target, sorted(known))}"
    return f"{said}; README.md lists what can be asked for, docs/targets.md the files between."


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
