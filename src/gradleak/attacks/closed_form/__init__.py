"""Attacks that solve a network layer by layer."""
