"""R-GAP's tables."""
