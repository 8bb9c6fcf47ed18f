"""A stored notebook: format, parameters, and modules imported by its cells."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from nbformat import NotebookNode

from gradleak.errors import ArtifactError, NotebookError
from gradleak.runtime.artifacts import FilePath
from gradleak.runtime.provenance import module_path

# Papermill's convention: one tag for the cell with defaults, the other for the injected cell.
DEFAULTS, INJECTED = "parameters", "injected-parameters"
# Image formats that a page can embed, with MIME types.
IMAGES = {
    ".gif": "image/gif", ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".png": "image/png",
    ".svg": "image/svg+xml", ".webp": "image/webp",
}  # fmt: skip
NOT_PYTHON = ("%", "!")  # lines for the shell or the kernel, valid in IPython but not in Python
# Images of a Markdown cell: ![text](file), <img src="file">, [name]: file.
SHOWN = re.compile(
    r"!\[[^\]]*\]\(\s*<?([^)>\s]+)"
    r"|<img\b[^>]*?\bsrc\s*=\s*[\"']([^\"']+)"
    r"|^ {0,3}\[[^\]]+\]:\s*<?([^>\s]+)",
    re.IGNORECASE | re.MULTILINE,
)


def read(path: FilePath) -> NotebookNode:
    """Read a notebook; raise `ArtifactError` if it is missing or invalid."""
    try:
        found: NotebookNode = nbformat.reads(Path(path).read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(found)
    except OSError as error:
        raise ArtifactError(f"Cannot read {path}: {error.strerror}; restore the file.") from error
    except Exception as error:
        # nbformat raises its own errors, json's and AttributeError.
        reason = str(error).split("\n", 1)[0]
        raise ArtifactError(
            f"{path} is not a notebook of format 4 ({reason}); restore it, or save it again in "
            "Jupyter."
        ) from error
    return found


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def with_parameters(
    notebook: NotebookNode, values: Mapping[str, Any], path: FilePath
) -> NotebookNode:
    """Insert a cell that sets `values` behind the cell of defaults.

    Raises `ArtifactError` if none has that tag or sets all, `NotebookError` if it is not Python.
    """
    cells = notebook.cells
    tagged = [DEFAULTS in cell.metadata.get("tags", []) for cell in code_cells(notebook)]
    if not any(tagged):
        raise ArtifactError(
            f"{path} has no code cell tagged '{DEFAULTS}', which holds {', '.join(values)}; add "
            "the tag to the cell that sets it."
        )
    number = tagged.index(True)
    defaults = code_cells(notebook)[number]
    try:
        known = _assigned(defaults.source)
    except SyntaxError as error:
        raise NotebookError(
            f"{path}: code cell {number + 1}, tagged '{DEFAULTS}', is not Python at line "
            f"{error.lineno} ({error.msg}); open the notebook in Jupyter and mend the cell."
        ) from error
    for name in values:
        if name not in known:
            raise ArtifactError(
                f"{path}: the cell tagged '{DEFAULTS}' does not set {name}; add a line {name} = …."
            )
    lines = ["# Set by the pipeline.", *(f"{name} = {value!r}" for name, value in values.items())]
    cell = nbformat.v4.new_code_cell("\n".join(lines), id=INJECTED, metadata={"tags": [INJECTED]})
    changed = NotebookNode(notebook)
    behind = next(place for place, own in enumerate(cells, 1) if own is defaults)
    changed.cells = [*cells[:behind], cell, *cells[behind:]]
    return changed


def _assigned(code: str) -> set[str]:
    """Names that a cell assigns, with or without annotation."""
    targets: list[ast.expr] = []
    for node in ast.walk(ast.parse(_python(code))):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets.append(node.target)
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _python(code: str) -> str:
    """Code of a cell without lines specific to IPython."""
    lines = code.split("\n")
    return "\n".join("" if line.lstrip().startswith(NOT_PYTHON) else line for line in lines)


def imports(notebook: NotebookNode) -> tuple[str, ...]:
    """Dotted names that code cells import or use: `from a import b` gives ``a`` and ``a.b``."""
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


def images(path: FilePath) -> list[str]:
    """Existing image files beside a notebook that its text shows; its page reports missing ones."""
    try:
        cells = read(path).cells
    except ArtifactError:
        return []
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    named = {unquote(found) for match in SHOWN.findall(text) for found in match if found}
    files = [Path(path).parent / name for name in named]
    return sorted(str(file) for file in files if file.suffix.lower() in IMAGES and file.is_file())


def modules(path: FilePath, by_name: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Modules of this package that a notebook runs, for its code hash.

    `by_name` gives the modules behind names that the package looks up lazily, such as
    ``gradleak.audit``. An unreadable notebook has none: the job that runs it reports the error.
    """
    try:
        found = imports(read(path))
    except (ArtifactError, SyntaxError):
        return []
    named = [module for name in found for module in by_name.get(name, (name,))]
    return sorted({name for name in named if module_path(name) is not None})
