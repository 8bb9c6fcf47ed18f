"""Captions of papers, figures and tables, in reStructuredText."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from gradleak.errors import ConfigError
from gradleak.pipeline.results.schema import Entry, Paper, load

SETTINGS = {
    # Captions include no other files and no raw HTML.
    "file_insertion_enabled": False, "raw_enabled": False, "halt_level": 2, "report_level": 5,
    "embed_stylesheet": False, "math_output": "MathML", "smart_quotes": False,
}  # fmt: skip


class Caption(NamedTuple):
    """A title, and paragraphs as HTML."""

    title: str
    text: Markup


def read(source: Paper | Entry, place: str) -> Caption:
    """Render a caption; `ConfigError`, naming `place`, if it is not reStructuredText."""
    from docutils.core import publish_parts
    from docutils.utils import SystemMessage
    from docutils.writers.html5_polyglot import Writer

    try:
        parts = publish_parts(source.caption, writer=Writer(), settings_overrides=SETTINGS)
    except SystemMessage as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{place}: no valid reStructuredText ({reason}); correct it.") from error
    return Caption(source.title, Markup(str(parts["body"]).strip()))


class Captions:
    """Captions in results files, by kind (papers, figures, tables) and name; else the name."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._sources: dict[tuple[str, str], tuple[Paper | Entry, str]] = {}
        for path in paths:
            paper = load(path)
            self._sources["papers", path.parent.name] = paper, f"{path}: caption"
            for kind, entries in (("figures", paper.figures), ("tables", paper.tables)):
                for name, entry in entries.items():
                    self._sources[kind, name] = entry, f"{path}: {kind}.{name}.caption"

    def of(self, kind: str, name: str) -> Caption:
        """Return the caption of one item."""
        found = self._sources.get((kind, name))
        return Caption(str(escape(name)), Markup()) if found is None else read(*found)
