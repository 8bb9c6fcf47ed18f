"""Servers, honest or malicious: the weights they send and the secrets they keep."""
