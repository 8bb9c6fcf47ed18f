"""Attacks: from what an attacker sees to an image."""
