"""Federated clients: gradients, keys, shared parameters and defences."""
