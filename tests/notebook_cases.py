"""Small notebooks for tests."""

import nbformat

from gradleak.reporting.notebooks.source import DEFAULTS


def notebook(*cells):
    """A notebook that begins as ours do; code, or Markdown where it starts with '#' or '$'."""
    v4 = nbformat.v4
    setting = v4.new_code_cell('scale = "smoke"', metadata={"tags": [DEFAULTS]})
    code, words = v4.new_code_cell, v4.new_markdown_cell
    made = [words(text) if text[0] in "#$[" else code(text) for text in cells]
    return v4.new_notebook(cells=[words("# Title"), setting, *made])


def store(path, *cells):
    path.write_text(nbformat.writes(notebook(*cells)))
    return path
