"""COPA's tables."""
