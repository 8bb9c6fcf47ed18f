"""MKOR (Wang, Velipasalar & Gursoy)."""
