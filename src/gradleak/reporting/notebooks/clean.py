"""Clean notebooks for storage: no traces of a run or a machine.

``python -m gradleak.reporting.notebooks.clean notebooks/*.ipynb`` cleans files in place.
"""

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from gradleak.errors import GradleakError
from gradleak.reporting.notebooks.source import read
from gradleak.runtime.artifacts import FilePath, atomic

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def text(notebook: NotebookNode) -> str:
    """Text of its file without outputs, counts, empty cells, and metadata except cell tags."""
    v4 = nbformat.v4
    cells = []
    for cell in notebook.cells:
        if cell.source.strip():
            kept = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
            new = v4.new_code_cell if cell.cell_type == "code" else v4.new_markdown_cell
            cells.append(new(id=cell.id, metadata=kept, source=cell.source))
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return nbformat.writes(v4.new_notebook(cells=cells, metadata=metadata)) + "\n"


def clean(path: FilePath) -> None:
    """Clean a stored notebook in place."""
    content = text(read(path))
    with atomic(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            clean(Path(name))
    except GradleakError as error:
        sys.exit(f"gradleak: {error}")
