"""Notebooks: their imports, execution and pages."""

from gradleak.errors import require_extra

require_extra("notebooks", "nbclient")
