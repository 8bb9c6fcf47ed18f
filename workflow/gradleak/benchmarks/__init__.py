"""Measurements of speed and memory against plain references, and of settings against each other."""
