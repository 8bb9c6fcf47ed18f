"""Notebooks: their imports, execution and pages."""
