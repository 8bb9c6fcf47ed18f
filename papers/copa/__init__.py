"""COPA (Chen & Campbell)."""
