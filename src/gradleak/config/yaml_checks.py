"""Text of config files, checked before Snakemake reads it, and merged from several files.

Of two equal keys Snakemake takes the last. It reports invalid YAML without line or reason, and runs
Python expressions in a file that says ``__use_yte__: true``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gradleak.errors import ConfigError
from gradleak.runtime.provenance import TREE

STANDARD = "tag:yaml.org,2002:"
# Key that makes Snakemake treat a file as a template and run its expressions.
TEMPLATE = "__use_yte__"
# Merge keys, which YAML replaces by the entries of other mappings.
MERGE = f"{STANDARD}merge"
# Keys of config.yaml alone; all others are sections of entries, each with an id.
TOP = ("images", "scale", "device", "data", "include")

Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(Base):
    """Plain values only; impossible ones, such as a date of a 13th month, are reported by line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(
                None, None, str(error), node.start_mark
            ) from error


def check(path: str | Path) -> None:
    """Refuse a config file that Snakemake could not read in full; a missing one is left to it."""
    if Path(path).exists():
        read(path)


def read(path: str | Path) -> dict[str, Any]:
    """Keys of a config file, YAML or JSON.

    Raises `ConfigError` naming file and line if it is not UTF-8 or not YAML, has a duplicate key, a
    tag, an undefined alias, or asks for expressions to be run.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{path} is no regular file; give a file with the keys of config.yaml.")
    text = _text(file)
    try:
        content = _json(text, file)
        if content is not None:
            return content
        loader = _Loader(text)
        node = loader.get_single_node()
        for line, key, first in _twice(node):
            raise ConfigError(
                f"{path}, line {line}: key '{key}' stands in line {first} too, and only the last "
                "would count; take one out."
            )
        found = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_sentence(file, text, error)) from None
    except RecursionError:
        raise ConfigError(f"{path} nests its values too deeply; make them flat.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no keys; give it those of config.yaml.")
    if TEMPLATE in found:
        raise ConfigError(f"{path}: {TEMPLATE} would run what the file holds; take it out.")
    return found


def with_included(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the entries of included files into a config; its own keys replace theirs.

    `raw` is a parsed config.yaml, whose ``include`` lists files. Returns the whole config without
    ``include``, and the file of each entry ``section.id`` that the config itself does not mention.
    Raises `ConfigError` naming a file that is missing, defines an id of another file, or holds
    anything but entries.
    """
    merged: dict[str, Any] = {}
    files: dict[str, str] = {}
    rest = {key: value for key, value in raw.items() if key != "include"}
    for name, path in included(raw.get("include", [])).items():
        for section, entries in read(path).items():
            if section in TOP or not isinstance(entries, dict):
                raise ConfigError(
                    f"{name}: '{section}' is no section of entries; take it out, or put it into "
                    "config.yaml."
                )
            files.setdefault(section, name)
            for entry in entries:
                key = f"{section}.{entry}"
                if key in files:
                    raise ConfigError(f"{name}: {key} stands in {files[key]} too; take one out.")
                files[key] = name
            merged[section] = merged.get(section, {}) | entries
    own = {
        f"{section}.{entry}"
        for section, entries in rest.items()
        if isinstance(entries, Mapping)
        for entry in entries
    }
    return _merged(merged, rest), {key: name for key, name in files.items() if key not in own}


def included(names: Any) -> dict[str, Path]:
    """Included files by name; `names` may be patterns such as ``papers/*/paper.yaml``.

    Files of one pattern are in order of the years of their ``papers``, then of their names.
    """
    found: dict[str, Path] = {}
    for name in _listed(names):
        found |= _matching(name) if "*" in name else {name: _place(name)}
    return found


def _matching(pattern: str) -> dict[str, Path]:
    """Files of a pattern below the source tree, and those below the working folder before them."""
    _refuse_outside(pattern)
    files = {
        path.relative_to(folder).as_posix(): path
        for folder in (TREE, Path())
        for path in folder.glob(pattern)
    }
    if not files:
        raise ConfigError(
            f"config.yaml: include: {pattern} matches no file; correct it, or take it out."
        )
    years = {name: _year(path) for name, path in files.items()}
    return {name: files[name] for name in sorted(files, key=lambda name: (years[name], name))}


