"""Captions: what a paper, figure or table is and what to see in it, as reStructuredText."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from docutils.core import publish_parts
from docutils.utils import SystemMessage
from docutils.writers.html5_polyglot import Writer
from markupsafe import Markup, escape

from gradleak.errors import ConfigError

SETTINGS = {
    # A caption is text: it reads no other file and brings no HTML of its own.
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "halt_level": 2,
    "report_level": 5,
    "embed_stylesheet": False,
    "math_output": "MathML",
    "smart_quotes": False,
}


@dataclass(frozen=True)
class Caption:
    """A title, and paragraphs as HTML."""

    title: str
    text: Markup


def read(path: Path) -> Caption:
    """Caption of a file: its title, underlined, and below it what to see.

    Parameters
    ----------
    path
        A file of `workflow/report/captions/`.

    Raises
    ------
    ConfigError
        If it cannot be read, is no reStructuredText, or lacks the title or the text.
    """
    try:
        source = path.read_text(encoding="utf-8")
        parts = publish_parts(
            source, source_path=str(path), writer=Writer(), settings_overrides=SETTINGS
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; give a readable caption.") from error
    except SystemMessage as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: no valid reStructuredText ({reason}); correct it.") from error
    title, body = str(parts["title"]), str(parts["body"]).strip()
    if not title or not body:
        raise ConfigError(
            f"{path}: {'text' if title else 'title'} is missing; write a title, underline it with "
            f"'=', and say below what to see."
        )
    return Caption(str(Markup(title).unescape()), Markup(body))


class Captions:
    """Captions of a folder, by kind (papers, figures, tables) and name.

    What has none (a fifth paper's, before it is written) is shown under its name alone.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._by_name = {(path.parent.name, path.stem): path for path in paths}

    def of(self, kind: str, name: str) -> Caption:
        """Caption of one thing."""
        path = self._by_name.get((kind, name))
        return Caption(str(escape(name)), Markup()) if path is None else read(path)
