"""Load config.yaml as a whole; refuse unknown keys, ids and impossible combinations."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gradleak.config.experiment_checks import check_experiment, check_targets, check_weights
from gradleak.config.schema import Config
from gradleak.config.yaml_checks import with_included
from gradleak.errors import ConfigError
from gradleak.runtime.artifacts import no_folder
from gradleak.settings.validation_messages import check_known, nearest, sentence

# Folder of the data sets; overrides config.yaml and is overridden by the command line.
ROOT_VARIABLE = "GRADLEAK_DATA_ROOT"


def with_data_root(
    raw: dict[str, Any], given: Mapping[str, Any], root: str | None
) -> dict[str, Any]:
    """Take `data: root:` from the environment, unless the command line (`given`) sets it."""
    theirs, data = given.get("data"), raw.get("data")
    set_there = isinstance(theirs, Mapping) and "root" in theirs
    if not root or set_there or not isinstance(data, Mapping | None):
        return raw
    return {**raw, "data": {**(data or {}), "root": root}}


def load(raw: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Config:
    """Validate a parsed config.yaml and the files that it includes; amounts become numbers.

    `given` are the keys of other files and options that `raw` was merged from, the last one on top.
    Raises `ConfigError` naming file, first bad key, value and remedy; further ones are counted.
    """
    try:
        whole, files = with_included(raw)
    except ConfigError as error:
        place = f"{_file('include', {}, given)}: include"
        raise ConfigError(str(error).replace("config.yaml: include", place, 1)) from None
    try:
        config = Config.resolve({**whole, "include": raw.get("include", [])})
        _check_ids(config)
        for name in config.models:
            _ = config.chain(name).layers
        for name, experiment in config.experiments.items():
            made_from = {a: config.attacks[a].made_from for a in experiment.attacks}
            run = dict.fromkeys(one for a, others in made_from.items() for one in (a, *others))
            check_experiment(config, name, run)
    except (ConfigError, ValidationError) as error:
        words = sentence(error, Config) if isinstance(error, ValidationError) else str(error)
        named = re.match(r"(?:unknown )?(?:key ')?(\w+(?:\.\w+)*)", words)
        path = named[1] if named else ""
        words = words.replace("is missing; add it", f"is missing; add it{_misspelt(path, whole)}")
        raise ConfigError(f"{_file(path, files, given)}: {words}") from error
    return config


def _misspelt(path: str, whole: Mapping[str, Any]) -> str:
    """Say that the id of an entry that lacks a key may be another one, misspelt."""
    section, _, rest = path.partition(".")
    name, _, key = rest.partition(".")
    whole_entry = key and "." not in key and section in whole
    close = nearest(name, whole[section]) if whole_entry else ""
    return f", or correct '{name}'{close}" if close else ""


def _file(path: str, files: Mapping[str, str], given: Mapping[str, Any] | None) -> str:
    """Name the file or option that a key was last set in, or at least the entry that lacks it."""
    keys = path.split(".")
    for depth in sorted({len(keys), min(len(keys), 2)}, reverse=True):
        for name, content in reversed(list((given or {}).items())):
            if _holds(content, keys[:depth]):
                return name
    return files.get(".".join(keys[:2]), "config.yaml")


def _holds(content: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            return False
        content = content[key]
    return True


def check_root(root: str, given: Mapping[str, Any] | None = None) -> None:
    """Raise `ConfigError` if `data: root:` can be no folder; `given` as in `load`."""
    # One that exists need not be writable: it may hold all arrays.
    if not Path(root).is_dir() and (reason := no_folder(Path(root))):
        raise ConfigError(
            f"{_file('data.root', {}, given)}: data.root: {root} {reason}; give a folder, there "
            "or by --config 'data={root: FOLDER}'."
        )


def schema() -> dict[str, Any]:
    """JSON Schema of config.yaml and of the files that it includes, for editors."""
    # Each file holds a part of the keys.
    return {key: value for key, value in Config.model_json_schema().items() if key != "required"}


def _check_ids(config: Config) -> None:
    kinds: list[tuple[str, Mapping[str, Any]]]
    kinds = [("model", config.models), ("family", config.families), ("group", config.groups)]
    for (one, names), (other, others) in combinations(kinds, 2):
        for name in sorted(set(names) & set(others)):
            raise ConfigError(f"{name} is both a {one} and a {other}; rename one.")
    networks = [*config.models, *config.families, *config.groups]
    for name, members in config.groups.items():
        check_known(f"groups.{name}", members, config.models)
    for name, experiment in config.experiments.items():
        for key, values, known in (
            ("paper", [experiment.paper], config.papers),
            ("targets", [experiment.targets], config.targets),
            ("models", experiment.models, networks),
            ("defences", experiment.defences, config.defences),
            ("attacks", experiment.attacks, config.attacks),
            ("server", [experiment.server], config.servers),
        ):
            check_known(f"experiments.{name}.{key}", values, known)
        check_weights(config, name)
    for name in config.targets:
        check_targets(config, name)
    _check_attacks(config)


def _check_attacks(config: Config) -> None:
    """Check ids named by attacks; an attack may be made only from one that needs no other."""
    for name, entry in config.attacks.items():
        where = f"attacks.{name}"
        for key in sorted(entry.model_fields_set):
            if type(entry).model_fields[key].exclude:
                raise ConfigError(f"key '{where}.{key}' does not belong here; remove it.")
        if (why := entry.contradiction()) is not None:
            raise ConfigError(f"{where}: {why}.")
        for key, known in (("own_images", config.targets), ("generator", config.generators)):
            if (named := getattr(entry, key, None)) is not None:
                check_known(f"{where}.{key}", [named], known)
                if key == "own_images" and (size := config.targets[named].batch) > 1:
                    raise ConfigError(
                        f"{where}.own_images: {named} has batches of {size}, but a search starts "
                        "from single images; choose targets without batch."
                    )
        plain = [(other, e) for other, e in config.attacks.items() if not e.postprocesses]
        choices = [other for other, e in plain if entry.postprocesses or not e.made_from]
        for made in entry.made_from:
            if made in config.attacks and made not in choices:
                raise ConfigError(
                    f"{where}.of: {made} is itself made from another attack; choose one that is "
                    f"not: {', '.join(choices)}."
                )
        check_known(f"{where}.of", entry.made_from, choices)
        giving = [other for other, e in config.attacks.items() if e.gives_twins]
        for of in entry.made_from if getattr(entry, "answer", "answer") == "twin" else ():
            if of not in giving:
                raise ConfigError(
                    f"{where}.answer: twin, but {of} gives no twin data; choose of: "
                    f"{' or '.join(giving) or 'an attack of method: rgap'}, or take answer out."
                )
