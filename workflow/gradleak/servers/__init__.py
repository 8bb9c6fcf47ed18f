"""Servers: what weights they send, honest or malicious, and what they keep to themselves."""
