"""Attack a network, with and without mitigations."""
