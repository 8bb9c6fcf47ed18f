"""MKOR's figures."""
