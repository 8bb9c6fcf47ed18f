"""A stored notebook: its form, its parameters, and the modules that its cells import."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from nbformat import NotebookNode

from gradleak.errors import ArtifactError, NotebookError
from gradleak.provenance import module_path

# Papermill's convention: a cell with the first tag holds defaults, one with the second follows it.
DEFAULTS, INJECTED = "parameters", "injected-parameters"
# Files that a page can hold, and what a browser calls them.
IMAGES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}
# What IPython takes and Python does not: a line of the shell's or the kernel's.
NOT_PYTHON = ("%", "!")
# What a Markdown cell shows or names: ![text](file), <img src="file">, [name]: file.
SHOWN = re.compile(
    r"!\[[^\]]*\]\(\s*<?([^)>\s]+)"
    r"|<img\b[^>]*?\bsrc\s*=\s*[\"']([^\"']+)"
    r"|^ {0,3}\[[^\]]+\]:\s*<?([^>\s]+)",
    re.IGNORECASE | re.MULTILINE,
)


def read(path: str | os.PathLike[str]) -> NotebookNode:
    """Read a notebook.

    Raises
    ------
    ArtifactError
        If there is none, or the file is not one.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        found: NotebookNode = nbformat.reads(text, as_version=4)
        nbformat.validate(found)
    except OSError as error:
        raise ArtifactError(f"Cannot read {path}: {error.strerror}; restore the file.") from error
    except Exception as error:
        # nbformat raises its own errors, json's and AttributeError.
        reason = str(error).split("\n", 1)[0]
        raise ArtifactError(
            f"{path} is no notebook of format 4 ({reason}); restore it, or save it again in "
            "Jupyter."
        ) from error
    return found


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Its code cells, first to last."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def with_parameters(
    notebook: NotebookNode, values: Mapping[str, Any], path: str | os.PathLike[str]
) -> NotebookNode:
    """The notebook with a cell behind its defaults that sets `values`.

    Raises
    ------
    ArtifactError
        If no code cell has the tag of defaults, or it does not set one of `values`.
    NotebookError
        If that cell is no Python; one sentence.
    """
    places = [
        number
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and DEFAULTS in cell.metadata.get("tags", [])
    ]
    if not places:
        raise ArtifactError(
            f"{path} has no code cell tagged '{DEFAULTS}', which holds {', '.join(values)}; add "
            "the tag to the cell that sets it."
        )
    try:
        known = _assigned(notebook.cells[places[0]].source)
    except SyntaxError as error:
        count = sum(cell.cell_type == "code" for cell in notebook.cells[: places[0] + 1])
        raise NotebookError(
            f"{path}: code cell {count}, tagged '{DEFAULTS}', is no Python at line {error.lineno} "
            f"({error.msg}); open the notebook in Jupyter and mend the cell."
        ) from error
    for name in values:
        if name not in known:
            raise ArtifactError(
                f"{path}: the cell tagged '{DEFAULTS}' does not set {name}; add a line {name} = …."
            )
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    cell = nbformat.v4.new_code_cell("\n".join(["# Set by the pipeline.", *lines]), id=INJECTED)
    cell.metadata["tags"] = [INJECTED]
    changed = NotebookNode(notebook)
    changed.cells = [
        *notebook.cells[: places[0] + 1],
        cell,
        *notebook.cells[places[0] + 1 :],
    ]
    return changed


def _assigned(code: str) -> set[str]:
    """Names that a cell sets, with a type or without."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(_python(code))):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def _python(code: str) -> str:
    """Code of a cell without the lines that only IPython takes."""
    lines = code.split("\n")
    return "\n".join("" if line.lstrip().startswith(NOT_PYTHON) else line for line in lines)


def imports(notebook: NotebookNode) -> tuple[str, ...]:
    """What the code cells import, as dotted names.

    ``from a import b`` gives ``a`` and ``a.b``; so does ``import a`` with ``a.b`` used.
    """
    names: set[str] = set()
    for cell in code_cells(notebook):
        for node in ast.walk(ast.parse(_python(cell.source))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names.add(f"{node.value.id}.{node.attr}")
    return tuple(sorted(names))


def images(path: str | os.PathLike[str]) -> list[str]:
    """Files beside a notebook that its Markdown cells show, as far as they are there.

    What is missing is for the job that writes the page to say.
    """
    try:
        cells = read(path).cells
    except ArtifactError:
        return []
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    folder = Path(path).parent
    named = {unquote(found) for match in SHOWN.findall(text) for found in match if found}
    return sorted(str(folder / name) for name in named if _is_image(folder / name))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGES and path.is_file()


def modules(path: str | os.PathLike[str], by_name: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Modules of this package that a notebook runs, for its code hash.

    Parameters
    ----------
    path
        The notebook. Of one that cannot be read there are none: the job that runs it says why.
    by_name
        For names of the package that it looks up when it is asked for them, such as
        ``gradleak.audit``: the modules behind them.
    """
    try:
        found = imports(read(path))
    except (ArtifactError, SyntaxError):
        return []
    named = [module for name in found for module in by_name.get(name, (name,))]
    return sorted({name for name in named if module_path(name) is not None})
