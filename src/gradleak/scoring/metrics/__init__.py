"""Metrics: (original, reconstruction) -> value, for individual images."""
