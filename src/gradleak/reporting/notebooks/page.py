"""HTML page of an executed notebook, self-contained."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from gradleak.errors import NotebookError
from gradleak.reporting.notebooks.source import IMAGES
from gradleak.reporting.pages import FOLDER
from gradleak.runtime.artifacts import atomic

# A relative link, valid only from the notebook's folder.
RELATIVE = re.compile(r"^(?![a-z][a-z0-9+.-]*:|[/#])", re.IGNORECASE)
# An image in HTML: text before its address, quotation mark, address.
TAG = re.compile(r"""(<img\b[^>]*?\bsrc\s*=\s*)(["'])(.*?)\2""", re.IGNORECASE | re.DOTALL)
# Two or more columns: spaces between words that align vertically.
COLUMNS = re.compile(r"\S {2,}\S")


class Renderer(IPythonRenderer):
    """Markdown with equations as MathML, embedded images, and links relative to the page."""

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(escape=False, **options)
        self._place = place

    def block_math(self, body: str) -> str:
        """Render a display equation."""
        # On a narrow screen it scrolls, also by keyboard.
        attributes = 'class="equation" role="group" aria-label="Equation" tabindex="0"'
        return f"<div {attributes}>{self._place.math(body, 'block')}</div>"

    def inline_math(self, body: str) -> str:
        """Render an inline equation."""
        return self._place.math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        """Render a LaTeX environment such as ``align``."""
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Render a link."""
        return str(super().link(text, self._place.link(url), title))

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """Embed an image."""
        return str(super().image(text, self._place.image(url), title))

    def block_html(self, html: str) -> str:
        """Render block HTML."""
        return str(super().block_html(self._place.images(html)))

    def inline_html(self, html: str) -> str:
        """Render inline HTML."""
        return str(super().inline_html(self._place.images(html)))


class Place:
    """Paths of a notebook and its page."""

    def __init__(self, notebook: Path, page: Path) -> None:
        self._notebook, self._page = notebook, page

    def link(self, url: str) -> str:
        """Convert a link of the notebook to one relative to the page."""
        if not RELATIVE.match(url):
            return url
        target = self._notebook.resolve().parent / url
        return Path(os.path.relpath(target, self._page.resolve().parent)).as_posix()

    def image(self, url: str) -> str:
        """Return an image as a data URI, since the page loads no files.

        Raises `NotebookError` unless it is a readable file beside the notebook, in a format that
        browsers show.
        """
        if url.lower().startswith("data:"):
            return url
        file = self._notebook.resolve().parent / unquote(url)
        kind = IMAGES.get(file.suffix.lower())
        if not RELATIVE.match(url) or kind is None:
            raise NotebookError(
                f"{self._notebook}: the image '{url}' cannot become part of the page; keep it as a "
                f"file ({', '.join(IMAGES)}) in the notebook's folder and name that."
            )
        try:
            content = file.read_bytes()
        except OSError as error:
            raise NotebookError(
                f"{self._notebook}: the image '{url}' cannot be read ({error.strerror}); put the "
                "file there, or mend its name."
            ) from error
        return f"data:{kind};base64,{base64.b64encode(content).decode()}"

    def images(self, html: str) -> str:
        """Embed all images of HTML."""
        return TAG.sub(lambda tag: f"{tag[1]}{tag[2]}{self.image(tag[3])}{tag[2]}", html)

    def math(self, latex: str, display: str) -> str:
        """Convert an equation to MathML.

        Raises `NotebookError` at commands that the converter does not know and would write out.
        """
        found: str = convert(latex.strip(), display=display)
        unknown = re.search(r"\\[A-Za-z]+", found)
        if unknown:
            raise NotebookError(
                f"{self._notebook}: {unknown[0]} in the equation '{latex.strip()}' is not known to "
                "latex2mathml; write it with another command."
            )
        return found


class Exporter(HTMLExporter):
    """nbconvert's HTML exporter with this project's template, MathML, and links from the page."""

    def __init__(self, place: Place) -> None:
        self._place = place
        super().__init__(
            template_name="notebook",
            extra_template_basedirs=[str(FOLDER)],
            exclude_anchor_links=True,
        )

    def default_filters(self) -> Iterable[tuple[str, Any]]:
        """Extend nbconvert's filters."""
        yield from super().default_filters()
        yield "has_columns", has_columns

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Convert Markdown to HTML."""
        renderer = Renderer(self._place, exclude_anchor_links=True)
        return str(MarkdownWithMath(renderer=renderer).render(source))


def write(
    notebook: NotebookNode, source: str | os.PathLike[str], page: str | os.PathLike[str]
) -> None:
    """Write the page of an executed notebook.

    Parameters
    ----------
    notebook
        With outputs.
    source, page
        Path of the stored notebook, and of the page to write.

    Raises
    ------
    NotebookError
        If an equation or an image cannot be shown, or the notebook has no title.
    ArtifactError
        If the page cannot be written; no partial file is left.
    """
    exporter = Exporter(Place(Path(source), Path(page)))
    resources = {"title": title_of(notebook, source), "stem": Path(source).stem}
    html, _ = exporter.from_notebook_node(notebook, resources=resources)
    with atomic(page) as temporary:
        temporary.write_text(html, encoding="utf-8")


def has_columns(text: str) -> bool:
    """True if printed text is a table, which line wrapping would break."""
    return COLUMNS.search(text) is not None


def title_of(notebook: NotebookNode, source: str | os.PathLike[str]) -> str:
    """Return the heading in the notebook's first line; raise `NotebookError` if it has none."""
    first = notebook.cells[0] if notebook.cells else None
    heading = re.match(r"# +(.+)", first.source) if first is not None else None
    if heading is None or first is None or first.cell_type != "markdown":
        raise NotebookError(f"{source} does not begin with a heading '# …'; add one.")
    return heading[1].strip()
