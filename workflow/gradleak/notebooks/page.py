"""The page of a notebook that was run: one HTML file that asks for nothing else."""

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

from gradleak.artifacts import atomic
from gradleak.errors import NotebookError
from gradleak.notebooks.source import IMAGES

TEMPLATES = Path(__file__).resolve().parents[2] / "report"
# A link that leads nowhere but from the notebook's own folder.
RELATIVE = re.compile(r"^(?![a-z][a-z0-9+.-]*:|[/#])", re.IGNORECASE)
# An image in HTML: what is before its address, the quotation mark, the address.
TAG = re.compile(r"""(<img\b[^>]*?\bsrc\s*=\s*)(["'])(.*?)\2""", re.IGNORECASE | re.DOTALL)
# Two columns or more: spaces between words that stand below one another.
COLUMNS = re.compile(r"\S {2,}\S")


class Renderer(IPythonRenderer):
    """Markdown with equations as MathML, images within, and links that hold from the page."""

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(escape=False, **options)
        self._place = place

    def block_math(self, body: str) -> str:
        """An equation of its own line."""
        # On a narrow screen it scrolls, by keys too.
        attributes = 'class="equation" role="group" aria-label="Equation" tabindex="0"'
        return f"<div {attributes}>{self._place.math(body, 'block')}</div>"

    def inline_math(self, body: str) -> str:
        """An equation within a line."""
        return self._place.math(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        """An environment of its own line, such as ``align``."""
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link."""
        return str(super().link(text, self._place.link(url), title))

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """An image, as part of the page."""
        return str(super().image(text, self._place.image(url), title))

    def block_html(self, html: str) -> str:
        """HTML of its own lines."""
        return str(super().block_html(self._place.images(html)))

    def inline_html(self, html: str) -> str:
        """HTML within a line."""
        return str(super().inline_html(self._place.images(html)))


class Place:
    """Where a notebook lies and where its page goes."""

    def __init__(self, notebook: Path, page: Path) -> None:
        self._notebook, self._page = notebook, page

    def link(self, url: str) -> str:
        """A link of the notebook as the page needs it."""
        if not RELATIVE.match(url):
            return url
        target = self._notebook.resolve().parent / url
        return Path(os.path.relpath(target, self._page.resolve().parent)).as_posix()

    def image(self, url: str) -> str:
        """An image of the notebook as data, since the page lets no file in.

        Raises
        ------
        NotebookError
            If it is not a file that can be read, beside the notebook, of a kind that browsers show.
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
        """HTML with its images as data."""
        return TAG.sub(lambda tag: f"{tag[1]}{tag[2]}{self.image(tag[3])}{tag[2]}", html)

    def math(self, latex: str, display: str) -> str:
        """MathML of an equation.

        Raises
        ------
        NotebookError
            If it holds a command that the converter does not know, which it would write out.
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
    """nbconvert's own, with our template, MathML, and links from the page's place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        super().__init__(
            template_name="notebook",
            extra_template_basedirs=[str(TEMPLATES)],
            exclude_anchor_links=True,
        )

    def default_filters(self) -> Iterable[tuple[str, Any]]:
        """nbconvert's, and ours."""
        yield from super().default_filters()
        yield "has_columns", has_columns

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Markdown as HTML."""
        renderer = Renderer(self._place, exclude_anchor_links=True)
        return str(MarkdownWithMath(renderer=renderer).render(source))


def write(
    notebook: NotebookNode, source: str | os.PathLike[str], page: str | os.PathLike[str]
) -> None:
    """Write the page of a notebook that was run.

    Parameters
    ----------
    notebook
        With outputs.
    source, page
        Where the notebook is stored, and the page to write.

    Raises
    ------
    NotebookError
        If an equation or an image cannot be shown, or the notebook has no title.
    ArtifactError
        If the page cannot be written; none is left half-written.
    """
    exporter = Exporter(Place(Path(source), Path(page)))
    resources = {"title": title_of(notebook, source), "stem": Path(source).stem}
    html, _ = exporter.from_notebook_node(notebook, resources=resources)
    with atomic(page) as temporary:
        temporary.write_text(html, encoding="utf-8")


def has_columns(text: str) -> bool:
    """Whether a printed text is a table, which wrapped lines would take apart."""
    return COLUMNS.search(text) is not None


def title_of(notebook: NotebookNode, source: str | os.PathLike[str]) -> str:
    """First line of the notebook, a heading.

    Raises
    ------
    NotebookError
        If it is none.
    """
    first = notebook.cells[0] if notebook.cells else None
    heading = re.match(r"# +(.+)", first.source) if first is not None else None
    if heading is None or first is None or first.cell_type != "markdown":
        raise NotebookError(f"{source} does not begin with a heading '# …'; add one.")
    return heading[1].strip()
