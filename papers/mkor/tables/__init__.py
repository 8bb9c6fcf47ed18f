"""MKOR's tables."""