def _year(path: Path) -> int:
    """First year of the papers of a file; 0 if it has none."""
    papers = read(path).get("papers")
    entries = papers.values() if isinstance(papers, dict) else ()
    years = [entry.get("year") for entry in entries if isinstance(entry, dict)]
    return min((year for year in years if isinstance(year, int)), default=0)


def _refuse_outside(name: str) -> None:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(
            f"config.yaml: include: {name} lies outside; give a path below the working folder."
        )


def _place(name: str) -> Path:
    """Path of an included file: below the working folder, or else below the source tree's."""
    _refuse_outside(name)
    found = next((path for path in (Path(name), TREE / name) if path.exists()), None)
    if found is None:
        raise ConfigError(
            f"config.yaml: include: {name} is missing; correct the path, or take it out."
        )
    return found


def _listed(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("config.yaml: include: give a list of files, or leave it out.")
    return names


def _merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `top` over `base`, key by key at every depth."""
    found = dict(base)
    for key, value in top.items():
        below = found.get(key)
        deeper = isinstance(value, Mapping) and isinstance(below, Mapping)
        found[key] = _merged(below or {}, value) if deeper else value
    return found


def _text(file: Path) -> str:
    """Text of a file; raise `ConfigError` naming the line with a byte that is not UTF-8."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); correct that.") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{file}, line {line}: byte 0x{content[error.start]:02x} is no UTF-8; save the file in "
            "UTF-8."
        ) from None
    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise ConfigError(
            f"{file}, line {line}: the control character {odd[0]!r} is no text; take it out."
        )
    return text


def _json(text: str, file: Path) -> dict[str, Any] | None:
    """Keys of a JSON file, which Snakemake tries first; None if it is not JSON."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for number, (key, _) in enumerate(pairs):
            if key in dict(pairs[:number]):
                raise ConfigError(f"{file}: key '{key}' stands twice; take one out.")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _twice(root: yaml.Node | None) -> Iterator[tuple[int, str, int]]:
    """Duplicate keys of a mapping: line, full key, line of the first occurrence."""
    seen: set[int] = set()
    ahead: list[tuple[tuple[str, ...], yaml.Node | None]] = [((), root)]
    while ahead:
        path, node = ahead.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            entries: Iterable[tuple[str, yaml.Node]] = (
                (str(number), entry) for number, entry in enumerate(node.value)
            )
        elif isinstance(node, yaml.MappingNode):
            yield from _twice_here(path, node)
            entries = ((str(key.value), value) for key, value in node.value)
        else:
            continue
        # Pushed in reverse, so that the first in the file is visited first.
        ahead += reversed([((*path, name), value) for name, value in entries])


def _twice_here(path: tuple[str, ...], node: yaml.MappingNode) -> Iterator[tuple[int, str, int]]:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
            continue
        line = key.start_mark.line + 1
        if (key.tag, key.value) in lines:
            yield line, ".".join((*path, key.value)), lines[key.tag, key.value]
        else:
            lines[key.tag, key.value] = line


def _sentence(file: Path, text: str, error: yaml.MarkedYAMLError) -> str:
    """Turn a YAML error into one sentence."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    where = f"{file}, line {line + 1}"
    lines = text.splitlines()
    shown = lines[line] if line < len(lines) else ""
    problem = str(error.problem)
    if "undefined alias" in problem:
        name = re.match(r"\*?([^\s,\]}]*)", shown[column:])
        word = name[1] if name else ""
        return f"{where}: *{word} refers to nothing; define &{word} above it, or write a value."
    if "tag '" in problem:
        tag = problem.partition("tag '")[2].rstrip("'").replace(STANDARD, "!!")
        return f"{where}: the tag {tag} is not taken; write a plain value without it."
    if "\t" in shown[: column + 1]:
        return f"{where} is indented with a tab; indent with spaces."
    return f"{where} is no YAML ({problem}); correct it, or the lines above it."
