"""Measurements of speed and memory against plain references, and comparisons of settings."""
