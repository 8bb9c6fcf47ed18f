"""Notebooks: what they import, running them in a kernel of their own, and their pages."""
