"""The notebooks that are there and what they run, as the rules ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradleak import registry
from gradleak.provenance import code_hash


class Notebooks:
    """Notebooks of a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.names = sorted(path.stem for path in Path(folder).glob("*.ipynb"))
        # Found by name: what no import statement of an audit tells.
        folders = ("attacks", "defences", "servers")
        named = sorted(module for kind in folders for module in registry.modules(kind).values())
        self._by_name = {"gradleak.audit": ("gradleak.auditing.api", *named)}

    def file(self, wildcards: Any) -> str:
        """The stored notebook."""
        return str(Path(self.folder) / f"{wildcards.notebook}.ipynb")

    def images(self, wildcards: Any) -> list[str]:
        """Files that its text shows, which become part of the page."""
        # Imported here, as every job would pay the time that it takes.
        from gradleak.notebooks import source

        return source.images(self.file(wildcards))

    def code(self, wildcards: Any) -> str:
        """Hash of the code that a notebook runs, and of what runs it and writes its page."""
        from gradleak.notebooks import source

        imported = source.modules(self.file(wildcards), self._by_name)
        return code_hash("gradleak.notebooks.execute", "gradleak.notebooks.page", *imported)
