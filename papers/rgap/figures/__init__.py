"""R-GAP's figures."""
