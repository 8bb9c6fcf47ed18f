"""Audit of a user's network for gradient leakage: structure, attacks, defences, one page."""
