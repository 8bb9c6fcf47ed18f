"""Text of config files, checked before Snakemake reads it, and merged from several files.

Of two equal keys Snakemake takes the last. It reports invalid YAML without line or reason, and runs
Python expressions in a file that says ``__use_yte__: true``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from gradleak.errors import ConfigError
from gradleak.runtime.provenance import TREE

STANDARD = "tag:yaml.org,2002:"
# Key that makes Snakemake treat a file as a template and run its expressions.
TEMPLATE = "__use_yte__"
MERGE = f"{STANDARD}merge"  # merge keys, which YAML replaces by the entries of other mappings
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


def read(path: str | Path) -> dict[str, Any]:
    """Keys of a YAML or JSON file; `ConfigError` naming its line if it is none, or not safe."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(
            f"{path} is not a regular file; give a file with the keys of config.yaml."
        )
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


def typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read numbers, truth values and null, which Snakemake leaves as text in ``key={...}``.

    Below ``data`` are folders and addresses: only null is read there.
    """
    kinds = int | float | None
    return {
        key: _typed(value, type(None) if key == "data" else kinds) for key, value in given.items()
    }


def _typed(content: Any, kinds: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _typed(value, kinds) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_typed(value, kinds) for value in content]
    if isinstance(content, str) and content:
        with suppress(yaml.YAMLError):
            found = _Loader(content).get_single_data()
            return found if isinstance(found, kinds) else content
    return content


def with_included(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the entries of included files into a config; its own keys replace theirs.

    Returns the whole config without ``include``, and the file of each entry ``section.id`` that the
    config itself does not mention. Raises `ConfigError` naming a file that is missing, defines an
    id of another file, or holds anything but entries.
    """
    merged: dict[str, Any] = {}
    files: dict[str, str] = {}
    rest = {key: value for key, value in raw.items() if key != "include"}
    for name, path in included(raw.get("include", [])).items():
        for section, entries in read(path).items():
            if section in TOP or not isinstance(entries, dict):
                raise ConfigError(
                    f"{name}: '{section}' is not a section of entries; take it out, or put it into "
                    "config.yaml."
                )
            files.setdefault(section, name)
            for entry in entries:
                key = f"{section}.{entry}"
                if key in files:
                    raise ConfigError(f"{name}: {key} stands in {files[key]} too; take one out.")
                files[key] = name
            merged[section] = merged.get(section, {}) | entries
    for section, entries in rest.items():
        for entry in entries if isinstance(entries, Mapping) else ():
            files.pop(f"{section}.{entry}", None)
    return _merged(merged, rest), files


def included(names: Any) -> dict[str, Path]:
    """Included files by name; `names` may be patterns such as ``papers/*/paper.yaml``.

    Files of one pattern are in order of the years of their ``papers``, then of their names. They
    lie below the working folder, or else below the source tree.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("config.yaml: include: give a list of files, or leave it out.")
    found: dict[str, Path] = {}
    for name in names:
        where = f"config.yaml: include: {name}"
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ConfigError(f"{where} lies outside; give a path below the working folder.")
        if "*" in name:
            below = {p.relative_to(d).as_posix(): p for d in (TREE, Path()) for p in d.glob(name)}
            files = dict(sorted(below.items(), key=lambda file: (_year(file[1]), file[0])))
            lacking, what = "matches no file", "it"
        else:
            places = [path for path in (Path(name), TREE / name) if path.exists()]
            files = dict.fromkeys([name], places[0]) if places else {}
            lacking, what = "is missing", "the path"
        if not files:
            raise ConfigError(f"{where} {lacking}; correct {what}, or take it out.")
        found |= files
    return found


def _year(path: Path) -> int:
    """First year of the papers of a file; 0 if it has none."""
    papers = read(path).get("papers")
    entries = papers.values() if isinstance(papers, dict) else ()
    years = (entry.get("year") for entry in entries if isinstance(entry, dict))
    return min((year for year in years if isinstance(year, int)), default=0)


def _merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    found = {**base, **top}
    for key, value in top.items():
        if isinstance(value, Mapping) and isinstance(below := base.get(key), Mapping):
            found[key] = _merged(below, value)
    return found


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); correct that.") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{file}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file "
            "in UTF-8."
        ) from None
    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise ConfigError(
            f"{file}, line {line}: the control character {odd[0]!r} is not text; take it out."
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


def _twice(
    node: yaml.Node | None, path: tuple[str, ...] = (), seen: set[int] | None = None
) -> Iterator[tuple[int, str, int]]:
    """Duplicate keys of a mapping: line, full key, line of the first occurrence."""
    seen = set() if seen is None else seen
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, entry in enumerate(node.value):
            yield from _twice(entry, (*path, str(number)), seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                line, own = key.start_mark.line + 1, (key.tag, key.value)
                if own in lines:
                    yield line, ".".join((*path, key.value)), lines[own]
                lines.setdefault(own, line)
        for key, value in node.value:
            yield from _twice(value, (*path, str(key.value)), seen)


def _sentence(file: Path, text: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    where = f"{file}, line {line + 1}"
    shown, problem = "".join(text.splitlines()[line : line + 1]), str(error.problem)
    if "undefined alias" in problem:
        word = re.split(r"[\s,\]}]", shown[column:].removeprefix("*"))[0]
        return f"{where}: *{word} refers to nothing; define &{word} above it, or write a value."
    if "tag '" in problem:
        tag = problem.partition("tag '")[2].rstrip("'").replace(STANDARD, "!!")
        return f"{where}: the tag {tag} is not taken; write a plain value without it."
    if "\t" in shown[: column + 1]:
        return f"{where} is indented with a tab; indent with spaces."
    return f"{where} is not YAML ({problem}); correct it, or the lines above it."
