"""Attacks that optimize images until their gradients match."""
