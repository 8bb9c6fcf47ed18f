"""R-GAP (Zhu & Blaschko)."""
