"""Defences: what a client does to its gradient before it shares it."""
