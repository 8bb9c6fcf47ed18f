"""Figures and tables as listed in papers/*/results.yaml."""
