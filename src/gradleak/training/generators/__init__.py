"""Generators of images: the attacker's prior knowledge of images."""
