"""COPA's figures."""
