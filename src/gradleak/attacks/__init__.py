"""Attacks: from an attacker's view to a reconstruction."""
