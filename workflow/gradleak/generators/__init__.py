"""Generators of images: what an attacker knows of how such images look."""
