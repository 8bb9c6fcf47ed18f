"""Inputs of the rules for notebooks."""

from pathlib import Path
from typing import Any

from gradleak.runtime.provenance import code_hash


class Notebooks:
    """Notebooks of a folder; `audited` are modules that an audit loads by name."""

    def __init__(self, folder: str, audited: list[str]) -> None:
        self.folder = folder
        self.names = sorted(path.stem for path in Path(folder).glob("*.ipynb"))
        self._by_name = {"gradleak.audit": ("gradleak_audit.api", *audited)}

    def file(self, wildcards: Any) -> str:
        """Path of the stored notebook."""
        return str(Path(self.folder) / f"{wildcards.notebook}.ipynb")

    def images(self, wildcards: Any) -> list[str]:
        """Image files that its text shows and its page embeds."""
        # Imported here, since it would slow down the start of every job.
        from gradleak.reporting.notebooks import source

        return source.images(self.file(wildcards))

    def code(self, wildcards: Any) -> str:
        """Hash of the code that a notebook, its execution and its page depend on."""
        from gradleak.reporting.notebooks import source

        imported = source.modules(self.file(wildcards), self._by_name)
        here = "gradleak.reporting.notebooks"
        return code_hash(f"{here}.execute", f"{here}.page", *imported)
