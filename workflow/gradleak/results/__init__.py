"""Figures and tables as papers/*/results.yaml lists them."""
