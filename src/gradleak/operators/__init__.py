"""Layer systems of COPA and R-GAP: U = [W; K] as structured linear operators."""
