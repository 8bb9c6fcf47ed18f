"""What connects the library with other frameworks, each an optional dependency."""
