"""Figures: from scores and reconstructions to PDF and PNG files."""
