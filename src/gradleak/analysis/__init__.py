"""Rank analysis and the security index c(M)."""
