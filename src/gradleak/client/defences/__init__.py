"""Defences: changes of a client's gradient before it is shared."""
