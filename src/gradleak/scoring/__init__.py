"""Scores of reconstructions against the original images."""
