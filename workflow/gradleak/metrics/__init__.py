"""Metrics: (original, reconstruction) -> value, each image on its own."""
