"""Data sets: what they are, how they are made, how they are read."""
