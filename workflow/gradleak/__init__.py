"""gradleak: gradient leakage, four papers replicated as one pipeline."""

__version__ = "0.1.0"
