"""Report: figures, tables and claims of all papers on one page."""
