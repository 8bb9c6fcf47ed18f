"""Data sets: catalogue, creation and reading."""
