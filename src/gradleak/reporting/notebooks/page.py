"""HTML page of an executed notebook, self-contained."""

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
from gradleak.runtime.artifacts import FilePath, atomic

# A relative link, valid only from the notebook's folder.
RELATIVE = re.compile(r"^(?![a-z][a-z0-9+.-]*:|[/#])", re.IGNORECASE)
# An image in HTML: text before its address, quotation mark, address.
TAG = re.compile(r"""(<img\b[^>]*?\bsrc\s*=\s*)(["'])(.*?)\2""", re.IGNORECASE | re.DOTALL)
# Two or more columns: spaces between words that align vertically.
COLUMNS = re.compile(r"\S {2,}\S")


class Renderer(IPythonRenderer):
    """Markdown of a notebook with MathML, embedded images, and links relative to its page."""

    def __init__(self, notebook: Path, page: Path) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self._notebook, self._page = notebook, page

    def block_math(self, body: str) -> str:
        """Render a display equation."""
        # On a narrow screen it scrolls, also by keyboard.
        attributes = 'class="equation" role="group" aria-label="Equation" tabindex="0"'
        return f"<div {attributes}>{self._math(body, 'block')}</div>"

    def inline_math(self, body: str) -> str:
        """Render an inline equation."""
        return self._math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        """Render a LaTeX environment such as ``align``."""
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """Render a link, relative to the page."""
        if RELATIVE.match(url):
            target = self._notebook.resolve().parent / url
            url = Path(os.path.relpath(target, self._page.resolve().parent)).as_posix()
        return str(super().link(text, url, title))

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """Embed an image."""
        return str(super().image(text, self._data(url), title))

    def block_html(self, html: str) -> str:
        """Render block HTML."""
        return str(super().block_html(self._embedded(html)))

    def inline_html(self, html: str) -> str:
        """Render inline HTML."""
        return str(super().inline_html(self._embedded(html)))

    def _embedded(self, html: str) -> str:
        return TAG.sub(lambda tag: f"{tag[1]}{tag[2]}{self._data(tag[3])}{tag[2]}", html)

    def _data(self, url: str) -> str:
        """Image as a data URI, since the page loads no files."""
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

    def _math(self, latex: str, display: str) -> str:
        """Equation as MathML, without commands that the converter would write out."""
        found: str = convert(latex.strip(), display=display)
        unknown = re.search(r"\\[A-Za-z]+", found)
        if unknown:
            raise NotebookError(
                f"{self._notebook}: {unknown[0]} in the equation '{latex.strip()}' is not known to "
                "latex2mathml; write it with another command."
            )
        return found


class Exporter(HTMLExporter):
    """nbconvert's HTML exporter with this project's template and Markdown."""

    def __init__(self, notebook: Path, page: Path) -> None:
        self._places = notebook, page
        options = {"extra_template_basedirs": [str(FOLDER)], "exclude_anchor_links": True}
        super().__init__(template_name="notebook", **options)

    def default_filters(self) -> Iterable[tuple[str, Any]]:
        """Extend nbconvert's filters."""
        yield from super().default_filters()
        # True if printed text is a table, which line wrapping would break.
        yield "has_columns", lambda text: COLUMNS.search(text) is not None

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Convert Markdown to HTML."""
        return str(MarkdownWithMath(renderer=Renderer(*self._places)).render(source))


def write(notebook: NotebookNode, source: FilePath, page: FilePath) -> None:
    """Write the page of an executed notebook; `NotebookError` if something cannot be shown."""
    exporter = Exporter(Path(source), Path(page))
    resources = {"title": title_of(notebook, source), "stem": Path(source).stem}
    html, _ = exporter.from_notebook_node(notebook, resources=resources)
    with atomic(page) as temporary:
        temporary.write_text(html, encoding="utf-8")


def title_of(notebook: NotebookNode, source: FilePath) -> str:
    """Return the heading in the notebook's first line; raise `NotebookError` if it has none."""
    first = [cell.source for cell in notebook.cells[:1] if cell.cell_type == "markdown"]
    heading = re.match(r"# +(.+)", first[0]) if first else None
    if heading is None:
        raise NotebookError(f"{source} does not begin with a heading '# …'; add one.")
    return heading[1].strip()
