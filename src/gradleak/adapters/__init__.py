"""Connections of the library with other frameworks, which are optional dependencies."""
