"""Computations, figures and tables of one paper alone: a folder for each."""
