"""The form in which notebooks are stored: nothing that a run or a machine left in them.

``python -m gradleak.notebooks.clean notebooks/*.ipynb`` brings notebooks into it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from gradleak.artifacts import atomic
from gradleak.errors import GradleakError
from gradleak.notebooks.source import read

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """The notebook without outputs, counts, empty cells, and all metadata but cells' tags."""
    cells = []
    for cell in notebook.cells:
        if not cell.source.strip():
            continue
        kept = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        new = {"id": cell.id, "metadata": kept, "source": cell.source}
        cells.append(
            nbformat.v4.new_code_cell(**new)
            if cell.cell_type == "code"
            else nbformat.v4.new_markdown_cell(**new)
        )
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def text(notebook: NotebookNode) -> str:
    """A notebook as it is stored."""
    return nbformat.writes(cleaned(notebook)) + "\n"


def clean(path: str | os.PathLike[str]) -> None:
    """Bring a stored notebook into the form."""
    content = text(read(path))
    with atomic(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            clean(Path(name))
    except GradleakError as error:
        sys.exit(f"gradleak: {error}")
