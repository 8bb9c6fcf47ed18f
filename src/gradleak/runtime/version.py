"""Version of gradleak."""

__version__ = "0.1.0"
