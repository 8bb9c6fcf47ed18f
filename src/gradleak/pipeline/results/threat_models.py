"""Threat models of figures and tables: what the attackers behind their files have."""

from collections.abc import Iterable, Iterator

from gradleak.attacks.threat_models import Letter, under
from gradleak.config.schema import Config
from gradleak.pipeline.results.expand import KINDS, Results

# Files of an attack: results/scores/{case}/{experiment}/{model}/{defence}/{attack}.csv
ATTACKED = ("scores", "reconstructions")


def letters(results: Results, wildcards: object = None) -> dict[str, str]:
    """Return the letters of each figure and table that shows an attack, by its name."""
    found = {}
    for kind in KINDS:
        for name in results.entries[kind]:
            files = _paths(results.needs(kind, name).files.values())
            shown = {_letter(results.config, path) for path in files} - {None}
            if shown:
                found[name] = ", ".join(sorted(map(str, shown)))
    return found


def of_attack(config: Config, experiment: str, attack: str) -> Letter:
    """Return the letter of an attack in an experiment."""
    entry = config.attacks[attack]
    # What is made of other attacks' images needs what these need.
    own = max([entry.threat, *(config.attacks[name].threat for name in entry.made_from)])
    return under(own, server=config.experiments[experiment].server != "honest")


def _letter(config: Config, path: str) -> Letter | None:
    parts = path.split("/")
    if len(parts) < 4 or parts[1] not in ATTACKED:
        return None
    attack = parts[-1].partition(".")[0]
    return of_attack(config, parts[3], attack) if attack in config.attacks else None


def _paths(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from _paths(value)
