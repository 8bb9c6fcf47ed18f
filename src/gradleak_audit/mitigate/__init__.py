"""Effect and cost of mitigations."""
