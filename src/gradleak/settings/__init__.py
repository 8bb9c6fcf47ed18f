"""Base class of settings, field types and their error messages."""
